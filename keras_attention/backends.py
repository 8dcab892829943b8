"""Operations that differ between backends, in LiteRT, or for unknown sizes.

The equations of the layers call these functions, and ask for no backend themselves.
Each function chooses what is fastest, or what can be exported: TensorFlow runs graphs,
also for LiteRT, whose operators are others; JAX infers and exports shapes with symbols
for unknown sizes, PyTorch exports them with tensors.

Shapes: B batch, N heads, T queries, S positions, D depth.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from keras_attention.sizes import is_one, is_zero, join_axes
from keras_attention.typing import Tensor

# Assumed sizes where they are unknown.
USUAL_LENGTH = 1024
USUAL_BATCH = 32

# Maximum number of scores for which elementwise products and sums are the fastest.
FEW_SCORES = 2**12
# The same number of queries in LiteRT.
FEW_QUERIES = 8

_for_litert = contextvars.ContextVar("for_litert", default=False)


@contextlib.contextmanager
def tracing_for_litert() -> Iterator[None]:
    """Context in which TensorFlow traces graphs for LiteRT."""
    token = _for_litert.set(True)
    try:
        yield
    finally:
        _for_litert.reset(token)


def traces_for_litert() -> bool:
    """Return whether TensorFlow is tracing a graph that LiteRT will run."""
    return _for_litert.get()


def traces_for_cpu() -> bool:
    """Return whether TensorFlow is tracing a graph that it will run on a CPU."""
    if keras.backend.backend() != "tensorflow" or _for_litert.get():
        return False
    import tensorflow as tf

    return not (tf.executing_eagerly() or tf.config.list_logical_devices("GPU"))


def is_symbol(size: Any) -> bool:
    """Return whether JAX infers or exports this size, or PyTorch exports it.

    Neither symbols nor tensors can be compared.
    """
    return keras.backend.backend() != "tensorflow" and not isinstance(size, int)


def exceeds(limit: int, batch: Any, *sizes: Any) -> bool:
    """Return whether a tensor has more elements than a limit.

    Assumes the usual batch and lengths where they are unknown. `False` if a length is a
    symbol.
    """
    if not (batch and isinstance(batch, int)):
        batch = USUAL_BATCH
    elements = batch
    for size in sizes:
        if not isinstance(size, int | None):
            return False
        elements *= USUAL_LENGTH if size is None else size
    return elements > limit


def index_range(count: Any) -> Tensor:
    """Return the numbers from 0 to `count - 1`, int32 `(count,)`."""
    if keras.backend.backend() == "jax" and is_symbol(count):
        # The converter to ONNX has no range of unknown length.
        return ops.cumsum(ops.ones((count,), "int32")) - 1
    return ops.arange(count, dtype="int32")


def _has_few_scores(shape: Any, dtype: str) -> bool:
    """Return whether sums of products are the fastest for scores `(..., T, S)`.

    In graphs for CPUs, TensorFlow computes softmax and matrix products in float32 with
    a library whose overhead then exceeds the cost of the sums themselves. LiteRT
    rearranges a matrix for every product, which few queries do not repay.
    """
    if _for_litert.get():
        return shape[-2] is not None and shape[-2] <= FEW_QUERIES
    # Checked first: unknown sizes of JAX are symbols, which cannot be compared.
    if not traces_for_cpu() or keras.backend.standardize_dtype(dtype) != "float32":
        return False
    *leading, length = shape
    if None in leading:
        return False
    return math.prod((*leading, length or USUAL_LENGTH)) <= FEW_SCORES


def row_products(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of every row of `x` `(B, N, T, D)` and of `y` `(B, N, S, D)`.

    Returns:
        Tensor `(B, N, T, S)`.
    """
    if not _has_few_scores((*x.shape[:3], y.shape[2]), x.dtype):
        return ops.matmul(x, ops.transpose(y, (0, 1, 3, 2)))
    if is_one(x.shape[2]):
        return ops.sum(x * y, axis=-1)[:, :, None]
    return ops.sum(x[:, :, :, None] * y[:, :, None], axis=-1)


