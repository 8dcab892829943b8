"""Attention layers composed of parts: a score, a weighting and a window."""

from typing import Any

import keras
from keras import ops
from keras import tree

from keras_attention import loops
from keras_attention.layers.base import BaseAttention
from keras_attention.layers.base import as_queries
from keras_attention.layers.base import check_shapes
from keras_attention.layers.base import standardize_attention_mask
from keras_attention.layers.scores import Score
from keras_attention.layers.single_head import AttentionMemory
from keras_attention.layers.single_head import AttentionStep
from keras_attention.layers.weighting import Weighting
from keras_attention.layers.windows import LocalWindow
from keras_attention.serialization import serialize_part
from keras_attention.serialization import serialize_seed
from keras_attention.typing import Config
from keras_attention.typing import Nested
from keras_attention.typing import Seed
from keras_attention.typing import Shape
from keras_attention.typing import Tensor
from keras_attention.validation import check_mask


class ComposedAttention(BaseAttention):
    """Base of the attention layers that are composed of parts.

    Subclasses choose the parts; see `Attention` for the arguments and for the call.
    """

    def __init__(
        self,
        score: Score,
        key_projection: str | keras.layers.Layer | None,
        window: LocalWindow | None,
        /,
        *,
        weighting: str | Weighting,
        causal: bool,
        dropout: float,
        seed: Seed,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        step = AttentionStep(
            score,
            weighting,
            window,
            causal=causal,
            dropout=dropout,
            seed=seed,
            dtype=self.dtype_policy,
            name="step",
        )
        if key_projection == "score":
            key_projection = step.score.make_key_projection()
        # Assigned before the step, so that the weights of the memory come first.
        self.memory = AttentionMemory(
            key_projection, dtype=self.dtype_policy, name="memory"
        )
        self.step = step

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        return_details: bool = False,
        training: bool | None = None,
    ) -> Nested:
        key_shape = None if key is None else key.shape
        ordered = self.step.causal or use_causal_mask
        check_shapes(query.shape, value.shape, key_shape, ordered=ordered)
        mask = attention_mask
        if query_mask is not None:
            check_mask("query_mask", query_mask, query.shape[:-1])
        if mask is not None:
            mask = standardize_attention_mask(mask, query.shape, value.shape[1])
        single = len(query.shape) == 2
        if single:
            query, query_mask = as_queries(query, query_mask)
        memory = self.memory(value, key, value_mask=value_mask, key_mask=key_mask)
        sequence = {"query": query}
        if query_mask is not None:
            sequence["query_mask"] = ops.cast(query_mask, "bool")
        if mask is not None:
            shape = (*ops.shape(query)[:2], ops.shape(value)[1])
            sequence["mask"] = ops.broadcast_to(ops.cast(mask, "bool"), shape)
        run = self._one_by_one if self.step.sequential else self._all_at_once
        return_weights = return_attention_scores or return_details
        outputs = run(sequence, memory, use_causal_mask, return_weights, training)
        if single:
            outputs = tree.map_structure(lambda x: x[:, 0], outputs)
        if return_details:
            return outputs
        context = outputs["context"]
        return (context, outputs["weights"]) if return_attention_scores else context

    def _all_at_once(self, sequence, memory, causal, return_weights, training):
        """Run one step for all queries of a sequence together."""
        queries = ops.shape(sequence["query"])[1]
        noise = {}
        if training:
            noise = self.step.draw(memory, queries)
            noise = tree.map_structure(lambda x: ops.swapaxes(x[:, :, 0], 0, 1), noise)
        outputs, _ = self.step(
            memory=memory,
            state=self.step.state_of_all(memory, queries, causal=causal),
            noise=noise,
            return_weights=return_weights,
            training=training,
            **sequence,
        )
        return outputs

    def _one_by_one(self, sequence, memory, causal, return_weights, training):
        """Run the steps of the queries of a sequence one after the other."""
        queries = ops.shape(sequence["query"])[1]
        inputs = {
            name: ops.swapaxes(x, 0, 1)[:, :, None] for name, x in sequence.items()
        }
        inputs["noise"] = self.step.draw(memory, queries) if training else {}

        def step(state, inputs):
            outputs, state = self.step(
                memory=memory,
                state=state,
                return_weights=return_weights,
                training=training,
                **inputs,
            )
            return state, outputs

        state = self.step.initial_state(memory, causal=causal)
        _, outputs = loops.scan(step, state, inputs)
        return tree.map_structure(lambda x: ops.swapaxes(x[:, :, 0], 0, 1), outputs)

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Any:
        return (*query_shape[:-1], value_shape[-1])

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        *,
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        return_details: bool = False,
        **kwargs: Any,
    ) -> Any:
        key_shape = None if key is None else key.shape
        ordered = self.step.causal or use_causal_mask
        check_shapes(query.shape, value.shape, key_shape, ordered=ordered)
        if return_details:
            kwargs.update(use_causal_mask=use_causal_mask, return_details=True)
            return keras.Operation.compute_output_spec(
                self, query, value, key, **kwargs
            )
        context = keras.KerasTensor(
            self.compute_output_shape(query.shape, value.shape), self.compute_dtype
        )
        if not return_attention_scores:
            return context
        weights_shape = (*query.shape[:-1], value.shape[1])
        return context, keras.KerasTensor(weights_shape, self.compute_dtype)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "weighting": serialize_part(self.step.weighting),
            "causal": self.step.causal,
            "dropout": self.step.weight_dropout.rate,
            "seed": serialize_seed(self.step.weight_dropout.seed),
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class Attention(ComposedAttention):
    """Attention composed of a score, a weighting and a window.

    `memory(value, ...)` projects the keys once; `step(query, memory)` then attends with
    any number of queries, as a decoder does. Calling the layer does both.

    Masking and call: see `AdditiveAttention`.

    Args:
        score: Part that scores queries against keys, such as `DotScore()` or a
            subclass of `Score`.
        key_projection: Layer applied to the keys, once: `"score"` for the one that the
            score creates, if any, or `None` to leave the keys unchanged.
        weighting: How scores become weights: `"softmax"`, `"sparsemax"`, `"entmax"`,
            `"hard"`, `"monotonic"`, `"mocha"`, or a `Weighting`.
        window: Positions that a query sees: `None` for all, or a window such as
            `LocalPredictiveWindow(half_width=10)`.
        causal, dropout, seed: See `AdditiveAttention`.

    Raises:
        ValueError: If the parts cannot be combined, or if a shape does not fit.

    Example:

    >>> attention = Attention(DotScore(scaled=True), weighting="sparsemax")
    >>> query, value = np.ones((2, 3, 8), "float32"), np.ones((2, 5, 8), "float32")
    >>> tuple(attention(query, value).shape)
    (2, 3, 8)
    """

    def __init__(
        self,
        score: Score,
        key_projection: str | keras.layers.Layer | None = "score",
        *,
        weighting: str | Weighting = "softmax",
        window: LocalWindow | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            score,
            key_projection,
            window,
            weighting=weighting,
            causal=causal,
            dropout=dropout,
            seed=seed,
            **kwargs,
        )

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "score": serialize_part(self.step.score),
            "key_projection": serialize_part(self.memory.key_projection),
            "window": serialize_part(self.step.window),
        }
