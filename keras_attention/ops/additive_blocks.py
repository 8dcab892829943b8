"""Additive scores by the fastest implementation for their sizes and the backend.

Shapes: B batch, T queries, S positions, U depth of projected queries and keys.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from keras import ops

from keras_attention import backends, loops
from keras_attention.ops.precision import at_least_float32
from keras_attention.typing import Nested, Tensor, Tensors

# Number of elements of the hidden layer in a block.
BLOCK_ELEMENTS = 2**21
# Number of elements of the hidden layer of one example above which blocks are faster.
MIN_BLOCKED_ELEMENTS = 2**22

# Largest |x| for which exp(x) and exp(-x) are in the range of float32.
MAX_EXPONENT = 80.0


def large_scores(
    scores_at_once: Callable[..., Any], query: Tensor, keys: Tensor, scale: Tensor
) -> Tensor:
    """Return additive scores, computed in blocks or, in graphs for CPUs, compiled.

    A compiled loop never writes the hidden layer to memory, which takes CPUs longer
    than computing it. A search over many hypotheses gains the most.

    Args:
        scores_at_once: Function of the other arguments, which computes all scores with
            one hidden layer, `(B, T, S, U)`.
        query, keys, scale: As for `additive_scores`.
    """
    # Reshaped, because a variable is then a tensor: TensorFlow refuses a custom
    # gradient that captures a variable.
    scale = ops.reshape(scale, (-1,))
    sizes = query.shape[1], keys.shape[1], query.shape[2]
    if backends.exceeds(MIN_BLOCKED_ELEMENTS, 1, *sizes):
        return _scores_in_blocks(query, keys, scale)
    # With unknown lengths, every length would be compiled separately.
    if None not in (query.shape[1], keys.shape[1]):
        scores_at_once = backends.compiled_for_cpu(scores_at_once)
    return scores_at_once(query, keys, scale)


def _scores_in_blocks(query: Tensor, keys: Tensor, scale: Tensor) -> Tensor:
    """Return the scores, block by block, with an explicit backward pass.

    With `r = (1 - tanh(x)) / 2 = sigmoid(-2 x)`, `tanh(x)` is `1 - 2 r` and its
    derivative `4 r (1 - r)`.
    """
    known = None not in (query.shape[1], keys.shape[1])
    compiled = _compiled if known else _compiled_if_large
    forward, backward = compiled if backends.fuses_operations() else _plain

    @ops.custom_gradient
    def scores(
        query: Tensor, keys: Tensor, scale: Tensor
    ) -> tuple[Tensor, Callable[..., Any]]:
        @backends.with_upstream
        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            return backward(query, keys, scale, upstream)

        # The backward pass is explicit, so gradients stop at the loop.
        constants = (ops.stop_gradient(x) for x in (query, keys, scale))
        return forward(*constants), gradient

    return scores(query, keys, scale)


def _forward(
    query: Tensor, keys: Tensor, scale: Tensor, sigmoid: Callable[..., Any]
) -> Tensor:
    dtype, scale = query.dtype, at_least_float32(scale)

    def example(_: Tensor, part: Nested) -> tuple[Nested, Nested]:
        sigmoid_of = sigmoid(-2 * part["keys"])

        def block(_: Tensor, part: Nested) -> tuple[Nested, Tensor]:
            r = sigmoid_of(-2 * part["query"])
            return {}, ops.sum(scale) - 2 * project_to_scalars(r, scale)

        return loops.scan(block, {}, {"query": part["query"]})

    blocks = _split_into_blocks(keys, query=query)
    _, scores = loops.scan(example, {}, blocks)
    return ops.cast(_join(scores, query), dtype)


def _backward(
    query: Tensor,
    keys: Tensor,
    scale: Tensor,
    upstream: Tensor,
    sigmoid: Callable[..., Any],
) -> tuple[Tensor, ...]:
    """Return the gradients of query, keys and scale."""
    dtypes = [x.dtype for x in (query, keys, scale)]
    scale = at_least_float32(scale)

    def example(_: Tensor, part: Nested) -> tuple[Nested, Nested]:
        sigmoid_of = sigmoid(-2 * part["keys"])

        def block(keys_gradient: Tensor, part: Nested) -> tuple[Tensor, Tensors]:
            upstream = part["upstream"]
            r = sigmoid_of(-2 * part["query"])
            slope = r * (1 - r)
            keys_gradient = keys_gradient + ops.sum(upstream[..., None] * slope, axis=0)
            sums = {"query": slope, "r": r}
            return keys_gradient, {
                k: ops.matmul(upstream[:, None], x) for k, x in sums.items()
            }

        blocks = {name: part[name] for name in ("query", "upstream")}
        keys_gradient, sums = loops.scan(block, ops.zeros_like(part["keys"]), blocks)
        return {}, {"keys": keys_gradient, **sums}

    blocks = _split_into_blocks(keys, query=query, upstream=upstream)
    _, sums = loops.scan(example, {}, blocks)
    gradients = (
        4 * scale * _join(sums["query"], query),
        4 * scale * sums["keys"],
        ops.sum(at_least_float32(upstream)) - 2 * ops.sum(sums["r"], axis=(0, 1, 2, 3)),
    )
    return tuple(ops.cast(x, t) for x, t in zip(gradients, dtypes, strict=True))


def _sigmoid(keys: Tensor) -> Callable[..., Any]:
    """Return a function of queries `(T, U)`, for keys `(S, U)`.

    (T, S, U) = sigmoid(query + keys)
    """
    return lambda query: ops.sigmoid(query[:, None] + keys)


def _factorised_sigmoid(keys: Tensor) -> Callable[..., Any]:
    """Return the same function, computed as `1 / (1 + exp(-query) exp(-keys))`.

    It takes no exponential for each pair, which is faster only if a compiler fuses the
    product into one loop. A block whose factors could leave the range of float32 uses
    `_sigmoid`.
    """
    plain, exp_keys = _sigmoid(keys), ops.exp(-keys)
    small_keys = ops.max(ops.abs(keys)) <= MAX_EXPONENT

    def factorised(query: Tensor) -> Tensor:
        exp_query = ops.exp(-query)
        return ops.cond(
            ops.logical_and(small_keys, ops.max(ops.abs(query)) <= MAX_EXPONENT),
            lambda: 1 / (1 + exp_query[:, None] * exp_keys),
            lambda: plain(query),
        )

    return factorised


# Forward and backward pass.
_plain = tuple(partial(f, sigmoid=_sigmoid) for f in (_forward, _backward))
_factorised = tuple(
    partial(f, sigmoid=_factorised_sigmoid) for f in (_forward, _backward)
)
_compiled = tuple(map(backends.xla_compiled, _factorised))


def _if_large(
    compiled: Callable[..., Any], plain: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that chooses at run time, for lengths that are unknown."""

    def run(query: Tensor, keys: Tensor, *others: Any) -> Tensor:
        pairs = ops.shape(query)[1] * ops.shape(keys)[1]
        return ops.cond(
            pairs > MIN_BLOCKED_ELEMENTS // keys.shape[2],
            lambda: compiled(query, keys, *others),
            lambda: plain(query, keys, *others),
        )

    return run


