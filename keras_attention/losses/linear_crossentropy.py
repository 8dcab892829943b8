"""Cross-entropy of tokens from the inputs of the output layer, block by block.

Shapes: T target steps, D depth, N vocabulary size, R rows (tokens of all sequences).
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_attention import loops
from keras_attention.backends import with_upstream
from keras_attention.losses.masking import (
    check_label_smoothing,
    check_token_ids,
    explaining_token_ids,
    masked,
)
from keras_attention.ops.precision import at_least_float32
from keras_attention.typing import Nested, Tensor
from keras_attention.validation import as_tensor, check_mask, check_shape

# Number of logits of one block: 16 MB, which stay in the cache.
BLOCK_ELEMENTS = 1 << 22


def linear_crossentropy(
    token_ids: Tensor,
    inputs: Tensor,
    embeddings: Tensor,
    mask: Tensor | None = None,
    *,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Mean cross-entropy of tokens, without all logits in memory at once.

        logits = inputs @ embeddings^T
        losses = sequence_crossentropy(token_ids, logits)
        loss   = mean over valid tokens of weights * losses

    Logits and their gradient are the largest tensors of a model with a vocabulary.
    This function computes them for a block of tokens at a time, together with the
    gradients of `inputs` and `embeddings`. So the memory for logits does not grow with
    the number of tokens, and on a CPU the loss takes about half the time. Second
    derivatives, such as those of a gradient penalty, are wrong on PyTorch.

    Args:
        token_ids: Target tokens, integers `(..., T)`.
        inputs: Inputs of the output layer, `(..., T, D)`.
        embeddings: Transposed kernel of the output layer, `(N, D)`, such as the
            embeddings of `keras.layers.ReversibleEmbedding`.
        mask: Boolean, broadcastable to `(..., T)`; tokens that are `False` do not
            count, even if their token ids or inputs are invalid.
        weights: Weight of each token, broadcast to `(..., T)`, positive or negative,
            such as the advantage of a sample; 1 by default. They are constants without
            gradient. The mean divides by the number of valid tokens, not by the sum of
            the weights.
        label_smoothing: Share `e` in `[0, 1)` of the probability that is spread
            evenly over the vocabulary.

    Returns:
        A scalar in float32 at least; zero if no token counts.

    Raises:
        ValueError: If `label_smoothing` is not in `[0, 1)`, `token_ids` does not have
            the shape of `inputs` without the last axis, or another shape does not fit.

    Example:

    Two tokens of equal probability:

    >>> loss = linear_crossentropy(np.array([1]), np.zeros((1, 3)), np.ones((2, 3)))
    >>> round(float(loss), 4)  # ln 2
    0.6931

    Reference:
        [Wijmans et al., 2025](https://arxiv.org/abs/2411.09009), section 4, with
        smaller blocks.
    """
    check_label_smoothing(label_smoothing)
    inputs = as_tensor("inputs", inputs)
    token_ids = ops.cast(as_tensor("token_ids", token_ids), "int32")
    token_shape = tuple(token_ids.shape)
    check_token_ids("token_ids", token_ids, "inputs", inputs)
    table = as_tensor("embeddings", embeddings)
    embeddings = ops.cast(table, inputs.dtype)
    depth = inputs.shape[-1]
    check_shape("embeddings", table, (None, depth))
    shape = ops.shape(token_ids)
    if mask is not None:
        check_mask("mask", mask, token_ids.shape, broadcasts=True)
        mask = ops.broadcast_to(mask, shape)
    rows = ops.reshape(masked(inputs, mask, rows=True), (-1, depth))
    token_ids = ops.reshape(masked(token_ids, mask), (-1,))
    counts = at_least_float32(ops.ones_like(rows[:, 0]))
    if mask is not None:
        counts = ops.cast(ops.reshape(mask, (-1,)), counts.dtype)
    counts = counts / ops.maximum(ops.sum(counts), 1.0)
    if weights is not None:
        weights = ops.cast(as_tensor("weights", weights), counts.dtype)
        weights = ops.stop_gradient(weights)
        leading = len(shape) - len(weights.shape)
        check_shape("weights", weights, token_shape[leading:], broadcasts=True)
        weights = masked(ops.broadcast_to(weights, shape), mask)
        counts = counts * ops.reshape(weights, (-1,))
    # Gathered from the table in its own dtype, so that the gradients of a frequent
    # token are summed in that dtype, not in half precision.
    with explaining_token_ids(token_ids, table.shape[0]):
        targets = ops.take(table, token_ids, axis=0)
    if label_smoothing:
        # The mean logit of the vocabulary is that of the mean embedding.
        mean = ops.mean(table, axis=0)
        targets = (1 - label_smoothing) * targets + label_smoothing * mean
    targets = ops.cast(targets, rows.dtype)
    logits = ops.sum(at_least_float32(rows * targets), axis=-1)
    # loss = log-partition - target logit
    return _log_partition(rows, embeddings, counts) - ops.sum(counts * logits)


