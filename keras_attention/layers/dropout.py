"""Dropout of attention weights.

Shapes: B batch, T queries, S positions.
"""

from typing import Any

import keras
from keras import ops

from keras_attention.layers.base import AttentionPart
from keras_attention.serialization import seed_and_generator, serialize_seed
from keras_attention.typing import Config, Nested, Seed, Shape, Tensor
from keras_attention.validation import check_number


@keras.saving.register_keras_serializable(package="keras_attention")
class WeightDropout(AttentionPart):
    """Dropout of weights, with a mask that is drawn before any loop.

        used[t, s] = weights[t, s] * kept[t, s] / (1 - rate),
                     kept[t, s] = 1 with probability 1 - rate, else 0

    Args:
        rate: Probability that a weight is dropped, in `[0, 1)`.
        seed: Integer, `keras.random.SeedGenerator`, or `None`.

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), the authors' code.
    """

    def __init__(self, rate: float = 0.0, *, seed: Seed = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_number("dropout", rate, "in [0, 1)", lambda x: 0 <= x < 1)
        self.rate = rate
        # Without dropout there is no state to save.
        self.seed, self.seed_generator = seed, None
        if rate:
            self.seed, self.seed_generator = seed_and_generator(seed)
        # There are no weights to build, and a layer of rate zero is never called.
        self.built = True

    def draw(self, shape: Shape) -> Nested:
        if not self.rate:
            return {}
        uniform = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        return {"kept": uniform >= self.rate}

    def drop(self, weights: Tensor, noise: Nested) -> Tensor:
        """Return the weights that are used, given the noise of one step."""
        return ops.where(noise["kept"], weights / (1 - self.rate), 0.0)

    def get_config(self) -> Config:
        seed = serialize_seed(self.seed)
        return {**super().get_config(), "rate": self.rate, "seed": seed}
