"""Attention pooling: a sequence becomes one vector, or a few.

Shapes: B batch, S positions, V value depth, U units, H hops.
"""

import math
import warnings
from typing import Any

import keras
from keras import ops, tree

from keras_attention.backends import project_rows
from keras_attention.layers.components import (
    Weighting,
    build_part,
    check_calling_form,
    freeze_new_weights,
)
from keras_attention.layers.projections import (
    pop_weight_options,
    serialize_options,
    weight_arguments,
)
from keras_attention.layers.weightings import get_weighting
from keras_attention.ops.masks import clear_masked
from keras_attention.serialization import CompositeLayer, config_of
from keras_attention.sizes import mean
from keras_attention.typing import Activation, Config, Nested, Shape, Tensor
from keras_attention.validation import (
    CheckedCall,
    check_boolean,
    check_mask,
    check_not_negative,
    check_positive_integer,
)


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionPooling(CheckedCall, CompositeLayer):
    """Attention pooling of a sequence to one vector, with a learned query.

        scores[s] = scale . tanh(W value[s] + bias)
        weights   = weighting(scores) over s, a softmax by default
        pooled    = activation(sum over s of weights[s] * value[s])

    The positions may be words, time steps, the columns of a table, or the steps of a
    1-D convolution. With several hops, each has its own `scale` and its own result.
    `penalty * |A A^T - I|^2`, with the weights `A` `(hops, positions)`, is added to the
    loss of the model, averaged over the batch, so that the hops differ.

    Axes before the positions are kept: `(batch, sentences, words, depth)` becomes
    `(batch, sentences, depth)`. If `value` has an implicit Keras mask, that of the
    output marks the sentences with a valid word; an explicit mask is not passed on. A
    grid `(batch, height, width, depth)` becomes `(batch, height, depth)`; for one
    vector for the whole grid, `keras.layers.Reshape((-1, depth))` comes before the
    pooling. A square grid without a mask warns of this.

    Masking: `True` means attend. A masked position weighs exactly zero, whatever is
    stored there. A sequence with no valid position gives zeros (before `activation`).

    Args:
        units: Depth U of the hidden layer, or `None` for `tanh(value[s])`, without
            `W` and bias.
        hops: Number H of vectors per sequence.
        penalty: Weight of the penalty on hops with similar weights.
        activation: Activation of the result, such as `"tanh"`.
        weighting: How scores become weights: `"softmax"`, `"sparsemax"`, `"entmax"`,
            `"hard"`, or a `Weighting` such as `HardWeighting()`.
        use_bias: Whether the hidden layer has a bias.
        kernel_initializer, kernel_regularizer, kernel_constraint: For `W` and `scale`.
        bias_initializer, bias_regularizer, bias_constraint: For the bias.

    Call arguments:
        value: Tensor of shape `(batch, ..., value_length, value_dim)`.
        value_mask: Boolean `(batch, ..., value_length)`; the Keras mask of `value` if
            omitted. `mask` is an alias; it wins, because Keras may fill `value_mask`
            with an implicit mask.
        return_attention_scores: Whether to return the weights, too.
        return_details: Whether to return a dict instead: `"context"`, `"weights"`, and
            the additional outputs of the weighting.

    Returns:
        pooled: Tensor `(batch, ..., value_dim)`, or `(batch, ..., hops, value_dim)`
            for more than one hop.
        weights: Tensor `(batch, ..., [hops,] value_length)`; only if
            `return_attention_scores` is `True`.

    Raises:
        ValueError: If an argument is out of range, the weighting is monotonic, or a
            shape does not fit.

    Example:

    >>> pooling = AttentionPooling(units=16)
    >>> pooled, weights = pooling(
    ...     np.ones((2, 7, 8), "float32"), return_attention_scores=True
    ... )
    >>> tuple(pooled.shape), tuple(weights.shape)
    ((2, 8), (2, 7))

    Reference:
        [Yang et al., 2016](https://aclanthology.org/N16-1174), section 2.2;
        [Zhou et al., 2016](https://aclanthology.org/P16-2034), section 3.3, with
        `units=None, activation="tanh"`;
        [Lin et al., 2017](https://arxiv.org/abs/1703.03130), section 2, for the hops.
    """

    def __init__(
        self,
        units: int | None = None,
        *,
        hops: int = 1,
        penalty: float = 0.0,
        activation: Activation = None,
        weighting: str | Weighting = "softmax",
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        options = pop_weight_options(kwargs, kernel="glorot_uniform", bias="zeros")
        super().__init__(**kwargs)
        check_not_negative("penalty", penalty)
        check_boolean("use_bias", use_bias)
        self.units = check_positive_integer("units", units, optional=True)
        self.hops = check_positive_integer("hops", hops)
        self.penalty = penalty
        self.activation = keras.activations.get(activation)
        self.weighting = get_weighting(weighting, self.dtype_policy)
        if self.weighting.sequential:
            raise ValueError(
                "pooling has no sequence of queries, which monotonic attention "
                f"needs. Received: weighting={weighting!r}"
            )
        self.use_bias = use_bias
        self.options = options
        self.supports_masking = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        check_calling_form(self, args, kwargs)
        return super().__call__(*args, **kwargs)

    def build(self, value_shape: Shape) -> None:
        _check_rank(value_shape)
        depth = value_shape[-1]
        self.hidden = None
        if self.units is not None:
            self.hidden = keras.layers.Dense(
                self.units,
                "tanh",
                use_bias=self.use_bias,
                **self.options,
                dtype=self.dtype_policy,
                name="hidden",
            )
            self.hidden.build((None, depth))
        self.scale = self.add_weight(
            name="scale",
            shape=(self.units or depth, self.hops),
            **weight_arguments(self.options, "kernel"),
        )
        build_part(self.weighting, (None, self.hops, None))
        freeze_new_weights(self)
        self.built = True

    def call(
        self,
        value: Tensor,
        *,
        value_mask: Tensor | None = None,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        return_details: bool = False,
        training: bool | None = None,
    ) -> Nested:
        _check_rank(value.shape)
        leading = ops.shape(value)[:-2]
        length = ops.shape(value)[-2]
        valid = value_mask if mask is None else mask
        if valid is None:
            _warn_of_grid(value.shape)
        shape = tuple(value.shape[:-1])
        rows = math.prod(leading)
        value = ops.reshape(value, (rows, length, value.shape[-1]))
        if valid is not None:
            check_mask("value_mask", valid, shape)
            valid = ops.reshape(ops.cast(valid, "bool"), (rows, length))
            value = clear_masked(value, valid)
            valid = valid[:, None]

        hidden = project_rows(self.hidden, value) if self.hidden else ops.tanh(value)
        scores = project_rows(lambda rows: ops.matmul(rows, self.scale), hidden)
        noise = {}
        if training:
            # Hops take the place of steps, so they share the coin of `HardWeighting`.
            noise = self.weighting.draw((self.hops, rows, 1, length))
            noise = tree.map_structure(lambda x: ops.swapaxes(x[:, :, 0], 0, 1), noise)
        outputs, _ = self.weighting(
            ops.swapaxes(scores, 1, 2), valid, {}, noise, training=training
        )
        if self.penalty:
            self.add_loss(self.penalty * mean(_overlap(outputs["weights"])))
        weights = ops.cast(outputs["weights"], self.compute_dtype)
        # On PyTorch, Keras multiplies float64 in float32.
        context = ops.cast(ops.matmul(weights, value), self.compute_dtype)
        outputs = {**outputs, "context": self.activation(context), "weights": weights}

        def restore(x: Tensor) -> Tensor:
            sizes = x.shape[1:] if self.hops > 1 else x.shape[2:]
            sizes = [length if size is None else size for size in sizes]
            return ops.reshape(x, (*leading, *sizes))

        outputs = tree.map_structure(restore, outputs)
        if return_details:
            return outputs
        context, weights = outputs["context"], outputs["weights"]
        return (context, weights) if return_attention_scores else context

    def compute_mask(self, value: Tensor, previous_mask: Nested = None) -> Any:
        if previous_mask is None or len(value.shape) == 3:
            return None
        return ops.any(previous_mask, axis=-1)

    def compute_output_shape(self, value_shape: Shape) -> Any:
        hops = (self.hops,) if self.hops > 1 else ()
        return (*value_shape[:-2], *hops, value_shape[-1])

    def compute_output_spec(
        self,
        value: Tensor,
        *,
        return_attention_scores: bool = False,
        return_details: bool = False,
        **kwargs: Any,
    ) -> Any:
        _check_rank(value.shape)
        if kwargs.get("mask") is None and kwargs.get("value_mask") is None:
            _warn_of_grid(value.shape)
        if return_details:
            return keras.Operation.compute_output_spec(
                self, value, return_details=True, **kwargs
            )
        shape = self.compute_output_shape(value.shape)
        pooled = keras.KerasTensor(shape, self.compute_dtype)
        if not return_attention_scores:
            return pooled
        weights_shape = (*shape[:-1], value.shape[-2])
        return pooled, keras.KerasTensor(weights_shape, self.compute_dtype)

    def get_config(self) -> Config:
        config = config_of(self, "units hops penalty weighting use_bias")
        return {
            **super().get_config(),
            **config,
            "activation": keras.activations.serialize(self.activation),
            **serialize_options(self.options),
        }


def _overlap(weights: Tensor) -> Tensor:
    """Return the squared distance `(B,)` of `A A^T` from the identity."""
    products = ops.matmul(weights, ops.swapaxes(weights, 1, 2))
    identity = ops.eye(products.shape[1], dtype=products.dtype)
    return ops.sum(ops.square(products - identity), axis=(1, 2))


def _check_rank(shape: Shape) -> None:
    if len(shape) < 3:
        raise ValueError(
            "value must have the shape (batch, ..., positions, depth). "
            f"Received: {tuple(shape)}"
        )


def _warn_of_grid(shape: Shape) -> None:
    """Warn of a square grid, for which one vector was probably meant."""
    if len(shape) < 4:
        return
    height, width, depth = shape[-3:]
    if isinstance(width, int) and height == width > 1:
        warnings.warn(
            "AttentionPooling pools each row of a grid: the result has the shape "
            f"{(None, *shape[1:-2], depth)}. For one vector for the whole grid, "
            f"keras.layers.Reshape((-1, {depth})) comes before the pooling. "
            f"Received: value {(None, *shape[1:])}",
            stacklevel=2,
        )