def weighted_sums(weights: Tensor, x: Tensor) -> Tensor:
    """Return the sums of the rows of `x` `(B, N, S, D)` by weights `(B, N, T, S)`.

    Returns:
        Tensor `(B, N, T, D)`.
    """
    if not _has_few_scores(weights.shape, weights.dtype):
        return ops.matmul(weights, x)
    if is_one(weights.shape[2]):
        weights = ops.transpose(weights, (0, 1, 3, 2))
        return ops.sum(weights * x, axis=2, keepdims=True)
    return ops.sum(weights[..., None] * x[:, :, None], axis=-2)


def contract_last_axis(x: Tensor, vector: Tensor) -> Tensor:
    """Return the product of every row of `x` `(..., D)` and a vector `(D,)`."""
    vector = ops.expand_dims(vector, -1)
    if keras.backend.backend() != "tensorflow":
        return (x @ vector)[..., 0]
    # One matrix product is much faster than a product and a sum over the last axis.
    products = ops.reshape(x, (-1, x.shape[-1])) @ vector
    return ops.reshape(products, ops.shape(x)[:-1])


def softmax(x: Tensor) -> Tensor:
    """Return the softmax of every row."""
    if isinstance(x.shape[-1], int) and x.shape[-1] == 1:
        # Keras warns of the softmax of a single number. NaN must propagate.
        return 1 + 0 * x
    if keras.backend.backend() == "torch" and not isinstance(x.shape[-1], int):
        # Traced for an export: the size is that of the example, which may be 1.
        return ops.exp(ops.log_softmax(x, axis=-1))
    if traces_for_cpu() and _has_few_scores(x.shape, x.dtype):
        return ops.exp(ops.log_softmax(x, axis=-1))
    return ops.softmax(x, axis=-1)


