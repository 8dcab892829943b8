"""Base classes of the attention layers, and of the parts that they are composed of.

Shapes: B batch, T queries, K sequences of queries, S positions, N heads, Q query depth,
V value depth. A call handles T queries at once: those of one sequence, or the next one
of each of K = T sequences, such as the hypotheses of a search.
"""

import difflib
import functools
import inspect
import warnings
from collections.abc import KeysView, Mapping
from typing import Any

import keras
from keras import ops

from keras_attention.backends import draw_uniform, index_range
from keras_attention.serialization import (
    CompositeLayer,
    config_of,
    from_config,
    seed_and_generator,
)
from keras_attention.sizes import known_sizes
from keras_attention.typing import (
    Config,
    Dtype,
    Nested,
    Seed,
    Shape,
    Shapes,
    Tensor,
    Tensors,
)
from keras_attention.validation import check_dropout, check_seed, shapes_of


class Component(CompositeLayer):
    """Base of memories, steps and parts, whose results have no Keras mask."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, inputs: Tensor, previous_mask: Nested) -> Any:
        return None


class BaseMemory(Component):
    """Base of the memories: the projected values and keys, computed once per source.

    Masked positions are cleared first, so that nothing stored there (NaN and inf
    included) can reach a result or a gradient. A subclass implements `build`, `call`
    and `shapes(value_shape, key_shape)`.

    Call arguments:
        value: Tensor of shape `(B, S, V)`.
        key: Tensor of shape `(B, S, key_depth)`; `value` if omitted.
        value_mask, mask: Boolean `(B, S)`, `True` marks a position that may be
            attended. `mask` is an alias; it wins, because Keras may fill `value_mask`
            with an implicit mask.
        key_mask: Boolean `(B, S)`, combined with `value_mask` by a logical and.

    Returns:
        Dict with `"values"` `(B, [N,] S, V)`, `"keys"` `(B, [N,] S, depth)` and, if
        there is a mask, the boolean `"mask"` `(B, S)`.
    """

    def shapes(self, value_shape: Shape, key_shape: Shape | None = None) -> Shapes:
        """Return the shapes of `"values"` and `"keys"` in the dict of the call."""
        raise NotImplementedError


class BaseStep(Component):
    """Base of the steps: queries attend to a memory.

    Attributes:
        reports: Names of the outputs other than `"context"` and `"weights"`.
        sequential: Whether a query needs the state that the query before it returned,
            so that queries must be handled one after the other.
        state_names: Dict with the structure of the state.

    Call arguments:
        query: Tensor of shape `(B, T, Q)`.
        memory: Dict that the memory of the same attention returned.
        state: Dict that `initial_state` or the previous step returned, tensors
            `(B, T, ...)`, one for each query; the initial state if omitted.
        query_mask: Boolean `(B, T)`. A masked query gives zeros and keeps its state,
            but the causal mask and local-m count it as a step.
        mask: Boolean, broadcastable to `(B, T, S)`, combined with the memory's.
        noise: Dict as `draw` returns it, for one step; drawn if omitted in training.
        return_weights: Whether the outputs contain `"weights"`.
        training: Whether the layer trains.

    Returns:
        outputs: Dict with `"context"` `(B, T, depth)`, `"weights"` `(B, T, S)` and the
            `reports`.
        state: Dict for the next step.
    """

    reports: tuple[str, ...] = ()
    sequential = False

    @property
    def state_names(self) -> Nested:
        return {}

    def initial_state(self, memory: Tensors, queries: int = 1) -> Tensors:
        """Return the state before the first step, tensors `(B, queries, ...)`."""
        return {}

    def draw(self, memory: Tensors, steps: int, queries: int = 1) -> Nested:
        """Return noise for training, a dict of tensors `(steps, B, queries, ...)`.

        Call it outside of loops.
        """
        return {}

    def context_depth(self, query_depth: int | None, memory_shapes: Shapes) -> Any:
        """Return the depth of the context for a depth of the queries.

        Args:
            query_depth: Q.
            memory_shapes: Dict of shapes, as the memory's `shapes` returns it.
        """
        return memory_shapes["values"][-1]


class AttentionPart(Component):
    """Base of scores, windows, weightings and relative positions.

    A part keeps nothing between calls. Its state, a dict of tensors `(B, K, ...)` for K
    independent sequences of queries, is an argument and a result; noise is an argument,
    too. The same part can therefore run for all queries at once, in a loop, and one
    step at a time.

    Attributes:
        state_names: Names of the tensors in its state.
        sequential: Whether a query needs the state that the query before it returned,
            so that queries must be handled one after the other.
        casts_weights: Whether `call` itself casts its weights to the dtype of the
            computation. An attention then calls it directly, which saves the time of
            Keras' `__call__`.
    """

    state_names: tuple[str, ...] = ()
    sequential = False
    casts_weights = False

    def __init__(self, **kwargs: Any) -> None:
        # States and noise keep their precision in every dtype policy.
        super().__init__(autocast=False, **kwargs)

    def check_shared(self, *shapes: Any) -> None:
        """Raise `ValueError` if the weights do not fit another layer.

        Args:
            *shapes: Those that `build` would receive.
        """

    def initial_state(self, memory: Tensors, queries: int) -> Tensors:
        """Return the state before the first query, tensors `(B, queries, ...)`.

        Args:
            memory: Dict of `"keys"` `(B, S, U)`, `"values"` `(B, S, V)` and, if there
                is a mask, `"mask"` `(B, S)`.
            queries: Number K of independent sequences of queries.
        """
        return {}

    def states_of_sequence(self, memory: Tensors, queries: int) -> Tensors:
        """Return the states before each query of a sequence, to handle them at once.

        Used for parts that are not sequential.
        """
        return self.initial_state(memory, queries)

    def draw(self, shape: Shape) -> Nested:
        """Return noise for training, tensors with the first three axes of `shape`.

        Args:
            shape: `(steps, B, K, scores)`.
        """
        return {}


class Score(AttentionPart):
    """Base of the scores.

    A custom score implements `call(query, keys)`, or, with `takes_coverage`,
    `call(query, keys, coverage=None)`; and `build(query_shape, keys_shape)` if it has
    weights.

    Attributes:
        takes_coverage: Whether it takes the sum of earlier weights of each position.
        uses_keys: Whether it uses the keys.

    Call arguments:
        query: Tensor of shape `(B, T, Q)`.
        keys: Projected keys, `(B, [T,] S, U)`.

    Returns:
        Scores, `(B, T, S)`.
    """

    takes_coverage = False
    uses_keys = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.autocast = True

    def build(self, query_shape: Shape, keys_shape: Shape) -> None:
        self.built = True

    def make_key_projection(self) -> keras.layers.Layer | None:
        """Return a new layer that projects the keys for this score, or `None`."""
        return None


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
        check_dropout(rate)
        self.rate = rate
        # Without dropout there is no state to save.
        self.seed, self.seed_generator = seed, None
        check_seed(from_config("seed", seed))
        if rate:
            self.seed, self.seed_generator = seed_and_generator(seed)
        # There are no weights to build, and a layer of rate zero is never called.
        self.built = True

    def draw(self, shape: Shape) -> Nested:
        if self.seed_generator is None:
            return {}
        return {"kept": draw_uniform(shape, self.seed_generator) >= self.rate}

    def drop(self, weights: Tensor, noise: Nested) -> Tensor:
        """Return the weights that are used, given the noise of one step."""
        return ops.where(noise["kept"], weights / (1 - self.rate), 0.0)

    def get_config(self) -> Config:
        return {**super().get_config(), **config_of(self, "rate seed")}

    def config_for_owner(self) -> Config:
        """Return the entries of the layer with this dropout: its rate and its seed."""
        return {"dropout": self.rate, **config_of(self, "seed")}


# Modes of quantisation whose rounding errors change scores by several percent.
COARSE_MODES = ("int4", "float8", "gptq", "awq")


class Weighting(AttentionPart):
    """Base of the weightings.

    A custom weighting implements `call`; see `AttentionPart` for its state and
    its noise.

    `build` receives the shape of the scores: `(B, T, S)`, or `(B, N, T, S)` if it takes
    heads. T is `None`, except in a pooling, where it is the number of hops.

    Attributes:
        takes_heads: Whether scores, mask, noise and results may be those of N heads,
            `(B, N, T, ...)`. Otherwise, the queries of all heads are joined,
            `(B, N T, ...)`.
        reports: Names of the outputs other than the weights.
        needs_all_positions: Whether it needs the scores of all positions and takes no
            window.
        allows_scaling: Whether weights may be scaled by a prior or dropped.
        selects: Whether a small change of the scores may give a position no weight.

    Call arguments:
        scores: Tensor of shape `(B, T, S)`.
        valid: Boolean, broadcastable to the scores: positions that may have weight;
            `None` for all.
        state: Dict of tensors, as `initial_state` returns it.
        noise: Dict of tensors, as `draw` returns it for one step; empty or `None`
            for a deterministic result.
        training: Whether the layer trains.

    Returns:
        outputs: Dict with `"weights"` `(B, T, S)`, in float32 at least, and the
            `reports`, which losses use.
        state: Dict for the next step.
    """

    reports: tuple[str, ...] = ()
    takes_heads = False
    selects = False
    needs_all_positions = False
    allows_scaling = True

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: Any = None
    ) -> None:
        """Warn if the rounding errors of the scores may select other positions."""
        mode = mode or getattr(config, "mode", None)
        if self.selects and mode in COARSE_MODES:
            warnings.warn(
                f"{type(self).__name__} may select other positions if the scores are "
                "rounded: compare the quantised model with the original, or use "
                f"'int8'. Received: mode={mode!r}",
                stacklevel=2,
            )

    def prepare_score(self, score: Score) -> Score:
        """Return the score for this weighting, given the score of a layer."""
        return score


def step_numbers(batch: Any, queries: Any, at_once: bool) -> Tensor:
    """Return the numbers of steps before each query, int32 `(B, queries)`.

    Args:
        at_once: Whether the queries are the steps of one sequence: 0, 1, 2 and so on.
    """
    if not at_once:
        return ops.zeros((batch, queries), "int32")
    return ops.broadcast_to(index_range(queries), (batch, queries))


def check_calling_form(
    layer: keras.layers.Layer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise an error for calls in the form of other attention layers.

    Raises:
        ValueError: For a list of tensors, or of masks.
        TypeError: For a keyword argument that the layer does not have.
    """
    first = args[0] if args else None
    if isinstance(first, (list, tuple)) and any(hasattr(x, "shape") for x in first):
        raise ValueError(
            "query, value and key are separate arguments: layer(query, value, key). "
            f"Received: a list of {len(first)} tensors"
        )
    if isinstance(kwargs.get("mask"), (list, tuple)):
        raise ValueError(
            "masks are separate arguments: query_mask=..., value_mask=.... "
            f"Received: mask, a list of {len(kwargs['mask'])}"
        )
    names = call_arguments(layer.__class__)
    if kwargs.keys() <= names:
        return
    unknown = next(name for name in kwargs if name not in names)
    masks = [name for name in names if name.endswith("mask") and "causal" not in name]
    likely = masks if "mask" in unknown else difflib.get_close_matches(unknown, names)
    raise TypeError(
        f"{type(layer).__name__} has no call argument {unknown!r}. "
        f"{'Masks are' if likely is masks else 'Expected'} "
        f"{', '.join(map(repr, likely or names))}."
    )


