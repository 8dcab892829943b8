"""Scheduled sampling: decoders that train on their own samples.

Shapes: B batch, K sequences that attend to the same memory, R rows (B, or B x K), D
depth of an input, W words of the vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
from keras import ops, tree

from keras_attention.backends import index_range
from keras_attention.ops.precision import accumulation_dtype
from keras_attention.ops.sampling import sample_by_inversion
from keras_attention.serialization import (
    CompositeLayer,
    seed_and_generator,
    serialize_part,
)
from keras_attention.sizes import join_axes
from keras_attention.typing import Config, Nested, Seed, Shape, Tensor, Tensors
from keras_attention.validation import check_number

Embed: TypeAlias = Callable[[Tensor], Tensor] | None
Predict: TypeAlias = Callable[[Tensor, Tensors], Tensor] | None
Rate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule


@keras.saving.register_keras_serializable(package="keras_attention")
class ScheduledSampling(CompositeLayer):
    """Scheduled sampling: replaces teacher inputs in training by the model's samples.

        word[t]  ~ softmax(predict(input[t-1], output[t-1]))
        input[t] = embed(word[t]) with probability `rate`, else the teacher's input

    `AttentionDecoder(cell, sampling=...)` calls `draw` before its loop and `choose` at
    every step of a training pass.

    Rows and steps are independent of each other. The first step, and in a decoder a
    step after a masked one, always receive the teacher's input. No gradient passes
    through the sampling of a word; `embed` learns from a sampled word as from any
    other.

    `embed` and `predict` belong to the model that trains them. This layer only refers
    to them, so their weights are not among its own, and are neither frozen nor saved
    with it. Layers have to be built before the first training pass; an inference pass
    builds them, and so does `fit`. They run in inference mode, so dropout does not
    change the distribution. In a `.keras` file, layers and registered functions are
    shared with the rest of the model. Other functions are not saved, and a model that
    was loaded without them needs a call of `set_functions` before it can train again.

    Args:
        embed: Layer or function from token ids `(R,)` to inputs `(R, D)`.
        predict: Layer or function `(inputs, outputs) -> logits` of one step: inputs
            `(R, D)` and the dict of outputs of the decoder, tensors `(R, ...)`, to
            logits `(R, W)`.
        rate: Probability of a sampled word, a number in [0, 1]; or a
            `keras.optimizers.schedules.LearningRateSchedule` of the number of training
            passes so far: `InverseSigmoidRate(k)`, or for a rate that grows linearly
            `PolynomialDecay(0.0, passes, 0.25)`.
        seed: Integer, `keras.random.SeedGenerator`, or `None`.

    Attributes:
        passes: Variable that counts the training passes; saved with the model.

    Raises:
        ValueError: If `embed` or `predict` cannot be called, or `rate` is neither a
            probability nor a schedule.

    Example:

    >>> embed, classify = keras.layers.Embedding(50, 10), keras.layers.Dense(50)
    >>> sampling = ScheduledSampling(
    ...     embed, lambda inputs, outputs: classify(outputs["output"]), rate=0.25
    ... )
    >>> teacher, outputs = embed(np.zeros(8, "int32")), {"output": np.zeros((8, 32))}
    >>> noise = sampling.draw(11, (8,))
    >>> noise = {name: x[5] for name, x in noise.items()}
    >>> tuple(sampling.choose(noise, teacher, teacher, outputs).shape)
    (8, 10)

    Reference:
        [Bengio et al., 2015](https://arxiv.org/abs/1506.03099), sections 2.3 and 2.4.
    """

    def __init__(
        self,
        embed: Embed,
        predict: Predict,
        rate: Rate = 0.25,
        *,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        # Noise keeps its precision in every dtype policy.
        super().__init__(autocast=False, **kwargs)
        scheduled = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
        if not scheduled:
            expected = "a number from 0 to 1 or a LearningRateSchedule"
            check_number("rate", rate, expected, lambda x: 0 <= x <= 1)
        self.rate = rate
        self.seed, self.seed_generator = seed_and_generator(seed)
        self.passes = self.add_weight(
            name="passes",
            shape=(),
            dtype="int",
            initializer="zeros",
            trainable=False,
            aggregation="only_first_replica",
        )
        self._restore_training = keras.layers.Dropout(0.0, dtype=self.dtype_policy)
        self.set_functions(embed, predict)
        self.supports_masking = True
        self.built = True

    def set_functions(self, embed: Embed, predict: Predict) -> None:
        """Set `embed` and `predict`; see the arguments of the layer."""
        for name, function in (("embed", embed), ("predict", predict)):
            if function is not None and not callable(function):
                raise ValueError(
                    f"{name} must be a layer or a function. Received: {function!r}"
                )
        # Keras would own, freeze and save a layer that it finds in an attribute.
        self._functions: Any = lambda: (embed, predict)

    def draw(self, steps: int, leading_shape: Shape) -> Tensors:
        """Draw the noise of one training pass, and count the pass.

        Call it once for each pass, outside of any loop.

        Args:
            steps: Number of steps.
            leading_shape: `(B,)` or `(B, K)`.

        Returns:
            Dict of tensors `(steps, B, [K])`: the boolean `"use_sample"`, whether the
            input is a sample, and `"uniform"`, the random number that selects the
            sample.

        Raises:
            ValueError: If `embed` or `predict` is missing, or a layer that is not built
                yet: no weights can be created inside a loop.
        """
        for name, function in zip(("embed", "predict"), self._functions(), strict=True):
            if function is None:
                raise ValueError(
                    f"{name} is missing: call `set_functions(embed, predict)`. "
                    "Received: None"
                )
            if not getattr(function, "built", True):
                raise ValueError(
                    f"{name} is not built: run one inference pass first. "
                    f"Received: {function!r}"
                )
        rate, seed = self.rate, self.seed_generator
        dtype = accumulation_dtype(self.compute_dtype)
        if callable(rate):
            rate = ops.cast(rate(ops.convert_to_tensor(self.passes)), dtype)
        self.passes.assign_add(1)
        shape = (steps, *leading_shape)
        use_sample = keras.random.uniform(shape, dtype=dtype, seed=seed) < rate
        is_after_first = index_range(steps) > 0
        is_after_first = ops.reshape(is_after_first, (-1, *[1] * len(leading_shape)))
        return {
            "use_sample": ops.logical_and(use_sample, is_after_first),
            "uniform": keras.random.uniform(shape, dtype=dtype, seed=seed),
        }

    def choose(
        self,
        noise: Tensors,
        inputs: Tensor,
        previous_inputs: Tensor,
        previous_outputs: Tensors,
    ) -> Tensor:
        """Return the inputs of one step: samples, or the teacher's.

        Args:
            noise: Dict that `draw` returned, for this step.
            inputs: Inputs of the teacher, `(B, [K,] D)`.
            previous_inputs: Inputs of the previous step, `(B, [K,] D)`; any values
                before the first.
            previous_outputs: Dict of the previous outputs, tensors `(B, [K,] ...)`.

        Returns:
            Tensor like `inputs`.
        """
        uniform = noise["uniform"]
        sampled = self(previous_inputs, previous_outputs, uniform, training=False)
        # `training=False` would stay in Keras' call context for later layers; this call
        # restores `True`.
        sampled = ops.cast(sampled, inputs.dtype)
        sampled = self._restore_training(sampled, training=True)
        depth = sampled.shape[-1]
        if depth != inputs.shape[-1]:
            raise ValueError(
                f"inputs must have the depth of the embeddings of embed, {depth}. "
                f"Received: {inputs.shape[-1]}"
            )
        return ops.where(noise["use_sample"][..., None], sampled, inputs)

    def call(
        self,
        inputs: Tensor,
        outputs: Tensors,
        uniform: Tensor,
        training: bool | None = None,
    ) -> Tensor:
        """Return embeddings of words sampled from the previous step."""
        embed, predict = self._functions()
        leading = ops.shape(uniform)
        if len(leading) == 2:
            inputs, outputs, uniform = tree.map_structure(
                join_axes, (inputs, outputs, uniform)
            )
        logits = predict(inputs, outputs)
        if len(logits.shape) != 2:
            raise ValueError(
                "predict must return logits of the shape (rows, words). "
                f"Received: {tuple(logits.shape)}"
            )
        probabilities = ops.softmax(ops.cast(logits, uniform.dtype), axis=-1)
        words = embed(sample_by_inversion(probabilities, uniform[:, None]))
        return ops.reshape(words, (*leading, words.shape[-1]))

    def compute_mask(self, inputs: Tensor, previous_mask: Nested) -> Any:
        return None

    def get_config(self) -> Config:
        embed, predict = (_serialize(x) for x in self._functions())
        return {
            **super().get_config(),
            "embed": embed,
            "predict": predict,
            "rate": keras.saving.serialize_keras_object(self.rate),
            "seed": serialize_part(self.seed),
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class InverseSigmoidRate(keras.optimizers.schedules.LearningRateSchedule):
    """Sampling rate that grows from near 0 to 1 along a sigmoid.

        rate(i) = 1 - k / (k + exp(i / k))

    It starts at `1 / (1 + k)` and passes one half at `i = k log(k)`.

    Args:
        k: Number of at least 1; the larger, the slower the growth.

    Raises:
        ValueError: If `k` is less than 1.

    Example:

    >>> rate = InverseSigmoidRate(1000)
    >>> [round(float(rate(passes)), 3) for passes in (0, 3000, 6908, 20_000)]
    [0.001, 0.02, 0.5, 1.0]

    Reference:
        [Bengio et al., 2015](https://arxiv.org/abs/1506.03099), section 2.4.
    """

    def __init__(self, k: float) -> None:
        check_number("k", k, "at least 1 and finite", lambda x: 1 <= x < math.inf)
        self.k = k

    def __call__(self, step: Tensor) -> Tensor:
        # This form of the equation does not overflow.
        return ops.sigmoid(ops.cast(step, "float32") / self.k - math.log(self.k))

    def get_config(self) -> Config:
        return {"k": self.k}


def _serialize(function: Any) -> Any:
    """Return the config of a layer or of a registered function, otherwise `None`."""
    if isinstance(function, keras.layers.Layer):
        return serialize_part(function)
    if not hasattr(function, "__name__"):
        return None
    name = keras.saving.get_registered_name(function)
    registered = keras.saving.get_registered_object(name)
    return (
        keras.saving.serialize_keras_object(function)
        if registered is function
        else None
    )
