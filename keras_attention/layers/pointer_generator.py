"""A readout that generates from a vocabulary or copies from the source.

Shapes: B batch, T steps, S source positions, N vocabulary size, X extra ids.
"""

from typing import Any

import keras
from keras import ops

from keras_attention.backends import project_rows
from keras_attention.composite import CompositeLayer
from keras_attention.layers.base import freeze_new_weights
from keras_attention.ops.copying import extended_log_probs
from keras_attention.ops.copying import target_log_probs
from keras_attention.ops.precision import accumulation_dtype
from keras_attention.typing import Config
from keras_attention.typing import Shape
from keras_attention.typing import Tensor
from keras_attention.validation import as_integer
from keras_attention.validation import check_mask
from keras_attention.validation import check_rank
from keras_attention.validation import check_shape


@keras.saving.register_keras_serializable(package="keras_attention")
class PointerGenerator(CompositeLayer):
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
        if self.extra_ids < 0:
            raise ValueError(f"extra_ids must be at least 0. Received: {extra_ids}")
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
        freeze_new_weights(self)
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
        switch = self._switch_logits(features)
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

    def _switch_logits(self, features):
        """Return the logits of `p_gen`, `(B, [T])`."""
        features = [ops.cast(x, self.compute_dtype) for x in features]
        joined = features[0]
        if len(features) > 1:
            joined = ops.concatenate(features, axis=-1)
        switch = project_rows(self.switch, joined)[..., 0]
        return ops.cast(switch, accumulation_dtype(switch.dtype))

    def get_config(self) -> Config:
        return {**super().get_config(), "extra_ids": self.extra_ids}


def _check(logits, weights, source_ids, features, targets, source_mask):
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