@functools.cache
def call_arguments(layer_class: Any) -> KeysView[str]:
    """Return the names of the arguments of a layer's call, the keys of a dict."""
    names = list(inspect.signature(layer_class.call).parameters)
    return dict.fromkeys(names[1:]).keys()


@functools.lru_cache(maxsize=1024)
def check_shapes(
    query_shape: Shape,
    value_shape: Shape,
    key_shape: Shape | None = None,
    *,
    ordered: bool = False,
) -> None:
    """Raise `ValueError` for shapes, tuples, of a query, value and key that do not fit.

    Shapes that fit are remembered, so that a call checks new shapes only.

    If `ordered`, the position of a query matters, so a single query is an error.
    """
    tensor_shapes = {"query": query_shape, "value": value_shape, "key": key_shape}
    shapes = {
        name: known_sizes(x) for name, x in tensor_shapes.items() if x is not None
    }
    if len(query_shape) not in (2, 3):
        raise ValueError(
            "query must have the shape (batch, query_depth) or "
            f"(batch, queries, query_depth). Received: {shapes['query']}"
        )
    for name, shape in list(shapes.items())[1:]:
        if len(shape) != 3:
            raise ValueError(
                f"{name} must have the shape (batch, positions, depth). "
                f"Received: {shape}"
            )
    received = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if len({shape[1] for shape in list(shapes.values())[1:]} - {None}) > 1:
        raise ValueError(
            "key and value must have the same number of positions. "
            f"Received: {received}"
        )
    if ordered and len(query_shape) == 2:
        raise ValueError(
            "One query has no position in a sequence, but positions, windows and "
            "causal attention need it: query must have the shape "
            f"(batch, queries, query_depth). Received: {shapes['query']}"
        )
    if len({shape[0] for shape in shapes.values()} - {None}) > 1:
        raise ValueError(
            f"{', '.join(shapes)} must have the same batch size. Received: {received}"
        )