def _log_partition(rows: Tensor, embeddings: Tensor, weights: Tensor) -> Tensor:
    """Return `sum over r of weights[r] * logsumexp(rows[r] @ embeddings^T)` in blocks.

    Args:
        rows: `(R, D)`.
        embeddings: `(N, D)`.
        weights: Constants `(R,)`, in the dtype of the result.
    """
    count = ops.shape(rows)[0]
    blocks = count // max(BLOCK_ELEMENTS // embeddings.shape[0], 1) + 1
    # A block has at least one row, even if there are no tokens.
    size = count // blocks + 1

    def cut(x: Tensor) -> Tensor:
        padding = [[0, blocks * size - count], [0, 0]]
        return ops.reshape(ops.pad(x, padding), (blocks, size, x.shape[-1]))

    # A mean over many tokens has small weights, which underflow in half precision. So
    # gradients are divided by the largest weight and multiplied by it at the end.
    scale = ops.max(ops.pad(ops.abs(weights), [[0, 1]], constant_values=1e-30))

    def log_partition(
        rows: Tensor, embeddings: Tensor
    ) -> tuple[Tensor, Callable[..., Any]]:
        def add_block(sums: Nested, block: Tensor) -> tuple[Nested, Tensor]:
            total, embeddings_gradient = sums
            rows, weights = block
            logits = ops.matmul(rows, ops.transpose(embeddings))
            logits = ops.cast(logits, weights.dtype)
            largest = ops.max(logits, axis=-1, keepdims=True)
            exponentials = ops.exp(logits - largest)
            partition = ops.sum(exponentials, axis=-1, keepdims=True)
            total = total + ops.sum(weights * (largest + ops.log(partition)))
            logits_gradient = exponentials * (weights / (scale * partition))
            logits_gradient = ops.cast(logits_gradient, rows.dtype)
            added = ops.matmul(ops.transpose(logits_gradient), rows)
            embeddings_gradient = embeddings_gradient + ops.cast(added, weights.dtype)
            return (total, embeddings_gradient), ops.matmul(logits_gradient, embeddings)

        sums = [ops.zeros(size, weights.dtype) for size in ((), embeddings.shape)]
        blocks = (cut(rows), cut(weights[:, None]))
        (total, embeddings_gradient), rows_gradient = loops.scan(
            add_block, tuple(sums), blocks
        )
        rows_gradient = ops.reshape(rows_gradient, (-1, rows.shape[-1]))[:count]

        @with_upstream
        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            scaled = (
                scale * upstream * ops.cast(x, scale.dtype)
                for x in (rows_gradient, embeddings_gradient)
            )
            return tuple(ops.cast(x, rows.dtype) for x in scaled)

        return total, gradient

    return ops.custom_gradient(log_partition)(rows, embeddings)
