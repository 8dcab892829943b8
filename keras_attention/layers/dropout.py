"""Dropout that is fast under XLA."""

from typing import Any

import keras

from keras_attention.backends import dropout
from keras_attention.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_attention")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout`, but fast under XLA on TensorFlow on processors.

        output = x * kept / (1 - rate), kept = 1 with probability 1 - rate, else 0

    For `keras.layers.Dropout`, TensorFlow chooses the generator of random numbers by
    device. On processors, XLA then derives the key of the generator again for every
    number, which takes most of a training step. This layer names the generator,
    Philox. Eagerly and in graphs its masks are those of Keras; under XLA they are
    others. On JAX and PyTorch both layers are the same.

    Args:
        rate: Probability that an element is dropped, in `[0, 1]`.
        noise_shape: Shape of the mask, which is broadcast to the input. By default that
            of the input.
        seed: Integer or `None`.

    Call arguments:
        inputs: Tensor of any shape.
        training: Whether to drop elements. Without training, the output is the input.

    Returns:
        Tensor of the input's shape.

    Reference:
        [Srivastava et al., 2014](https://jmlr.org/papers/v15/srivastava14a.html).

    Example:

    >>> dropout = Dropout(0.5, seed=1)
    >>> tuple(dropout(np.ones((2, 3))).shape)
    (2, 3)
    """

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        if not (training and self.rate > 0):
            return inputs
        shape: Any = self.noise_shape
        return dropout(inputs, self.rate, self.seed_generator, shape)