def check_memory(
    memory: Nested,
    attention: Any = None,
    inputs: Nested | None = None,
) -> None:
    """Raise `ValueError` for a wrong structure or batch size of a memory.

    Args:
        memory: Dict, or a list of dicts for a list of attentions.
        attention: The attention layer, or a list of several.
        inputs: Tensor `(B, ...)`, if the batch size is checked.
    """
    is_list = isinstance(attention, list)
    memories: Any = memory if is_list else [memory]
    count = len(attention) if is_list else 1
    is_memory = isinstance(memories, (list, tuple)) and len(memories) == count
    for x in memories if is_memory else ():
        is_memory &= isinstance(x, dict) and {"values", "keys"} <= x.keys()
    if not is_memory:
        expected = "the dict that attention.memory(value) returns"
        if is_list:
            expected = f"a list of {count} of these: {expected}"
        raise ValueError(f"memory must be {expected}. Received: {shapes_of(memory)}")
    if inputs is None:
        return
    batches = {inputs.shape[0]} if isinstance(inputs.shape[0], int) else set()
    for x in memories:
        # Other sizes are unknown, or symbols, which cannot be compared.
        if isinstance(x["values"].shape[0], int):
            batches.add(x["values"].shape[0])
    if len(batches) > 1:
        raise ValueError(
            "inputs and values must have the same batch size. "
            f"Received: inputs {tuple(inputs.shape)}, values "
            f"{shapes_of([x['values'] for x in memories])}"
        )


