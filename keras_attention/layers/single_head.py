"""Memory and step of an attention composed of parts: window, score, weighting.

Shapes: B batch, T queries, S positions, Q query depth, V value depth.
"""

from typing import Any

import keras
from keras import ops
from keras import tree

from keras_attention.layers.base import BaseMemory
from keras_attention.layers.base import BaseStep
from keras_attention.layers.base import build_part
from keras_attention.layers.base import check_memory
from keras_attention.layers.base import freeze_new_weights
from keras_attention.layers.base import set_dtype_policy
from keras_attention.layers.causal import CausalMask
from keras_attention.layers.coverage import Coverage
from keras_attention.layers.dropout import WeightDropout
from keras_attention.layers.scores import Score
from keras_attention.layers.weighting import Weighting
from keras_attention.layers.weightings import get_weighting
from keras_attention.layers.windows import LocalWindow
from keras_attention.ops.extra_position import append_score
from keras_attention.ops.extra_position import split_weight
from keras_attention.ops.masks import clear_masked
from keras_attention.ops.masks import combine_masks
from keras_attention.ops.masks import where_rows
from keras_attention.ops.windows import spread_window
from keras_attention.serialization import serialize_part
from keras_attention.serialization import serialize_seed
from keras_attention.typing import Config
from keras_attention.typing import Nested
from keras_attention.typing import Seed
from keras_attention.typing import Shape
from keras_attention.typing import Shapes
from keras_attention.typing import Tensor
from keras_attention.typing import Tensors
from keras_attention.validation import check_boolean


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionMemory(BaseMemory):
    """Memory of a single-head attention; see `BaseMemory` for the call.

    Args:
        key_projection: Layer applied to the keys, or `None` to leave them unchanged.
            Unless it is built already, it computes in the dtype of this layer.

    Returns:
        Dict with `"values"` `(B, S, V)`, `"keys"` `(B, S, projected)` and, if there
        is a mask, the boolean `"mask"` `(B, S)`.
    """

    def __init__(
        self, key_projection: keras.layers.Layer | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if key_projection is not None:
            _check_part(
                "key_projection", key_projection, keras.layers.Layer, "Dense(8)"
            )
            set_dtype_policy(key_projection, self.dtype_policy)
        self.key_projection = key_projection

    def build(self, value_shape: Shape, key_shape: Shape | None = None) -> None:
        if self.key_projection is not None and not self.key_projection.built:
            self.key_projection.build(key_shape or value_shape)
        self.built = True

    def project(self, value: Tensor, key: Tensor | None) -> Tensors:
        key = key if self.key_projection is None else self.key_projection(key)
        return {"values": value, "keys": key}

    def shapes(self, value_shape: Shape, key_shape: Shape | None = None) -> Shapes:
        keys_shape = tuple(key_shape or value_shape)
        if self.key_projection is not None:
            keys_shape = tuple(self.key_projection.compute_output_shape(keys_shape))
        return {"values": tuple(value_shape), "keys": keys_shape}

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "key_projection": serialize_part(self.key_projection),
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionStep(BaseStep):
    """Step of an attention composed of parts.

    The window selects positions, the causal mask excludes those after the query, the
    score compares query and keys, the weighting turns scores into weights, the prior of
    the window scales them, coverage sums them up, and dropout drops some of them.
    Coverage and the weighting's own state do not depend on the dropout.

    See `BaseStep` for the other call arguments.

    Args:
        score: Part that is called as `score(query, keys)`; see `Score`.
        weighting: Part that turns scores into weights; see `Weighting`.
        window: Part that selects positions, or `None` for all of them.
        causal: Whether query t sees the positions up to and including t only.
        dropout: Rate at which weights are dropped in training.
        seed: Integer, `keras.random.SeedGenerator`, or `None`; for the dropout.

    Call arguments:
        extra_key: Key of one more position of every query, `(B, T, depth)`. Its weight
            is the output `"extra_weight"` `(B, T)`, which has no dropout; `"weights"`
            and `"context"` contain the positions of the memory only.
    """

    def __init__(
        self,
        score: Score,
        weighting: str | Weighting,
        window: LocalWindow | None,
        *,
        causal: bool,
        dropout: float,
        seed: Seed,
        **kwargs: Any,
    ) -> None:
        # States and noise keep their precision in every dtype policy.
        super().__init__(autocast=False, **kwargs)
        _check_part("score", score, Score, "DotScore()")
        if window is not None:
            _check_part("window", window, LocalWindow, "LocalMonotonicWindow()")
        self.weighting: Weighting = get_weighting(weighting, self.dtype_policy)
        self.score = score = self.weighting.prepare_score(score)
        self.window = window
        self.coverage = (
            Coverage(dtype=self.dtype_policy, name="coverage")
            if score.takes_coverage
            else None
        )
        check_boolean("causal", causal)
        self.causal = causal
        self.causal_mask = CausalMask(dtype=self.dtype_policy, name="causal_mask")
        self.weight_dropout = WeightDropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="weight_dropout"
        )
        _check_parts(self)
        self.reports = self.weighting.reports
        set_dtype_policy(score, self.dtype_policy)
        stateful = []
        for name, part in self.parts.items():
            set_dtype_policy(part, self.dtype_policy)
            self.sequential = self.sequential or part.sequential
            if part.state_names:
                stateful.append(name)
        self._stateful = tuple(stateful)

    @property
    def parts(self) -> dict[str, Any]:
        """The parts other than the score, by the names under which Keras saves them."""
        parts = {
            "window": self.window,
            "causal_mask": self.causal_mask if self.causal else None,
            "weighting": self.weighting,
            "coverage": self.coverage,
        }
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def state_names(self) -> Nested:
        return {
            name: dict.fromkeys(getattr(self, name).state_names)
            for name in self._stateful
        }

    def initial_state(
        self, memory: Tensors, queries: int = 1, *, causal: bool = False
    ) -> Tensors:
        """Return the state before the first step, tensors `(B, queries, ...)`.

        Args:
            causal: Whether the queries are causal even if the layer is not.
        """
        states = {}
        for name in (*self._stateful, "causal_mask") if causal else self._stateful:
            states[name] = getattr(self, name).initial_state(memory, queries)
        return states

    def state_of_all(
        self, memory: Tensors, queries: int, *, causal: bool = False
    ) -> Tensors:
        """Return the states of all queries of a sequence, to handle them at once."""
        states = {}
        for name in (*self._stateful, "causal_mask") if causal else self._stateful:
            states[name] = getattr(self, name).state_of_all(memory, queries)
        return states

    def draw(self, memory: Tensors, steps: int, queries: int = 1) -> Nested:
        batch, length = ops.shape(memory["values"])[:2]
        length = self.window.width if self.window else length
        shape = (steps, batch, queries, length)
        noise = {
            "weighting": self.weighting.draw(shape),
            "dropout": self.weight_dropout.draw(shape),
        }
        return {name: x for name, x in noise.items() if x}

    def build(self, query_shape: Shape, memory_shape: Shapes) -> None:
        check_memory(memory_shape)
        for part, shapes in (
            (self.window, (query_shape, memory_shape)),
            (self.score, (query_shape, memory_shape["keys"])),
            (self.weighting, ((query_shape[0], None, None),)),
            (self.coverage, ((query_shape[0], None, None),)),
        ):
            if part is not None:
                build_part(part, *shapes)
        freeze_new_weights(self)
        self.built = True

    def call(
        self,
        query: Tensor,
        memory: Tensors,
        state: Nested = None,
        *,
        query_mask: Tensor | None = None,
        mask: Tensor | None = None,
        noise: Nested = None,
        extra_key: Tensor | None = None,
        return_weights: bool = True,
        training: bool | None = None,
    ) -> tuple[Tensors, Nested]:
        check_memory(memory)
        query = ops.cast(query, self.compute_dtype)
        if state is None:
            state = self.initial_state(memory, ops.shape(query)[1])
        if noise is None:
            noise = self._draw_once(memory, query) if training else {}
        if query_mask is not None:
            query = clear_masked(query, query_mask)
        if self.window is None:
            view, valid, new_state = memory, memory.get("mask"), {}
            valid = None if valid is None else valid[:, None]
            valid = valid if mask is None else combine_masks(valid, mask)
        else:
            view, valid, new_state = self._select(query, memory, state, mask)
        if self.causal or "causal_mask" in state:
            seen, new_state["causal_mask"] = self._seen(memory, view, state)
            valid = combine_masks(valid, seen)
        if query_mask is not None:
            valid = combine_masks(valid, query_mask[..., None])
        coverage = [] if self.coverage is None else [state["coverage"]["total"]]
        scores = self.score(query, view["keys"], *coverage)
        if extra_key is not None:
            extra = self.score(query, extra_key[:, :, None])
            scores, valid = append_score(scores, valid, extra, query_mask)
        outputs, part_state = self.weighting(
            scores,
            valid,
            state.get("weighting"),
            noise.get("weighting"),
            training=training,
        )
        if extra_key is not None:
            outputs = split_weight(outputs)
        if "weighting" in self._stateful:
            new_state["weighting"] = part_state
        weights = outputs["weights"]
        if "prior" in view:
            weights = weights * view["prior"]
        if self.coverage is not None:
            new_state["coverage"] = self.coverage(weights, state["coverage"])
        if "dropout" in noise:
            weights = self.weight_dropout(weights, noise["dropout"])
        if query_mask is not None:
            new_state = self._update_where(query_mask, new_state, state)
        outputs = self._read(outputs, weights, view, memory, return_weights)
        return outputs, new_state

    def _draw_once(self, memory, query):
        """Return noise for one step."""
        noise = self.draw(memory, 1, ops.shape(query)[1])
        return tree.map_structure(lambda x: x[0], noise)

    def _update_where(self, mask, new_state, state):
        """Return the next state, where masked queries `(B, T)` keep their old values.

        Only step counters, the states of parts that are not sequential, still advance.
        """
        return {
            name: where_rows(mask, new, state[name])
            if getattr(self, name).sequential
            else new
            for name, new in new_state.items()
        }

    def _select(self, query, memory, state, mask):
        """Return the view of the window, its valid positions, and new states."""
        view, part_state = self.window(query, memory, state.get("window", {}), mask)
        stateful = "window" in self._stateful
        return view, view["mask"], {"window": part_state} if stateful else {}

    def _seen(self, memory, view, state):
        """Return the causal mask of the positions in view, and its new state."""
        length = ops.shape(memory["values"])[1]
        positions = view.get("positions", ops.arange(length, dtype="int32"))
        return self.causal_mask(positions, state["causal_mask"])

    def _read(self, outputs, weights, view, memory, return_weights):
        """Return the outputs with the context and, if requested, the weights."""
        weights, values = ops.cast(weights, self.compute_dtype), view["values"]
        if len(values.shape) == 4:
            context = ops.matmul(weights[:, :, None, :], values)[:, :, 0]
        else:
            context = ops.matmul(weights, values)
        # On PyTorch, Keras multiplies float64 in float32.
        context = ops.cast(context, self.compute_dtype)
        outputs = {**outputs, "context": context, "weights": weights}
        if not return_weights:
            del outputs["weights"]
        elif "positions" in view:
            length = ops.shape(memory["values"])[1]
            outputs["weights"] = spread_window(weights, view["positions"], length)
        return outputs

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "score": serialize_part(self.score),
            "weighting": serialize_part(self.weighting),
            "window": serialize_part(self.window),
            "causal": self.causal,
            "dropout": self.weight_dropout.rate,
            "seed": serialize_seed(self.weight_dropout.seed),
        }


