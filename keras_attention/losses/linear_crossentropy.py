"""Cross-entropy of tokens from the inputs of the output layer, block by block.

Shapes: T target steps, D depth, N vocabulary size, R rows (tokens of all sequences).
"""

from keras import ops

from keras_attention import loops
from keras_attention.losses.masking import (
    at_least_float32,
    check_label_smoothing,
    check_token_ids,
    masked,
)

# Logits of so many entries, 16 MB, are computed at once: they stay in the cache.
BLOCK_ENTRIES = 1 << 22


def linear_crossentropy(
    token_ids, inputs, embeddings, mask=None, *, weights=None, label_smoothing=0.0
):
    """Mean cross-entropy of tokens whose logits are never held all at once.

        logits = inputs @ embeddings^T
        losses = sequence_crossentropy(token_ids, logits)
        loss   = mean over valid tokens of weights * losses

    Logits and their gradient are the largest tensors of a model with a vocabulary.
    Here they are computed for some tokens at a time, and the gradients of `inputs` and
    `embeddings` along with them, so the memory needed does not grow with the number of
    tokens, and on a CPU the whole takes about half the time. A second derivative, such
    as of a penalty on gradients, is not right on PyTorch.

    Args:
        token_ids: Target tokens, integers `(..., T)`.
        inputs: What the output layer multiplies, `(..., T, D)`.
        embeddings: Its kernel, `(N, D)`, a row for each token of the vocabulary: as in
            `keras.layers.ReversibleEmbedding`, or a transposed `Dense` kernel.
        mask: Boolean `(..., T)`; tokens that are `False` do not count, whatever their
            identifiers and inputs are.
        weights: What each token counts, broadcast to `(..., T)`, such as the advantage
            of a sample, also below zero; 1 by default. No gradient flows into them, and
            the mean divides by the number of valid tokens, whatever they weigh.
        label_smoothing: Share `e` in `[0, 1)` of the probability that is spread
            evenly over the vocabulary.

    Returns:
        A scalar in float32 at least; zero if no token counts.

    Raises:
        ValueError: If `label_smoothing` is not in `[0, 1)`, or `token_ids` has not the
            shape of `inputs` without the last axis.

    Example:

    Of two tokens with even odds:

    >>> loss = linear_crossentropy(np.array([1]), np.zeros((1, 3)), np.ones((2, 3)))
    >>> round(float(loss), 4)  # ln 2
    0.6931

    Reference:
        [Wijmans et al., 2025](https://arxiv.org/abs/2411.09009), section 4, whose
        blocks are finer.
    """
    check_label_smoothing(label_smoothing)
    inputs = ops.convert_to_tensor(inputs)
    token_ids = ops.cast(token_ids, "int32")
    check_token_ids("token_ids", token_ids, "inputs", inputs)
    table = ops.convert_to_tensor(embeddings)
    embeddings = ops.cast(table, inputs.dtype)
    depth = inputs.shape[-1]
    rows = ops.reshape(masked(inputs, mask, rows=True), (-1, depth))
    several = ops.shape(token_ids)
    token_ids = ops.reshape(masked(token_ids, mask), (-1,))
    counts = at_least_float32(ops.ones_like(rows[:, 0]))
    if mask is not None:
        counts = ops.cast(ops.reshape(mask, (-1,)), counts.dtype)
    counts = counts / ops.maximum(ops.sum(counts), 1.0)
    if weights is not None:
        weights = ops.stop_gradient(ops.cast(weights, counts.dtype))
        weights = masked(ops.broadcast_to(weights, several), mask)
        counts = counts * ops.reshape(weights, (-1,))
    # The loss is the log-partition less a logit; what is smooth is a mean of logits.
    # The gradients of a token that comes often are many: half precision cannot sum up.
    targets = ops.take(table, token_ids, axis=0)
    if label_smoothing:
        mean = ops.mean(table, axis=0)
        targets = (1 - label_smoothing) * targets + label_smoothing * mean
    targets = ops.cast(targets, rows.dtype)
    logits = ops.sum(at_least_float32(rows * targets), axis=-1)
    return _log_partition(rows, embeddings, counts) - ops.sum(counts * logits)


def _log_partition(rows, embeddings, weights):
    """`sum over r of weights[r] * logsumexp(rows[r] @ embeddings^T)`, block by block.

    Args:
        rows: `(R, D)`.
        embeddings: `(N, D)`.
        weights: Constants `(R,)`, in the dtype of the result.
    """
    count = ops.shape(rows)[0]
    blocks = count // max(BLOCK_ENTRIES // embeddings.shape[0], 1) + 1
    # At least one row, though there may be none.
    size = count // blocks + 1

    def cut(x):
        padding = [[0, blocks * size - count], [0, 0]]
        return ops.reshape(ops.pad(x, padding), (blocks, size, x.shape[-1]))

    # In half precision, what is small because there are many tokens would vanish: the
    # gradients are multiplied with it in the end.
    scale = ops.max(ops.pad(ops.abs(weights), [[0, 1]], constant_values=1e-30))

    def log_partition(rows, embeddings):
        def add_block(sums, block):
            total, of_embeddings = sums
            rows, weights = block
            logits = ops.matmul(rows, ops.transpose(embeddings))
            logits = ops.cast(logits, weights.dtype)
            largest = ops.max(logits, axis=-1, keepdims=True)
            masses = ops.exp(logits - largest)
            mass = ops.sum(masses, axis=-1, keepdims=True)
            total = total + ops.sum(weights * (largest + ops.log(mass)))
            of_logits = ops.cast(masses * (weights / (scale * mass)), rows.dtype)
            more = ops.matmul(ops.transpose(of_logits), rows)
            of_embeddings = of_embeddings + ops.cast(more, weights.dtype)
            return (total, of_embeddings), ops.matmul(of_logits, embeddings)

        sums = [ops.zeros(shape, weights.dtype) for shape in ((), embeddings.shape)]
        blocks = (cut(rows), cut(weights[:, None]))
        (total, of_embeddings), of_rows = loops.scan(add_block, tuple(sums), blocks)
        of_rows = ops.reshape(of_rows, (-1, rows.shape[-1]))[:count]

        def gradient(*upstreams, upstream=None):
            upstream = scale * (upstreams[0] if upstream is None else upstream)
            of_all = (ops.cast(x, scale.dtype) for x in (of_rows, of_embeddings))
            return tuple(ops.cast(upstream * x, rows.dtype) for x in of_all)

        return total, gradient

    return ops.custom_gradient(log_partition)(rows, embeddings)