# Marked rather than compiled, because models of unknown lengths are exported to ONNX.
_compiled_if_large = tuple(
    _if_large(backends.xla_marked(f), plain)
    for f, plain in zip(_factorised, _plain, strict=True)
)


def project_to_scalars(hidden: Tensor, scale: Tensor) -> Tensor:
    """Return `hidden . scale` for every vector of `(..., U)`."""
    flat = ops.reshape(hidden, (-1, hidden.shape[-1]))
    return ops.reshape(ops.matmul(flat, scale[:, None]), ops.shape(hidden)[:-1])


def _split_into_blocks(keys: Tensor, **sequences: Any) -> Tensors:
    """Return keys `(B, S, U)`, and blocks `(B, blocks, queries of a block, ...)`.

    Each example has its own blocks, so that no tensor has to be transposed.
    """
    positions = keys.shape[1] or backends.USUAL_LENGTH
    size = max(1, BLOCK_ELEMENTS // (positions * keys.shape[2]))
    queries = sequences["query"].shape[1]
    if queries is not None:
        # The same number of blocks, but of equal sizes.
        size = -(-queries // -(-queries // size))

    def split(x: Tensor) -> Tensor:
        batch, queries, depth = ops.shape(x)
        x = at_least_float32(x)
        # Not `-queries % size`: ONNX has no such remainder of a negative number.
        padding = (size - queries % size) % size
        if not isinstance(padding, int) or padding:
            x = ops.pad(x, ((0, 0), (0, padding), (0, 0)))
        return ops.reshape(x, (batch, (queries + padding) // size, size, depth))

    return {
        "keys": at_least_float32(keys),
        **{name: split(x) for name, x in sequences.items()},
    }


def _join(blocks: Tensor, query: Tensor) -> Tensor:
    """Undo the split into blocks: return `(B, T, ...)` for T queries."""
    batch, queries, _ = ops.shape(query)
    _, count, size, *_, depth = ops.shape(blocks)
    joined = ops.reshape(blocks, (batch, count * size, depth))
    if joined.shape[1] is not None and joined.shape[1] == query.shape[1]:
        return joined
    return joined[:, :queries]
