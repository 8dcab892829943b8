"""Positions: attention alone does not see the order of steps.

`PositionEncoding` adds an encoding to the inputs. Relative positions are parts of
multi-head attention.

Shapes: B batch, T queries or steps, S positions, N heads, D depth of a step or of a
key, V depth of a value in a head, K largest distance.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attention.backends import index_range
from keras_attention.layers.components import AttentionPart, get_part
from keras_attention.layers.projections import (
    pop_weight_options,
    serialize_options,
    weight_arguments,
)
from keras_attention.ops.precision import accumulation_dtype
from keras_attention.serialization import config_of
from keras_attention.typing import Config, Dtype, Nested, Shape, Tensor
from keras_attention.validation import (
    CheckedCall,
    check_boolean,
    check_choice,
    check_number,
    check_positive,
    check_positive_integer,
    may_be_equal,
)


@keras.saving.register_keras_serializable(package="keras_attention")
class PositionEncoding(CheckedCall, keras.layers.Layer):
    """Position encoding, added to every step of a sequence.

    Sinusoidal encodings alternate sines and cosines, with wavelengths from 2 pi to
    10000 * 2 pi:

        encoding[p, 2 i]     = sin(p / 10000 ^ (2 i / D))
        encoding[p, 2 i + 1] = cos(p / 10000 ^ (2 i / D))

    An odd depth ends with a sine. With `layout="halves"`, all sines come before all
    cosines, as in Tensor2Tensor and Marian. If learned, `encoding` is a table of
    `max_length` rows.

    The waves are computed in float32 at least, whatever the compute dtype. The mask
    of the input is passed on.

    Args:
        kind: `"sinusoidal"` or `"learned"`.
        max_length: Positive integer, number of positions; required if learned.
            Positions are checked against it. The check does not know the value of a
            `start` that is a tensor or NumPy number, and assumes 0.
        layout: `"interleaved"` or `"halves"`: the order of sines and cosines.
        max_wavelength: Positive number, the base of the powers above, 10000.
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
        layout: str = "interleaved",
        max_wavelength: float = 10_000.0,
        **kwargs: Any,
    ) -> None:
        check_choice("kind", kind, ("sinusoidal", "learned"))
        check_choice("layout", layout, ("interleaved", "halves"))
        check_positive("max_wavelength", max_wavelength)
        if max_length is None and kind == "learned":
            raise ValueError(
                "max_length must be given for learned positions. Received: None"
            )
        options = pop_weight_options(kwargs, embeddings="uniform")
        super().__init__(**kwargs)
        self.options = options
        self.supports_masking = True
        self.kind = kind
        self.layout = layout
        self.max_wavelength = float(max_wavelength)
        self.max_length = check_positive_integer(
            "max_length", max_length, optional=True
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
        self._check_positions(inputs, start)
        positions = ops.cast(start, "int32")
        if len(inputs.shape) > 2:
            steps = index_range(ops.shape(inputs)[-2])
            positions = positions[..., None] + steps
        if self.kind == "learned":
            encoding = ops.take(self.embeddings, positions, axis=0)
        else:
            depth, dtype = inputs.shape[-1], accumulation_dtype(self.compute_dtype)
            powers = np.arange(0, depth, 2) / depth
            wavelengths = self.max_wavelength**powers
            positions = ops.cast(positions, dtype)
            angles = positions[..., None] / ops.convert_to_tensor(wavelengths, dtype)
            waves = [ops.sin(angles), ops.cos(angles)]
            if self.layout == "halves":
                encoding = ops.concatenate(waves, axis=-1)[..., :depth]
            else:
                sizes = (*ops.shape(angles)[:-1], 2 * angles.shape[-1])
                encoding = ops.reshape(ops.stack(waves, axis=-1), sizes)[..., :depth]
        if len(positions.shape) == 2:
            # Axes between the batch and the steps share the positions of their row.
            between = (1,) * (len(inputs.shape) - 3)
            shape = ops.shape(encoding)
            encoding = ops.reshape(encoding, (shape[0], *between, *shape[1:]))
        return inputs + ops.cast(encoding, self.compute_dtype)

    def _check_positions(self, inputs: Nested, start: Tensor) -> None:
        shape = inputs.shape
        if "float" not in str(inputs.dtype):
            raise ValueError(
                f"inputs must be embeddings, floats. Received: {inputs.dtype}"
            )
        if len(shape) < 2:
            raise ValueError(
                "inputs must have the shape (..., steps, depth) or (batch, depth). "
                f"Received: {tuple(shape)}"
            )
        steps = shape[-2] if len(shape) > 2 else 1
        positions = start if hasattr(start, "dtype") else np.asarray(start)
        if "int" not in str(positions.dtype) or len(positions.shape) > 1:
            raise ValueError(
                "start must be an integer, or an integer tensor, one number or "
                f"(batch,). Received: {start!r}"
            )
        if len(positions.shape) and not may_be_equal(positions.shape, shape[:1]):
            raise ValueError(
                f"start must have one position for each of {shape[0]} rows. "
                f"Received: {tuple(positions.shape)}"
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
        self._check_positions(inputs, start)
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            **config_of(self, "kind max_length layout max_wavelength"),
            **serialize_options(self.options),
        }


class RelativePositions(AttentionPart):
    """Base of the relative positions in `SelfAttention`.

    Weights depend on the offset `s - t` between the positions of key s and query t. A
    subclass implements one method or several; the others have no effect:

        query[t], key[s] = rotate(query[t], t), rotate(key[s], s)
        scores[t, s]     = query[t] . key[s] + bias(query, s - t)
        head[t]          = sum over s of weights[t, s] * value[s]
                           + value_term(weights, s - t)

    `build(query_shape, value_shape)` creates the weights, given the shapes
    `(B, N, T, D)` and `(B, G, S, V)`, with G key-value heads.

    Masked steps do not count: each step has the position that it would have without
    them. In cross-attention, both sequences are counted from zero.

    Attributes:
        has_value_term: Whether `value_term` adds to the contexts. It needs the weights,
            so fused attention is not available.
    """

    has_value_term: bool = False

    def build(self, query_shape: Shape, value_shape: Shape) -> None:
        self.built = True

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return rotated queries or keys `(B, N, T, D)`.

        Queries are already multiplied by the scale. A cache contains rotated keys.

        Args:
            x: Queries, `(B, N, T, D)`, or keys.
            positions: int32 `(B, T)` or `(1, T)`.
        """
        return x

    def bias(self, query: Tensor, offsets: Tensor) -> Tensor | None:
        """Return the bias of the scores, broadcastable to `(B, N, T, S)`, or `None`.

        Args:
            query: Tensor `(B, N, T, D)`, multiplied by the scale.
            offsets: int32 `(B, T, S)` or `(1, T, S)`.
        """
        return None

    def value_term(self, weights: Tensor, offsets: Tensor) -> Tensor | None:
        """Return vectors to add to the contexts, `(B, N, T, V)`, or `None`."""
        return None

    def get_config(self) -> Config:
        # Keras requires it of layers whose constructor takes arguments.
        return dict(super().get_config())


@keras.saving.register_keras_serializable(package="keras_attention")
class RotaryPositions(RelativePositions):
    """Rotary positions: queries and keys are rotated by their position.

    Features i and `i + R / 2`, where R is the number of rotated features,
    `fraction * key_dim` rounded down to an even number, are a pair, which is rotated by
    an angle:

        angle[p, i] = p * base ^ (-2 i / R)

    The product of a rotated query and a rotated key depends on the offset alone. This
    is the order of pairs of `keras_hub.layers.RotaryEmbedding`, GPT-NeoX and Llama in
    Transformers. The paper pairs neighbours, features `2 i` and `2 i + 1`, which is
    equivalent after a permutation of the columns of the query and key kernels.

    Args:
        max_wavelength: Positive number, the base.
        fraction: Number in (0, 1], the share of the features of a head that are
            rotated: the first R.
        scaling: How rotations are slowed down, for contexts longer than in training:
            `"linear"` divides every position by `scaling_factor`; `"ntk"` multiplies
            the base by `scaling_factor ^ (R / (R - 2))`.
        scaling_factor: Number of at least 1, the ratio of the two lengths.

    Raises:
        ValueError: If an argument does not fit, or no pair of features is rotated.

    Example:

    >>> attention = SelfAttention(8, 64, positions=RotaryPositions(fraction=0.5))
    >>> tuple(attention(np.zeros((2, 11, 512), "float32")).shape)
    (2, 11, 512)

    Reference:
        [Su et al., 2021](https://arxiv.org/abs/2104.09864), section 3.4; a fraction:
        [Black et al., 2022](https://arxiv.org/abs/2204.06745), section 2.1.1; scaling:
        [Chen et al., 2023](https://arxiv.org/abs/2306.15595),
        [Peng et al., 2023](https://arxiv.org/abs/2309.00071).
    """

    def __init__(
        self,
        max_wavelength: float = 10_000.0,
        *,
        fraction: float = 1.0,
        scaling: str = "linear",
        scaling_factor: float = 1.0,
        **kwargs: Any,
    ) -> None:
        check_positive("max_wavelength", max_wavelength)
        check_number("fraction", fraction, "a number in (0, 1]", lambda x: 0 < x <= 1)
        check_choice("scaling", scaling, ("linear", "ntk"))
        check_number(
            "scaling_factor",
            scaling_factor,
            "a finite number of at least 1",
            lambda x: 1 <= x < math.inf,
        )
        super().__init__(**kwargs)
        self.max_wavelength = float(max_wavelength)
        self.fraction = fraction
        self.scaling = scaling
        self.scaling_factor = float(scaling_factor)

    def build(self, query_shape: Shape, value_shape: Shape) -> None:
        self._rotated_depth(query_shape[-1])
        self.built = True

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        depth, base = self._rotated_depth(x.shape[-1]), self.max_wavelength
        if self.scaling == "ntk" and depth > 2:
            base *= self.scaling_factor ** (depth / (depth - 2))
        frequencies = base ** (-np.arange(0, depth, 2) / depth)
        if self.scaling == "linear":
            frequencies = frequencies / self.scaling_factor
        # Angles, sines and cosines are in float32 at least.
        dtype = accumulation_dtype(x.dtype)
        angles = ops.cast(positions, dtype)[:, None, :, None]
        angles = angles * ops.convert_to_tensor(frequencies, dtype)
        cosines, sines = (ops.cast(f(angles), x.dtype) for f in (ops.cos, ops.sin))
        half = depth // 2
        first, second, rest = x[..., :half], x[..., half:depth], x[..., depth:]
        turned = [first * cosines - second * sines, second * cosines + first * sines]
        if depth < x.shape[-1]:
            turned.append(rest)
        return ops.concatenate(turned, axis=-1)

    def _rotated_depth(self, key_dim: Any) -> int:
        """Return the number of features that are rotated."""
        depth = int(self.fraction * key_dim) // 2 * 2
        if not depth:
            raise ValueError(
                "Rotary positions must rotate two features or more of a head. Received:"
                f" key_dim={key_dim}, fraction={self.fraction}"
            )
        if depth == 2 and self.scaling == "ntk" and self.scaling_factor > 1:
            raise ValueError(
                "scaling='ntk' leaves the first pair of features as it is, so four "
                f"features or more must be rotated. Received: key_dim={key_dim}, "
                f"fraction={self.fraction}"
            )
        return depth

    def get_config(self) -> Config:
        config = config_of(self, "max_wavelength fraction scaling scaling_factor")
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package="keras_attention")
class AlibiPositions(RelativePositions):
    """ALiBi: the scores of each head decrease linearly with the distance.

        scores[n, t, s] = scale * query[n, t] . key[n, s] - slope[n] * |s - t|

    The slopes are constant, `2 ^ (-8 n / N)` for N heads, n from 1, if N is a power of
    two; [Press et al.](https://github.com/ofirpress/attention_with_linear_biases)
    define them for other numbers. The paper has causal attention; without it, the bias
    is symmetric. `keras_hub.layers.AlibiBias` adds `slope[n] * (s - S + 1)` for all
    queries. In causal attention, the difference is constant for each query, so the
    weights are the same.

    Example:

    >>> attention = SelfAttention(8, 64, causal=True, positions="alibi")
    >>> tuple(attention(np.zeros((2, 11, 512), "float32")).shape)
    (2, 11, 512)

    Reference:
        [Press et al., 2022](https://arxiv.org/abs/2108.12409), section 3.
    """

    def bias(self, query: Tensor, offsets: Tensor) -> Tensor:
        dtype, num_heads = accumulation_dtype(query.dtype), query.shape[1]
        power = 2 ** int(math.log2(num_heads))
        slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
        # Other numbers of heads: every second slope of twice the power of two below.
        between = 2.0 ** (-8 * np.arange(1, 2 * power + 1, 2) / (2 * power))
        slopes = np.concatenate([slopes, between[: num_heads - power]])
        distances = ops.cast(ops.abs(offsets), dtype)[:, None]
        return -ops.convert_to_tensor(slopes[:, None, None], dtype) * distances


@keras.saving.register_keras_serializable(package="keras_attention")
class T5Positions(RelativePositions):
    """Relative positions of T5: a learned bias for each head and range of offsets.

        scores[n, t, s] = scale * query[n, t] . key[n, s] + bias[bucket(s - t), n]

    Small distances have a bucket each, larger ones share buckets whose ranges grow in
    proportion to the distance, and all distances from `max_distance` share the last
    one. For the attention of T5 itself, use `SelfAttention(..., scale=1.0,
    use_bias=False)`, and pass the same `T5Positions` to all layers.

    Args:
        num_buckets: Positive integer, at least 2, or 4 if `bidirectional`.
        max_distance: Positive integer, the distance from which on all share the last
            bucket. It must exceed the number of distances that have a bucket each,
            `num_buckets // 2` (`num_buckets // 4` if `bidirectional`).
        bidirectional: Whether half of the buckets are for keys after the query. The
            name `"t5"` stands for `True`, or for `False` in causal attention.
        bias_initializer, bias_regularizer, bias_constraint: For the table
            `(num_buckets, N)`.

    Raises:
        ValueError: If an argument does not fit.

    Example:

    >>> attention = SelfAttention(8, 64, scale=1.0, positions=T5Positions())
    >>> tuple(attention(np.zeros((2, 11, 512), "float32")).shape)
    (2, 11, 512)

    Reference:
        [Raffel et al., 2020](https://arxiv.org/abs/1910.10683), section 2.1.
    """

    def __init__(
        self,
        num_buckets: int = 32,
        max_distance: int = 128,
        *,
        bidirectional: bool = True,
        **kwargs: Any,
    ) -> None:
        check_boolean("bidirectional", bidirectional)
        num_buckets = check_positive_integer("num_buckets", num_buckets)
        max_distance = check_positive_integer("max_distance", max_distance)
        exact = num_buckets // (4 if bidirectional else 2)
        if not 0 < exact < max_distance:
            raise ValueError(
                "num_buckets must be at least 2, or 4 if bidirectional, and "
                f"max_distance above {exact}, the number of distances that have a "
                "bucket each. "
                f"Received: num_buckets={num_buckets}, max_distance={max_distance}, "
                f"bidirectional={bidirectional}"
            )
        options = pop_weight_options(kwargs, bias="zeros")
        super().__init__(**kwargs)
        self.options = options
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def build(self, query_shape: Shape, value_shape: Shape) -> None:
        self.biases = self.add_weight(
            name="biases",
            shape=(self.num_buckets, query_shape[1]),
            **weight_arguments(self.options, "bias"),
        )
        self.built = True

    def check_shared(self, *shapes: Shape) -> None:
        query_shape, _ = shapes
        if query_shape[1] != self.biases.shape[1]:
            raise ValueError(
                "layers that share T5Positions must have the same number of heads, "
                f"{self.biases.shape[1]}. Received: {query_shape[1]}"
            )

    def bias(self, query: Tensor, offsets: Tensor) -> Tensor:
        buckets = buckets_of_offsets(
            self.num_buckets, self.max_distance, self.bidirectional
        )
        # On JAX with bfloat16 by default, integers of NumPy would become floats.
        buckets = ops.convert_to_tensor(buckets, dtype="int32")
        by_offset = ops.take(self.biases, buckets, axis=0)
        rows = clip_offsets(offsets, self.max_distance)
        return ops.transpose(ops.take(by_offset, rows, axis=0), (0, 3, 1, 2))

    def get_config(self) -> Config:
        config = config_of(self, "num_buckets max_distance bidirectional")
        return {**super().get_config(), **config, **serialize_options(self.options)}


@keras.saving.register_keras_serializable(package="keras_attention")
class ShawPositions(RelativePositions):
    """Relative positions of Shaw et al.: learned vectors for keys and for values.

        offset          = clip(s - t, -max_distance, max_distance)
        scores[n, t, s] = scale * query[n, t] . (key[n, s] + of_keys[offset])
        head[n, t]      = sum over s of weights[n, t, s]
                          * (value[n, s] + of_values[offset])

    The vectors are shared by all heads.

    Args:
        max_distance: Positive integer K; larger distances in one direction share a
            vector.
        use_values: Whether there are vectors for the values. They need the weights, so
            fused attention is not available.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: For the
            tables `(2 K + 1, D)` and `(2 K + 1, V)`.

    Raises:
        ValueError: If an argument does not fit.

    Example:

    >>> attention = SelfAttention(8, 64, positions=ShawPositions(max_distance=4))
    >>> tuple(attention(np.zeros((2, 11, 512), "float32")).shape)
    (2, 11, 512)

    Reference:
        [Shaw et al., 2018](https://arxiv.org/abs/1803.02155), sections 3.1 and 3.2.
    """

    def __init__(
        self,
        max_distance: int = 16,
        *,
        use_values: bool = True,
        **kwargs: Any,
    ) -> None:
        check_boolean("use_values", use_values)
        options = pop_weight_options(kwargs, embeddings="glorot_uniform")
        super().__init__(**kwargs)
        self.options = options
        self.max_distance = check_positive_integer("max_distance", max_distance)
        self.use_values = use_values
        self.has_value_term = use_values

    def build(self, query_shape: Shape, value_shape: Shape) -> None:
        self.of_keys = self._table("of_keys", query_shape[-1])
        if self.use_values:
            self.of_values = self._table("of_values", value_shape[-1])
        self.built = True

    def check_shared(self, *shapes: Shape) -> None:
        query_shape, value_shape = shapes
        shared = [self.of_keys, *([self.of_values] if self.use_values else [])]
        expected = [table.shape[-1] for table in shared]
        depths = [query_shape[-1], value_shape[-1]][: len(expected)]
        if depths != expected:
            raise ValueError(
                "layers that share ShawPositions must have the same depth of keys "
                f"and values in a head, {expected}. Received: {depths}"
            )

    def _table(self, name: str, depth: Any) -> Tensor:
        return self.add_weight(
            name=name,
            shape=(2 * self.max_distance + 1, depth),
            **weight_arguments(self.options, "embeddings"),
        )

    def bias(self, query: Tensor, offsets: Tensor) -> Tensor:
        products = ops.matmul(query, ops.transpose(self.of_keys))
        rows = clip_offsets(offsets, self.max_distance)[:, None]
        return ops.take_along_axis(products, rows, axis=-1)

    def value_term(self, weights: Tensor, offsets: Tensor) -> Tensor | None:
        if not self.use_values:
            return None
        rows = clip_offsets(offsets, self.max_distance)
        is_row = ops.one_hot(rows, 2 * self.max_distance + 1, dtype=weights.dtype)
        # The sum of the weights of each row of the table, for every query.
        sums = ops.matmul(ops.transpose(weights, (0, 2, 1, 3)), is_row)
        return ops.matmul(ops.transpose(sums, (0, 2, 1, 3)), self.of_values)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            **config_of(self, "max_distance use_values"),
            **serialize_options(self.options),
        }


POSITIONS = {
    "rotary": RotaryPositions,
    "alibi": AlibiPositions,
    "t5": T5Positions,
    "shaw": ShawPositions,
}


def get_positions(
    identifier: Any, causal: bool, dtype: Dtype
) -> RelativePositions | None:
    """Return the `RelativePositions` for a name, a config, a layer or `None`.

    Args:
        causal: Whether the attention is causal.
        dtype: Dtype policy of the layer.
    """
    if identifier is None:
        return None
    options: dict[str, Any] = (
        {"bidirectional": not causal} if str(identifier) == "t5" else {}
    )
    example = "relative positions such as RotaryPositions()"
    kinds = POSITIONS, RelativePositions
    return get_part("positions", identifier, *kinds, example, dtype, **options)


def positions_of_steps(
    mask: Tensor, length: Any, start: Tensor | None = None
) -> Tensor:
    """Return the positions of the steps of a sequence, int32 `(B, S)` or `(1, S)`.

    Masked steps do not count: a step has the position that it would have without them.

    Args:
        mask: Boolean `(B, S)`; `None` if all steps are valid.
        length: S.
        start: Position of the first step of each row, int32 `(B,)`; zero if `None`.
    """
    if mask is None:
        positions = index_range(length)[None]
    else:
        counted = ops.cumsum(ops.cast(mask, "int32"), axis=1)
        positions = ops.cast(counted, "int32") - 1
    return positions if start is None else start[:, None] + positions


def buckets_of_offsets(
    num_buckets: int, max_distance: int, bidirectional: bool
) -> np.ndarray:
    """Return the bucket of each offset from `-max_distance` to `max_distance`.

    Half of the buckets of one direction hold one distance each; the others hold ranges
    that grow in proportion to the distance, up to `max_distance`. If `bidirectional`,
    offsets above zero have buckets of their own; otherwise they are in bucket 0.

    Returns:
        NumPy array `(2 * max_distance + 1,)` of int32.
    """
    offsets = np.arange(-max_distance, max_distance + 1)
    ahead = np.zeros_like(offsets)
    if bidirectional:
        num_buckets //= 2
        ahead = num_buckets * (offsets > 0)
        distances = np.abs(offsets)
    else:
        distances = -np.minimum(offsets, 0)
    exact = num_buckets // 2
    # In float32, as in the published models, because rounding may move a boundary.
    logs = np.log(np.maximum(distances, 1).astype("float32") / np.float32(exact))
    logs = logs / np.float32(math.log(max_distance / exact)) * (num_buckets - exact)
    ranges = np.minimum(exact + logs.astype("int32"), num_buckets - 1)
    return (ahead + np.where(distances < exact, distances, ranges)).astype("int32")


def clip_offsets(offsets: Tensor, max_distance: int) -> Tensor:
    """Return the row of each offset in a table for `-max_distance..max_distance`."""
    return ops.clip(offsets, -max_distance, max_distance) + max_distance