def build_part(part: Any, *shapes: Any) -> None:
    """Build a part, or check that it fits if it is shared and built already."""
    if part.built:
        part.check_shared(*shapes)
    else:
        part.build(*shapes)


def freeze_new_weights(layer: keras.layers.Layer) -> None:
    """Freeze the weights that a frozen layer, or sublayer, creates in `build`."""
    for sublayer in layer._flatten_layers():
        if not sublayer.trainable:
            # On TensorFlow, setting the current value does nothing, so it is set to
            # `True` first.
            sublayer.trainable = True
            sublayer.trainable = False


def set_dtype_policy(part: Any, policy: Any) -> None:
    """Give a dtype policy to a part and its sublayers, unless they are built."""
    for layer in part._flatten_layers():
        if not layer.built:
            layer.dtype_policy = policy


def get_part(
    name: str,
    identifier: Any,
    choices: Mapping[str, type],
    base: type,
    example: str,
    dtype: Dtype,
    **options: Any,
) -> Any:
    """Return a part for its name in `choices`, its config, or itself.

    The `options` are those of a new part. An error names the argument and an `example`.
    """
    identifier = from_config(name, identifier)
    if isinstance(identifier, base):
        set_dtype_policy(identifier, dtype)
        return identifier
    if not isinstance(identifier, str) or identifier not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, choices))}, or {example}. "
            f"Received: {identifier!r}"
        )
    return choices[identifier](**options, dtype=dtype, name=name)
