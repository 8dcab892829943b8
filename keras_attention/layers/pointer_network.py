"""A pointer network: attention whose weights are the output.

Shapes: B batch, T queries, S positions.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_attention.composite import CompositeLayer
from keras_attention.layers.attention import BaseAttention
from keras_attention.layers.base import as_queries
from keras_attention.layers.base import check_calling_form
from keras_attention.layers.base import freeze_new_weights
from keras_attention.layers.base import standardize_attention_mask
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.ops.copying import log_of_weights
from keras_attention.serialization import serialize_part
from keras_attention.typing import Config
from keras_attention.typing import Shape
from keras_attention.typing import Tensor
from keras_attention.typing import Tensors
from keras_attention.validation import check_mask
from keras_attention.validation import check_rank


@keras.saving.register_keras_serializable(package="keras_attention")
class PointerNetwork(CompositeLayer):
    """Pointer network: log-probabilities of the positions of a source.

        log_probs[t, s] = log weights[t, s],  the weights of any attention

    The output of a pointer network is a position of its own source, such as the next
    number of a sorted sequence or the answer in a text, so the number of classes grows
    with the source. With `AdditiveAttention`, this is the network of the paper:

        log_probs[t] = log softmax over s of v . tanh(W_1 value[s] + W_2 query[t])

    The log-probability of a masked position is -1e9; an `attention_mask` can exclude
    positions that have been chosen before. A weight that underflows to zero has -1e9,
    too; in float16, this happens below 6e-8. A query with no valid position has -1e9
    everywhere.

    Args:
        attention: Attention layer of this package that takes a query and a value, such
            as `AdditiveAttention(64)`. The weights of a `SelfAttention` are the mean
            over its heads.

    Call arguments:
        query: States of the decoder, `(B, T, depth)`, or one query `(B, depth)`.
        value: Source to point into, `(B, S, depth)`; or the dict that
            `pointer.memory(value, value_mask=...)` returned, in which the keys are
            projected once for all steps of a search. With a dict, the T queries are
            independent of each other, such as hypotheses.
        query_mask: Boolean `(B, [T])`. Masked queries have -1e9 everywhere.
        value_mask: Boolean `(B, S)`; only if `value` is a tensor.
        attention_mask: Boolean `(B, [T,] S)`.
        training: Whether the layer trains.

    Returns:
        Log-probabilities `(B, [T,] S)`, in float32 at least; see `PointerCrossentropy`
        for their loss.

    Raises:
        ValueError: If `attention` is no attention layer of this package, or a shape
            does not fit; if `value` is a dict, and the attention has a state or depends
            on the position of the query, or `value_mask` is given.

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
        if not isinstance(attention, BaseAttention):
            raise ValueError(
                "attention must be an attention layer of this package, such as "
                f"AdditiveAttention(64). Received: {attention!r}"
            )
        self.attention = attention
        self.supports_masking = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        check_calling_form(args, kwargs)
        return super().__call__(*args, **kwargs)

    def build(self, query_shape: Shape, value_shape: Any) -> None:
        # The memory layer that returned a dict is built already.
        if isinstance(value_shape, Mapping):
            if not self.attention.step.built:
                queries_shape = (query_shape[0], None, query_shape[-1])
                self.attention.step.build(queries_shape, value_shape)
        elif not self.attention.built:
            self.attention.build(query_shape, value_shape)
        freeze_new_weights(self)
        self.built = True

    @property
    def memory(self) -> Any:
        """The memory of the attention: projects the keys of a source, once."""
        return self.attention.memory

    def call(
        self,
        query: Tensor,
        value: Tensor | Tensors,
        *,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        check_rank("query", query.shape, (2, 3), "(batch, [queries,] depth)")
        masks = {"query_mask": query_mask, "attention_mask": attention_mask}
        if isinstance(value, Mapping):
            weights = self._step(query, value, value_mask, **masks, training=training)
        else:
            masks["value_mask"] = value_mask
            masks = {name: mask for name, mask in masks.items() if mask is not None}
            _, weights = self.attention(
                query, value, **masks, return_attention_scores=True, training=training
            )
            if len(weights.shape) > len(query.shape):
                weights = ops.mean(weights, axis=1)
        return log_of_weights(weights)

    def _step(self, query, memory, value_mask, *, query_mask, attention_mask, training):
        """Return the weights `(B, [T,] S)` of independent queries to a memory."""
        step = self.attention.step
        if step.state_names:
            raise ValueError(
                "value must be a tensor for an attention with a state, which one step "
                f"passes to the next. Received: a dict and {self.attention!r}"
            )
        if isinstance(self.attention, MultiHeadAttention):
            self.attention.check_independent_queries("with a dict as value")
        # For a dict `value`, Keras passes a dict of implicit masks.
        if value_mask is not None and not isinstance(value_mask, Mapping):
            raise ValueError(
                "value_mask belongs to the memory: pointer.memory(value, "
                "value_mask=...). Received: value_mask with a dict"
            )
        check_mask("query_mask", query_mask, query.shape[:-1])
        mask = standardize_attention_mask(
            attention_mask, query.shape, memory["values"].shape[-2]
        )
        single = len(query.shape) == 2
        if single:
            query, query_mask = as_queries(query, query_mask)
        outputs, _ = step(
            query, memory, query_mask=query_mask, mask=mask, training=training
        )
        weights = outputs["weights"]
        return weights[:, 0] if single else weights

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "attention": serialize_part(self.attention),
        }
