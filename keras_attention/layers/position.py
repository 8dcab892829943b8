"""Position encodings: attention alone does not see the order of steps.

Shapes: B batch, T steps, D depth.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attention.layers.projections import serialize_options
from keras_attention.layers.projections import weight_arguments
from keras_attention.layers.projections import weight_options
from keras_attention.ops.precision import accumulation_dtype
from keras_attention.typing import Config
from keras_attention.typing import Initializer
from keras_attention.typing import Regularizer
from keras_attention.typing import Shape
from keras_attention.typing import Tensor
from keras_attention.typing import WeightConstraint
from keras_attention.validation import check_choice
from keras_attention.validation import check_positive_integer
from keras_attention.validation import may_be_equal

KINDS = ("sinusoidal", "learned")


@keras.saving.register_keras_serializable(package="keras_attention")
class PositionEncoding(keras.layers.Layer):
    """Position encoding, added to every step of a sequence.

    Sinusoidal encodings alternate sines and cosines, with wavelengths from 2 pi to
    10000 * 2 pi:

        encoding[p, 2 i]     = sin(p / 10000 ^ (2 i / D))
        encoding[p, 2 i + 1] = cos(p / 10000 ^ (2 i / D))

    An odd depth ends with a sine. If learned, `encoding` is a table of `max_length`
    rows.

    The waves are computed in float32 at least, whatever the compute dtype. The mask
    of the input is passed on.

    Args:
        kind: `"sinusoidal"` or `"learned"`.
        max_length: Positive integer, number of positions; required if learned.
            Positions are checked against it. The check does not know the value of a
            `start` that is a tensor or NumPy number, and assumes 0.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: For the
            learned table.

    Call arguments:
        inputs: Embeddings of shape `(..., steps, depth)`, or those of a single step
            `(batch, depth)`.
        start: Position of the first step: an integer, or an integer tensor `()` or
            `(batch,)`.

    Returns:
        Tensor like `inputs`.

    Raises:
        ValueError: If an argument does not fit, or a position is not below
            `max_length`.

    Example:

    >>> words = np.zeros((2, 11, 4), "float32")
    >>> encoded = PositionEncoding()(words)
    >>> [f"{x:.4f}" for x in encoded[0, 1]]
    ['0.8415', '0.5403', '0.0100', '0.9999']

    In step-by-step decoding, `start` is the position of the step:

    >>> step = PositionEncoding()(words[:, 1], start=1)
    >>> [f"{x:.4f}" for x in step[0]]
    ['0.8415', '0.5403', '0.0100', '0.9999']

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5; learned:
        [Gehring et al., 2017](https://arxiv.org/abs/1705.03122), section 3.1.
    """

    def __init__(
        self,
        kind: str = "sinusoidal",
        *,
        max_length: int | None = None,
        embeddings_initializer: Initializer = "uniform",
        embeddings_regularizer: Regularizer = None,
        embeddings_constraint: WeightConstraint = None,
        **kwargs: Any,
    ) -> None:
        check_choice("kind", kind, KINDS)
        if max_length is None and kind == "learned":
            raise ValueError(
                "max_length must be given for learned positions. Received: None"
            )
        super().__init__(**kwargs)
        self.supports_masking = True
        self.kind = kind
        self.max_length = check_positive_integer(
            "max_length", max_length, optional=True
        )
        self.options = weight_options(
            embeddings=(
                embeddings_initializer,
                embeddings_regularizer,
                embeddings_constraint,
            )
        )

    def build(self, inputs_shape: Shape) -> None:
        if self.kind == "learned":
            self.embeddings = self.add_weight(
                name="embeddings",
                shape=(self.max_length, inputs_shape[-1]),
                **weight_arguments(self.options, "embeddings"),
            )
        self.built = True

    def call(self, inputs: Tensor, start: int | Tensor = 0) -> Tensor:
        self._check_positions(inputs.shape, start)
        positions = ops.cast(start, "int32")
        if len(inputs.shape) > 2:
            steps = ops.arange(ops.shape(inputs)[-2], dtype="int32")
            positions = positions[..., None] + steps
        if self.kind == "learned":
            encoding = ops.take(self.embeddings, positions, axis=0)
        else:
            positions = ops.cast(positions, accumulation_dtype(self.compute_dtype))
            encoding = sinusoids(positions, inputs.shape[-1])
        if len(positions.shape) == 2:
            # Axes between the batch and the steps share the positions of their row.
            between = (1,) * (len(inputs.shape) - 3)
            shape = ops.shape(encoding)
            encoding = ops.reshape(encoding, (shape[0], *between, *shape[1:]))
        return inputs + ops.cast(encoding, self.compute_dtype)

    def _check_positions(self, shape, start):
        if len(shape) < 2:
            raise ValueError(
                "inputs must have the shape (..., steps, depth) or (batch, depth). "
                f"Received: {tuple(shape)}"
            )
        steps = shape[-2] if len(shape) > 2 else 1
        given = start if hasattr(start, "dtype") else np.asarray(start)
        is_integer = "int" in keras.backend.standardize_dtype(given.dtype)
        if not is_integer or len(given.shape) > 1:
            raise ValueError(
                "start must be an integer, or an integer tensor, one number or "
                f"(batch,). Received: {start!r}"
            )
        if len(given.shape) and not may_be_equal(given.shape, shape[:1]):
            raise ValueError(
                f"start must have one position for each of {shape[0]} rows. "
                f"Received: {tuple(given.shape)}"
            )
        if isinstance(start, int) and start < 0:
            raise ValueError(f"start must not be negative. Received: {start}")
        if self.max_length is None or steps is None:
            return
        first = start if isinstance(start, int) else 0
        if first + steps > self.max_length:
            raise ValueError(
                f"Positions must be below max_length={self.max_length}. Received: "
                f"{steps} steps from position {first}"
            )

    def compute_output_shape(self, inputs_shape: Shape) -> Any:
        return tuple(inputs_shape)

    def compute_output_spec(self, inputs: Tensor, start: int | Tensor = 0) -> Any:
        self._check_positions(inputs.shape, start)
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "kind": self.kind,
            "max_length": self.max_length,
            **serialize_options(self.options),
        }


def sinusoids(positions, depth):
    """Sines and cosines of positions `(...)`, interleaved to `(..., depth)`."""
    lengths = 10000.0 ** (np.arange(0, depth, 2) / depth)
    lengths = ops.convert_to_tensor(lengths, positions.dtype)
    angles = positions[..., None] / lengths
    waves = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    waves = ops.reshape(waves, (*ops.shape(angles)[:-1], 2 * angles.shape[-1]))
    return waves[..., :depth]