def mask_scores(scores: Tensor, mask: Tensor, lowest: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores for a softmax, and whether each row has a valid position.

    In LiteRT, scores must be finite.

    Args:
        scores: Tensor `(..., S)`, in float32 at least.
        mask: Boolean, broadcastable to the scores.
        lowest: Number that replaces invalid scores, whose exponential is zero.

    Returns:
        scores: Tensor `(..., S)`.
        has_valid: Boolean, broadcastable to `(..., 1)`.
    """
    if _for_litert.get():
        # An addition takes less time there than a selection.
        has_valid = ops.any(mask, axis=-1, keepdims=True)
        return scores + ops.where(mask, 0.0, lowest), has_valid
    scores = ops.where(mask, scores, lowest)
    scores = ops.where(scores < lowest, lowest, scores)
    return scores, ops.any(scores > lowest, axis=-1, keepdims=True)


def clear_finite(x: Tensor, mask: Tensor) -> Tensor:
    """Return finite `x` `(..., D)` with zeros where its mask `(...)` is `False`."""
    if _for_litert.get():
        # A product takes less time there than a selection.
        return x * ops.cast(mask, x.dtype)[..., None]
    return ops.where(ops.cast(mask, "bool")[..., None], x, ops.zeros_like(x))


def finite_log_probs(log_probs: Tensor, impossible: Tensor) -> tuple[Tensor, Tensor]:
    """Replace NaN and infinities by `impossible`; in LiteRT, they remain.

    Args:
        log_probs: Tensor `(..., N)`.
        impossible: Log-probability, finite and negative.

    Returns:
        log_probs: The same without them.
        finite: Mask `(...)`, `False` for rows with NaN or plus infinity.
    """
    if _for_litert.get():
        # Every pass over all log-probabilities counts there. NaN and plus infinity
        # remain in the sum of a row, and `NaN < inf` is false.
        return log_probs, ops.sum(log_probs, axis=-1) < math.inf
    numbers = log_probs < math.inf
    log_probs = ops.where(numbers, log_probs, impossible)
    return ops.maximum(log_probs, impossible), ops.all(numbers, axis=-1)


def in_descending_order(x: Tensor) -> Tensor:
    """Return every row of `x` `(..., S)` in descending order."""
    length = ops.shape(x)[-1]
    if not (keras.backend.backend() == "jax" and is_symbol(length)):
        return -ops.sort(-x, axis=-1)
    # The converter of JAX to ONNX cannot sort rows of unknown length. Of equal entries,
    # the first comes first.
    order = index_range(length)
    this, other = x[..., None], x[..., None, :]
    ties = ops.logical_and(this == other, order < order[:, None])
    before = ops.logical_or(this < other, ties)
    rank = ops.sum(ops.cast(before, "int32"), axis=-1)
    is_at = ops.cast(rank[..., None, :] == order[:, None], x.dtype)
    return ops.sum(is_at * other, axis=-1)


def append_entry(x: Tensor, last: Tensor) -> Tensor:
    """Return `x` `(..., S)` with one more entry per row, `last` `(..., 1)`."""
    if not is_symbol(x.shape[-1]):
        return ops.concatenate([x, last], axis=-1)
    # The converter of JAX to ONNX takes S for the length of the concatenation.
    padding = [[0, 0] for _ in x.shape[1:]] + [[0, 1]]
    at_end = ops.pad(ops.zeros_like(x), padding, constant_values=1) == 1
    return ops.where(at_end, last, ops.pad(x, padding))


def first_entries(x: Tensor, count: Any) -> Tensor:
    """Return the first entries of every row of `x`; `count` is a size of a shape."""
    if isinstance(count, int) or keras.backend.backend() == "torch":
        return x[..., :count]
    return ops.take(x, index_range(count), axis=-1)


def forbid_tokens(
    log_probs: Tensor, token_ids: Tensor, where: Tensor, forbidden: Tensor
) -> Tensor:
    """Return log-probabilities `(B, K, N)` with tokens forbidden where a mask is true.

    Args:
        log_probs: Tensor `(B, K, N)`.
        token_ids: Tokens `(B, K, M)`.
        where: Which of them are forbidden, boolean `(B, K, M)`.
        forbidden: Their log-probability; in LiteRT, it is added.
    """
    size = log_probs.shape[-1]
    if _for_litert.get():
        # An addition takes less time there than a selection.
        return log_probs + scatter_tokens(
            token_ids, ops.where(where, forbidden, 0.0), size
        )
    return ops.where(vocabulary_mask(token_ids, where, size), forbidden, log_probs)


def scatter_tokens(token_ids: Tensor, values: Tensor, size: Any) -> Tensor:
    """Return `(B, K, size)` with the sum of the values `(B, K, M)` of each token.

    A token that is not in the vocabulary counts as 0.
    """
    batch, beam_size, _ = ops.shape(token_ids)
    rows = batch * beam_size
    firsts = size * ops.arange(rows, dtype="int32")[:, None]
    indices = firsts + join_axes(ops.maximum(token_ids, 0))
    sums = ops.scatter(
        ops.reshape(indices, (-1, 1)), ops.reshape(values, (-1,)), (rows * size,)
    )
    return ops.reshape(sums, (batch, beam_size, size))


def vocabulary_mask(token_ids: Tensor, where: Tensor, size: Any) -> Tensor:
    """Return a mask of the vocabulary, `(B, K, size)`, with some tokens marked.

    Args:
        token_ids: Tokens `(B, K, M)`.
        where: Which of them are marked, `(B, K, M)`.
        size: Size of the vocabulary.
    """
    batch, beam_size, _ = ops.shape(token_ids)
    rows = batch * beam_size
    firsts = size * ops.arange(rows, dtype="int32")[:, None]
    where, token_ids = join_axes(where), join_axes(token_ids)
    if _for_litert.get():
        # LiteRT takes long to cut off a last place. Its sums need none.
        indices = firsts + ops.where(where, token_ids, 0)
        counts = ops.scatter(
            ops.reshape(indices, (-1, 1)),
            ops.reshape(ops.cast(where, "float32"), (-1,)),
            (rows * size,),
        )
        return ops.reshape(counts > 0, (batch, beam_size, size))
    # The last place collects the tokens that are not marked.
    indices = ops.where(where, token_ids + firsts, rows * size)
    indices = ops.reshape(indices, (-1, 1))
    is_marked = ops.scatter_update(
        ops.zeros((rows * size + 1,), dtype="bool"),
        indices,
        ops.ones_like(indices[:, 0], dtype="bool"),
    )
    return ops.reshape(is_marked[:-1], (batch, beam_size, size))


def doubling_loop(
    double: Callable[..., Any], factor: Tensor, q: Tensor, exported_rounds: int
) -> Tensor:
    """Return `q` after `double` has run for the distances 1, 2, 4 ... below S.

    Args:
        double: Function `(delayed, factor, q) -> (factor, q)`, where `delayed(x)` is
            `x` moved by the distance to later positions. Its first entries are zeros
            or, where `factor` must be zero, others.
        factor, q: Tensors `(..., S)`.
        exported_rounds: Number of distances in a file that JAX or PyTorch exports.
    """
    length = ops.shape(q)[-1]
    if is_symbol(length):
        # Neither JAX nor PyTorch exports a loop for an unknown length.
        for n in range(exported_rounds):
            factor, q = double(functools.partial(_shifted, distance=2**n), factor, q)
        return q

    # XLA compiles the loop many times as fast as unrolled steps.
    def body(distance: Tensor, factor: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        return 2 * distance, *double(lambda x: ops.roll(x, distance, -1), factor, q)

    start = ops.convert_to_tensor(1), factor, q
    return ops.while_loop(lambda distance, *_: distance < length, body, start)[-1]


def _shifted(x: Tensor, distance: Tensor) -> Tensor:
    """Shift `x` `(..., S)` by some positions, with zeros in the first ones."""
    padding = [[0, 0] for _ in x.shape[1:]] + [[distance, 0]]
    return ops.pad(x, padding)[..., :-distance]


def take(x: Tensor, indices: Tensor) -> Tensor:
    """Return `x[indices]` along the first axis, for indices that are not negative."""
    if keras.backend.backend() != "tensorflow":
        return ops.take(x, indices, axis=0)
    import tensorflow as tf

    # Keras corrects negative indices, which takes three operations.
    return tf.gather(x, indices)


def project_rows(dense: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a `Dense` layer, or another function of matrices, to the last axis of `x`.

    For tensors of higher rank, the products of TensorFlow are slower, and do not
    compile under XLA inside a loop over a batch of unknown size. A Keras model, such as
    a `Sequential`, takes matrices only if it was built for them.
    """
    takes_any_rank = not isinstance(dense, keras.Model)
    if len(x.shape) == 2 or (
        takes_any_rank and keras.backend.backend() != "tensorflow"
    ):
        return dense(x)
    rows = dense(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))


