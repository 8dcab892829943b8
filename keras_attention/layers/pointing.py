"""Pointing and copying: attention weights as outputs of a model.

Shapes: B batch, T queries or steps, S positions, N vocabulary size, X extra ids.
"""

from typing import Any

import keras
from keras import ops

from keras_attention.backends import index_range, project_rows
from keras_attention.layers import components
from keras_attention.layers.attention import BaseAttention, check_takes_value
from keras_attention.ops.log_probs import IMPOSSIBLE
from keras_attention.ops.masks import combine_masks
from keras_attention.ops.precision import (
    accumulation_dtype,
    at_least_float32,
    log_floor,
)
from keras_attention.serialization import CompositeLayer, config_of
from keras_attention.typing import Config, Shape, Tensor
from keras_attention.validation import (
    MAX_SIZE,
    CheckedCall,
    as_integer,
    check_mask,
    check_rank,
    check_shape,
)


@keras.saving.register_keras_serializable(package="keras_attention")
class PointerNetwork(CheckedCall, CompositeLayer):
    """Pointer network: log-probabilities of the positions of a source.

        log_probs[t, s] = log weights[t, s],  the weights of any attention

    The output of a pointer network is a position of its own source, such as the next
    number of a sorted sequence or the answer in a text. So the number of classes grows
    with the source. With `AdditiveAttention`, this is the network of the paper:

        log_probs[t] = log softmax over s of v . tanh(W_1 value[s] + W_2 query[t])

    The log-probability of a masked position is -1e9; an `attention_mask` can exclude
    positions that have been chosen before. A weight that underflows to zero has -1e9,
    too; in float16, this happens below 6e-8. A query with no valid position has -1e9
    everywhere.

    Args:
        attention: Attention layer of this package that takes a query and a value, such
            as `AdditiveAttention(64)`. The weights of a `MultiHeadAttention` are the
            mean over its heads.

    Call arguments:
        query: States of the decoder, `(B, T, depth)`, or one query `(B, depth)`.
        value: Source to point into, `(B, S, depth)`.
        query_mask: Boolean `(B, [T])`. Masked queries have -1e9 everywhere.
        value_mask: Boolean `(B, S)`.
        attention_mask: Boolean `(B, [T,] S)`.
        training: Whether the layer trains.

    Returns:
        Log-probabilities `(B, [T,] S)`, in float32 at least; see `PointerCrossentropy`
        for their loss.

    Raises:
        ValueError: If `attention` is no attention layer of this package, or a shape
            does not fit.

    Example:

    >>> pointer = PointerNetwork(AdditiveAttention(16))
    >>> states = np.zeros((2, 5, 32), "float32")
    >>> source = np.zeros((2, 7, 24), "float32")
    >>> log_probs = pointer(states, source)
    >>> tuple(log_probs.shape), round(float(log_probs[0, 0, 0]), 4)  # -ln 7
    ((2, 5, 7), -1.9459)

    Reference:
        [Vinyals et al., 2015](https://arxiv.org/abs/1506.03134), section 2.3.
    """

    def __init__(self, attention: BaseAttention, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        check_takes_value(attention)
        self.attention = attention
        self.supports_masking = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        components.check_calling_form(self, args, kwargs)
        return super().__call__(*args, **kwargs)

    def build(self, query_shape: Shape, value_shape: Shape) -> None:
        if not self.attention.built:
            self.attention.build(query_shape, value_shape)
        components.freeze_new_weights(self)
        self.built = True

    def call(
        self,
        query: Tensor,
        value: Tensor,
        *,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        check_rank("query", query.shape, (2, 3), "(batch, [queries,] depth)")
        _, weights = self.attention(
            query,
            value,
            query_mask=query_mask,
            value_mask=value_mask,
            attention_mask=attention_mask,
            return_attention_scores=True,
            training=training,
        )
        if len(weights.shape) > len(query.shape):
            weights = ops.mean(weights, axis=1)
        # In float16, the gradient of a logarithm overflows earlier.
        return _log(at_least_float32(weights), log_floor(weights.dtype))

    def get_config(self) -> Config:
        return {**super().get_config(), **config_of(self, "attention")}


@keras.saving.register_keras_serializable(package="keras_attention")
class PointerGenerator(CheckedCall, CompositeLayer):
    """Decoder readout that generates a word or copies one from the source.

    The switch `p_gen` divides the probability between the vocabulary and the source:

        p_gen[t] = sigmoid(w_context . context[t] + w_state . state[t]
                           + w_inputs . inputs[t] + b)
        p[t, n]  = p_gen[t] * softmax(logits[t])[n]
                   + (1 - p_gen[t]) * sum of weights[t, s] over s with source_ids[s] = n

    The weights are those of any attention of the decoder to the source. Words of the
    source that the vocabulary lacks have the extra ids N to N + X - 1, numbered from N
    in every source, so shapes never change. In the targets, such a word has the extra
    id that it has in the source. Before the embedding, replace extra ids by the unknown
    word: `ops.where(token_ids < N, token_ids, unknown)`. After a search, replace them
    by the words of the source.

    Weights are divided by their sum, so local attention, whose weights do not sum to
    one, gives probabilities, too. Where no position can be copied, the vocabulary has
    the whole probability, whatever `p_gen` is. The arithmetic is in float32 at least,
    whatever the dtype policy.

    Against repetition, use an attention with `coverage=True`, and `coverage_loss`.

    Args:
        extra_ids: Number X of extra ids, not negative: the maximum number of different
            unknown words of a source.

    Call arguments:
        logits: Unnormalised log-probabilities of the vocabulary, `(B, T, N)`, or
            `(B, N)` for a single step. For K hypotheses of a search, T is K.
        weights: Attention weights, `(B, [T,] S)`.
        source_ids: Integers `(B, S)`, the tokens of the source, with extra ids.
            Positions of ids outside of 0 to N + X - 1 are never copied.
        state: State of the decoder, or another input of the switch, `(B, [T,] depth)`.
        context: Context, `(B, [T,] depth)`; optional.
        inputs: Embedding of the previous word, `(B, [T,] depth)`; optional.
        targets: Integers `(B, [T])`: the layer returns the log-probabilities of these
            tokens alone, which takes less memory in training.
        source_mask: Boolean `(B, S)`, `False` for positions that are never copied.
        return_switch: Whether to return `p_gen`, too.

    Returns:
        log_probs: `(B, [T,] N + X)`, or `(B, [T])` with `targets`; float32 at least. An
            extra id without weight has -1e9. Log-probabilities are also logits, so they
            can be sampled from; for their loss, see `PointerCrossentropy`.
        p_gen: `(B, [T])`; only if `return_switch` is `True`.

    Raises:
        ValueError: If `extra_ids` is not an integer of at least 0, or a shape does not
            fit.

    Example:

    The first two words of the source are unknown; the vocabulary has five:

    >>> readout = PointerGenerator(extra_ids=2)
    >>> source_ids = np.array([[5, 6, 3]])
    >>> weights = np.array([[0.5, 0.25, 0.25]])
    >>> log_probs = readout(np.zeros((1, 5)), weights, source_ids, np.zeros((1, 8)))
    >>> print(np.exp(keras.ops.convert_to_numpy(log_probs[0])).round(3))
    [0.1   0.1   0.1   0.225 0.1   0.25  0.125]

    Reference:
        [See et al., 2017](https://arxiv.org/abs/1704.04368), section 2.2, equations 8
        and 9.
    """

    def __init__(self, extra_ids: int, **kwargs: Any) -> None:
        # Logits in float32 keep their precision.
        super().__init__(autocast=False, **kwargs)
        self.extra_ids = as_integer(extra_ids)
        if self.extra_ids is None:
            raise ValueError(f"extra_ids must be an integer. Received: {extra_ids!r}")
        if not 0 <= self.extra_ids <= MAX_SIZE:
            bound = f"at most {MAX_SIZE:,}" if self.extra_ids > 0 else "at least 0"
            raise ValueError(f"extra_ids must be {bound}. Received: {extra_ids}")
        self.switch = keras.layers.Dense(1, dtype=self.dtype_policy, name="switch")
        self.supports_masking = True

    def build(
        self,
        logits_shape: Shape,
        weights_shape: Shape,
        source_ids_shape: Shape,
        state_shape: Shape,
        context_shape: Shape | None = None,
        inputs_shape: Shape | None = None,
    ) -> None:
        shapes: list[Any] = [state_shape, context_shape, inputs_shape]
        depth = sum(shape[-1] for shape in shapes if shape is not None)
        if not self.switch.built:
            self.switch.build((None, depth))
        components.freeze_new_weights(self)
        self.built = True

    def call(
        self,
        logits: Tensor,
        weights: Tensor,
        source_ids: Tensor,
        state: Tensor,
        context: Tensor | None = None,
        inputs: Tensor | None = None,
        *,
        targets: Tensor | None = None,
        source_mask: Tensor | None = None,
        return_switch: bool = False,
    ) -> Any:
        features = [x for x in (state, context, inputs) if x is not None]
        _check(logits, weights, source_ids, features, targets, source_mask)
        joined = [ops.cast(x, self.compute_dtype) for x in features]
        joined = ops.concatenate(joined, axis=-1) if len(joined) > 1 else joined[0]
        switch = project_rows(self.switch, joined)[..., 0]
        switch = ops.cast(switch, accumulation_dtype(switch.dtype))
        single = len(logits.shape) == 2
        steps = [logits, switch, weights]
        if single:
            steps = [x[:, None] for x in steps]
            targets = None if targets is None else targets[:, None]
        arguments: Any = (*steps, source_ids, self.extra_ids, source_mask)
        if targets is None:
            log_probs = extended_log_probs(*arguments)
        else:
            log_probs = target_log_probs(targets, *arguments)
        log_probs = log_probs[:, 0] if single else log_probs
        return (log_probs, ops.sigmoid(switch)) if return_switch else log_probs

    def get_config(self) -> Config:
        return {**super().get_config(), "extra_ids": self.extra_ids}


def _check(
    logits: Tensor,
    weights: Tensor,
    source_ids: Tensor,
    features: Tensor,
    targets: Tensor,
    source_mask: Tensor,
) -> None:
    """Raise `ValueError` if the shapes of a call do not fit."""
    check_rank("logits", logits.shape, (2, 3), "(batch, [steps,] vocabulary)")
    leading = tuple(logits.shape[:-1])
    check_rank("source_ids", source_ids.shape, (2,), "(batch, positions)")
    check_shape("weights", weights, (*leading, source_ids.shape[-1]))
    check_shape("source_ids", source_ids, (leading[0], weights.shape[-1]))
    for x in features:
        check_shape("state, context and inputs", x, (*leading, None))
    if targets is not None:
        check_shape("targets", targets, leading)
    check_mask("source_mask", source_mask, tuple(source_ids.shape))


def extended_log_probs(
    logits: Tensor,
    switch: Tensor,
    weights: Tensor,
    source_ids: Tensor,
    extra_ids: Tensor,
    source_mask: Tensor | None = None,
) -> Tensor:
    """Mix the vocabulary with the tokens of the source; see `PointerGenerator`.

    Args:
        logits: `(B, T, N)`.
        switch: Logits of `p_gen`, `(B, T)`.
        weights: `(B, T, S)`, not necessarily normalised.
        source_ids: Integers `(B, S)`.
        extra_ids: Number of extra ids, X.
        source_mask: Boolean `(B, S)`, or `None`.

    Returns:
        Log-probabilities `(B, T, N + X)`; `IMPOSSIBLE` for extra ids without weight.
    """
    size = logits.shape[-1] + extra_ids
    source_ids, generate, copy, shares = _mixture(
        logits, switch, weights, source_ids, size, source_mask
    )
    vocabulary = ops.log_softmax(at_least_float32(logits), axis=-1) + generate
    vocabulary = ops.pad(
        vocabulary, [[0, 0], [0, 0], [0, extra_ids]], constant_values=IMPOSSIBLE
    )
    # One segment for every row and id, with the weights of all steps.
    batch, steps = ops.shape(shares)[:2]
    segments = ops.reshape(size * index_range(batch)[:, None] + source_ids, (-1,))
    shares = ops.reshape(ops.swapaxes(shares, 1, 2), (-1, steps))
    copied = ops.segment_sum(shares, segments, num_segments=batch * size)
    copied = ops.swapaxes(ops.reshape(copied, (batch, size, steps)), 1, 2)
    return _log_sum(vocabulary, copy + _log(copied, log_floor(weights.dtype)))


def target_log_probs(
    targets: Tensor,
    logits: Tensor,
    switch: Tensor,
    weights: Tensor,
    source_ids: Tensor,
    extra_ids: Tensor,
    source_mask: Tensor | None = None,
) -> Tensor:
    """Return the log-probabilities of target tokens alone, `(B, T)`.

    Equal to the entries of `extended_log_probs` for the tokens `targets` `(B, T)`, but
    without an array of the size `(B, T, N + X)`. Other tokens are `IMPOSSIBLE`.
    """
    size = logits.shape[-1]
    source_ids, generate, copy, shares = _mixture(
        logits, switch, weights, source_ids, size + extra_ids, source_mask
    )
    logits = at_least_float32(logits)
    targets = ops.cast(targets, "int32")[..., None]
    in_vocabulary = (targets >= 0) & (targets < size)
    chosen = ops.take_along_axis(logits, ops.where(in_vocabulary, targets, 0), axis=-1)
    vocabulary = chosen - ops.logsumexp(logits, axis=-1, keepdims=True)
    vocabulary = ops.where(in_vocabulary, vocabulary + generate, IMPOSSIBLE)
    same = source_ids[:, None, :] == targets
    copied = ops.sum(ops.where(same, shares, 0.0), axis=-1, keepdims=True)
    return _log_sum(vocabulary, copy + _log(copied, log_floor(weights.dtype)))[..., 0]


def _mixture(
    logits: Tensor,
    switch: Tensor,
    weights: Tensor,
    source_ids: Tensor,
    size: Any,
    source_mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return int32 ids, log p_gen and log (1 - p_gen) `(B, T, 1)`, and shares.

    The shares `(B, T, S)` are the weights divided by their sum, without positions of
    ids outside of 0 to `size - 1`. If all weights of a step are zero, its p_gen is one.
    """
    source_ids = ops.cast(source_ids, "int32")
    is_id = ops.logical_and(source_ids >= 0, source_ids < size)
    source_ids = ops.where(is_id, source_ids, 0)
    source_mask = combine_masks(source_mask, is_id)
    dtype = at_least_float32(logits).dtype
    weights, switch = ops.cast(weights, dtype), ops.cast(switch, dtype)[..., None]
    weights = ops.where(source_mask[:, None, :], weights, 0.0)
    total = ops.sum(weights, axis=-1, keepdims=True)
    has_weight = total > 0
    generate = ops.where(has_weight, ops.log_sigmoid(switch), 0.0)
    copy = ops.where(has_weight, ops.log_sigmoid(-switch), IMPOSSIBLE)
    shares = weights / ops.where(has_weight, total, 1.0)
    return source_ids, generate, copy, shares


def _log(p: Tensor, floor: float) -> Tensor:
    """Return logarithms, `IMPOSSIBLE` for zero, without a gradient if `p < floor`."""
    p = ops.where(p >= floor, p, ops.stop_gradient(p))
    return ops.where(p > 0, ops.log(ops.where(p > 0, p, 1.0)), IMPOSSIBLE)


def _log_sum(x: Tensor, y: Tensor) -> Tensor:
    """Return log(exp(x) + exp(y)), at least `IMPOSSIBLE`."""
    # The gradient of `ops.logaddexp` is one-sided where both are equal.
    largest = ops.stop_gradient(ops.maximum(x, y))
    total = ops.exp(x - largest) + ops.exp(y - largest)
    return ops.maximum(largest + ops.log(total), IMPOSSIBLE)