def _check_part(name, part, expected, example):
    """Raise `ValueError` unless a part is an instance of a class."""
    if not isinstance(part, expected):
        raise ValueError(
            f"{name} must be a {expected.__name__}, such as {example}. "
            f"Received: {part!r}"
        )


def _check_parts(step):
    """Raise `ValueError` for parts that cannot be combined."""
    local = step.window is not None
    scaled = local and step.window.has_prior
    for wrong, reason in (
        (
            local and not step.score.uses_keys,
            "a location score has a weight for every position and takes no window",
        ),
        (
            local and step.weighting.needs_all_positions,
            "monotonic attention moves over all positions and takes no window",
        ),
        (
            scaled and not step.weighting.allows_scaling,
            "a hard choice cannot be multiplied with the prior of a local-p window",
        ),
        (
            local and step.coverage is not None,
            "coverage sums the weights of all positions and takes no window",
        ),
        (
            step.weight_dropout.rate and not step.weighting.allows_scaling,
            "dropout cannot drop the only position of a hard choice",
        ),
    ):
        if wrong:
            names = [type(part).__name__ for part in (step.score, step.weighting)]
            names += [type(step.window).__name__] if local else []
            rate = step.weight_dropout.rate
            names += [f"dropout={rate}"] if rate else []
            raise ValueError(f"{reason}. Received: {', '.join(names)}")