def project_heads(
    dense: Callable[[Tensor], Tensor], x: Tensor, num_heads: int
) -> Tensor:
    """Apply a `Dense` layer to `(B, T, depth)` and return its heads, `(B, N, T, D)`."""
    batch, length = ops.shape(x)[:2]
    # As in `project_rows`, whose result would be reshaped again.
    on_tensorflow = keras.backend.backend() == "tensorflow"
    rows = dense(ops.reshape(x, (-1, x.shape[-1])) if on_tensorflow else x)
    depth = rows.shape[-1] // num_heads
    if isinstance(length, int) and length == 1:
        return ops.reshape(rows, (batch, num_heads, 1, depth))
    rows = ops.reshape(rows, (batch, length, num_heads, depth))
    return ops.transpose(rows, (0, 2, 1, 3))


@functools.cache
def xla_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors that TensorFlow always compiles by XLA.

    TensorFlow compiles it once for every set of shapes; converters such as that to ONNX
    have no operator for it. JAX compiles it with its caller; PyTorch runs it
    uncompiled.
    """

    @functools.cache
    def compiled() -> Tensor:
        import tensorflow as tf

        return tf.function(function, jit_compile=True, autograph=False)

    def call(*tensors: Any) -> Tensor:
        if keras.backend.backend() != "tensorflow":
            return function(*tensors)
        return compiled()(*tensors)

    return call


@functools.cache
def xla_marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose operations TensorFlow marks for XLA in a graph.

    They are still operations of the graph, which converters such as that to ONNX know.
    A loop is not compiled as a whole. Called eagerly, the function is compiled.
    """

    def call(*tensors: Any) -> Tensor:
        if keras.backend.backend() != "tensorflow":
            return function(*tensors)
        import tensorflow as tf

        if tf.executing_eagerly():
            return xla_compiled(function)(*tensors)
        with tf.xla.experimental.jit_scope():
            return function(*tensors)

    return call


def compiled_for_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function marked for XLA in graphs for CPUs, unchanged elsewhere."""
    return xla_marked(function) if traces_for_cpu() else function


def has_fused_attention(keys: Tensor, values: Tensor, dtype: str) -> bool:
    """Return whether `keras.ops.dot_product_attention` is the fastest, and exact.

    Args:
        keys, values: Tensors `(B, N, S, D)`, D of their own.
        dtype: Dtype of the computation.
    """
    backend = keras.backend.backend()
    # TensorFlow has none, and the fallback of Keras is slower. No backend takes an
    # empty axis of positions.
    if backend == "tensorflow" or is_zero(keys.shape[2]):
        return False
    # JAX needs keys and values of one depth, takes the softmax of float64 in float32,
    # and fails for float16 on CPUs.
    same_depth = keys.shape[-1] == values.shape[-1]
    return backend != "jax" or (same_depth and dtype not in ("float16", "float64"))


def draw_uniform(shape: Any, generator: keras.random.SeedGenerator) -> Tensor:
    """Return random numbers of float32 in `[0, 1)`.

    For Keras, TensorFlow chooses the generator of the numbers by device. On processors,
    XLA then derives the key of the generator again for every number. With the name of
    the generator it does so once. Outside of XLA, both give the same numbers.
    """
    if keras.backend.backend() != "tensorflow":
        return keras.random.uniform(shape, dtype="float32", seed=generator)
    import tensorflow as tf

    return tf.random.stateless_uniform(shape, _next_seed(generator), alg="philox")


def dropout(
    x: Tensor,
    rate: float,
    generator: keras.random.SeedGenerator,
    mask_shape: Any = None,
) -> Tensor:
    """Return `x` with some elements dropped, by numbers as of `draw_uniform`.

    Args:
        x: Tensor.
        rate: Probability that an element is dropped.
        generator: Generator of seeds.
        mask_shape: Shape of the mask, with `None` for the sizes of `x`. By default that
            of `x`.
    """
    if keras.backend.backend() != "tensorflow" or rate == 1:
        return keras.random.dropout(x, rate, noise_shape=mask_shape, seed=generator)
    import tensorflow as tf

    if mask_shape is not None:
        sizes = zip(mask_shape, ops.shape(x), strict=True)
        mask_shape = [
            size if declared is None else declared for declared, size in sizes
        ]
    return tf.nn.experimental.stateless_dropout(
        x, rate, _next_seed(generator), "philox", mask_shape
    )


def _next_seed(generator: keras.random.SeedGenerator) -> Tensor:
    """Return the next seed as Keras gives it to TensorFlow, int32 `(2,)`."""
    return ops.cast(generator.next() % (2**31 - 2), "int32")


def mask_for_fused_attention(mask: Tensor, queries: Any) -> Tensor:
    """Return a mask `(B, N, T or 1, S)` for `keras.ops.dot_product_attention`.

    On JAX, cuDNN takes a mask only with a row for each of the queries.
    """
    if keras.backend.backend() != "jax" or is_symbol(queries) or mask.shape[2] != 1:
        return mask
    return ops.repeat(mask, queries, axis=2)


def fuses_operations() -> bool:
    """Return whether operations on large tensors become one loop: not on PyTorch."""
    return keras.backend.backend() != "torch"


def draws_inside_loops() -> bool:
    """Return whether a loop can draw random numbers: not on JAX."""
    return keras.backend.backend() != "jax"


def defers_gradients(x: Tensor) -> bool:
    """Return whether custom gradients may read tensors computed after the forward pass.

    JAX traces both passes together, before these tensors exist. PyTorch cannot export
    custom gradients.

    Args:
        x: Any tensor of the forward pass.
    """
    backend = keras.backend.backend()
    # An export has tensors for sizes.
    exports = backend == "torch" and not isinstance(x.shape[0], int)
    return backend != "jax" and not exports


def with_upstream(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt a function of the upstream gradient to the calls of all backends.

    TensorFlow and JAX call `adapted(upstream)`, PyTorch calls
    `adapted(*inputs, upstream=upstream)`.

    Args:
        gradient: Function from the gradient of the only output to the gradients of the
            inputs.
    """

    def adapted(*upstreams: Any, upstream: Tensor | None = None) -> Tensor:
        return gradient(upstreams[0] if upstream is None else upstream)

    return adapted
