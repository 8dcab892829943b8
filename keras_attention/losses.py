"""Losses for sequences and for the attention behind them.

Penalties on attention come as one number per sequence, summed over its steps: divide
their total by the number of tokens to add them to a mean loss per token.

Shapes: B batch, T target steps, S positions, N vocabulary size.
"""

import keras
from keras import ops

from keras_attention import loops
from keras_attention.layers.parts import (
    check_mask,
    check_rank,
    may_be_equal,
    sample_weights,
)

# Logits of so many entries, 16 MB, are computed at once: they stay in the cache.
BLOCK_ENTRIES = 1 << 22


def doubly_stochastic_penalty(weights, mask=None):
    """How far each position's total attention is from one.

        penalty = sum over s of (1 - sum over t of weights[t, s]) ** 2

    Asks that every position of the source be looked at about equally often while
    the weights of every step sum to one by construction.

    Args:
        weights: Attention weights, `(..., T, S)`.
        mask: Boolean `(..., T)`; steps that are `False` do not count.

    Returns:
        One penalty per sequence, `(...)`, in float32 at least.

    Raises:
        ValueError: If the mask has another shape.

    Example:

    Two steps that look at the first of three positions:

    >>> weights = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    >>> float(doubly_stochastic_penalty(weights))
    3.0

    Reference:
        [Xu et al., 2015](https://arxiv.org/abs/1502.03044), equation 14.
    """
    weights = _only(_at_least_float32(weights), mask, rows=True)
    return ops.sum(ops.square(1.0 - ops.sum(weights, axis=-2)), axis=-1)


def coverage_loss(weights, mask=None):
    """How much attention goes to where earlier steps have looked already.

        coverage[t, s] = sum over t' < t of weights[t', s]
        loss           = sum over t, s of min(weights[t, s], coverage[t, s])

    Unlike `doubly_stochastic_penalty` it leaves alone what nobody looks at: a
    translation must read everything once, a summary only must not repeat itself.

    Args:
        weights: Attention weights, `(..., T, S)`.
        mask: Boolean `(..., T)`; steps that are `False` neither pay nor cover.

    Returns:
        One loss per sequence, `(...)`, in float32 at least.

    Raises:
        ValueError: If the mask has another shape.

    Example:

    The second step spends half of its attention where the first one looked:

    >>> weights = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    >>> float(coverage_loss(weights))
    0.5

    Reference:
        [See et al., 2017](https://arxiv.org/abs/1704.04368), section 2.3.
    """
    weights = _only(_at_least_float32(weights), mask, rows=True)
    # The first step has nothing before it, and nothing comes after the last one.
    coverage = ops.cumsum(weights[..., :-1, :], axis=-2)
    return ops.sum(ops.minimum(weights[..., 1:, :], coverage), axis=(-2, -1))


def attention_supervision(weights, target_weights, mask=None):
    """Cross-entropy between where to look and where the attention looked.

        target[t] = target_weights[t] / sum over s of target_weights[t, s]
        loss      = -sum over t, s of target[t, s] log weights[t, s]

    The targets are word alignments or, over the regions of an image, the box of what
    a word names. A step whose target has no mass, such as a function word without a
    box, contributes nothing. The logarithm stops at that of 1e-30 (1e-4 for float16
    weights, whose gradients could not hold the inverse of less): a weight of exactly
    zero costs much and has a gradient of zero.

    Args:
        weights: Attention weights, `(..., T, S)`.
        target_weights: Where to look, not negative, `(..., T, S)`, booleans included.
        mask: Boolean `(..., T)`; steps that are `False` do not count.

    Returns:
        One loss per sequence, `(...)`, in float32 at least.

    Raises:
        ValueError: If the two shapes differ.

    Example:

    The object covers the last two of four regions; they received 1/4 each. The second
    word names nothing:

    >>> weights = np.array([[0.5, 0.0, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]])
    >>> box = np.array([[False, False, True, True], [False] * 4])
    >>> round(float(attention_supervision(weights, box)), 4)  # ln 4
    1.3863

    Reference:
        [Liu et al., 2016](https://arxiv.org/abs/1609.04186), section 4, for
        translation; [Liu et al., 2017](https://arxiv.org/abs/1605.09553), "strong
        supervision", for captions.
    """
    weights, target_weights = map(ops.convert_to_tensor, (weights, target_weights))
    if not may_be_equal(weights.shape, target_weights.shape):
        raise ValueError(
            "weights and target_weights must have the same shape. Received: "
            f"{tuple(weights.shape)} and {tuple(target_weights.shape)}"
        )
    half = keras.backend.standardize_dtype(weights.dtype) == "float16"
    weights = _only(_at_least_float32(weights), mask, rows=True)
    target = _only(ops.cast(target_weights, weights.dtype), mask, rows=True)
    mass = ops.sum(target, axis=-1, keepdims=True)
    target = target / ops.where(mass > 0, mass, 1.0)
    log_weights = ops.log(ops.maximum(weights, 1e-4 if half else 1e-30))
    return -ops.sum(target * log_weights, axis=(-2, -1))


def sequence_crossentropy(token_ids, logits, mask=None, *, label_smoothing=0.0):
    """Cross-entropy of every token, with label smoothing.

        loss = -(1 - e) log p(token) - e / N * sum over n of log p(n)

    Args:
        token_ids: Target tokens, integers `(..., T)`.
        logits: Unnormalised log-probabilities, `(..., T, N)`.
        mask: Boolean `(..., T)`; tokens that are `False` have a loss of exactly zero,
            whatever their identifiers and logits are.
        label_smoothing: Share `e` in `[0, 1)` of the probability that is spread
            evenly over the vocabulary.

    Returns:
        One loss per token, `(..., T)`, in float32 at least. How to average is for the
        caller to decide; `SequenceCrossentropy` is the mean over valid tokens.

    Raises:
        ValueError: If `label_smoothing` is not in `[0, 1)`, or a shape does not fit.

    Example:

    Of two tokens with even odds:

    >>> loss = sequence_crossentropy(np.array([1]), np.zeros((1, 2)))
    >>> round(float(loss[0]), 4)  # ln 2
    0.6931

    Reference:
        [Szegedy et al., 2016](https://arxiv.org/abs/1512.00567), section 7.
    """
    _check_label_smoothing(label_smoothing)
    token_ids = ops.convert_to_tensor(token_ids)
    logits = _only(_at_least_float32(logits), mask, rows=True)
    _check_token_ids("token_ids", token_ids, "logits", logits)
    token_ids = _only(token_ids, mask)
    losses = ops.sparse_categorical_crossentropy(token_ids, logits, from_logits=True)
    if label_smoothing:
        spread = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)
        losses = (1 - label_smoothing) * losses + label_smoothing * spread
    return _only(losses, mask)


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
    _check_label_smoothing(label_smoothing)
    inputs = ops.convert_to_tensor(inputs)
    token_ids = ops.cast(token_ids, "int32")
    _check_token_ids("token_ids", token_ids, "inputs", inputs)
    table = ops.convert_to_tensor(embeddings)
    embeddings = ops.cast(table, inputs.dtype)
    depth = inputs.shape[-1]
    rows = ops.reshape(_only(inputs, mask, rows=True), (-1, depth))
    several = ops.shape(token_ids)
    token_ids = ops.reshape(_only(token_ids, mask), (-1,))
    counts = _at_least_float32(ops.ones_like(rows[:, 0]))
    if mask is not None:
        counts = ops.cast(ops.reshape(mask, (-1,)), counts.dtype)
    counts = counts / ops.maximum(ops.sum(counts), 1.0)
    if weights is not None:
        weights = ops.stop_gradient(ops.cast(weights, counts.dtype))
        weights = _only(ops.broadcast_to(weights, several), mask)
        counts = counts * ops.reshape(weights, (-1,))
    # The loss is the log-partition less a logit; what is smooth is a mean of logits.
    # The gradients of a token that comes often are many: half precision cannot sum up.
    targets = ops.take(table, token_ids, axis=0)
    if label_smoothing:
        mean = ops.mean(table, axis=0)
        targets = (1 - label_smoothing) * targets + label_smoothing * mean
    targets = ops.cast(targets, rows.dtype)
    logits = ops.sum(_at_least_float32(rows * targets), axis=-1)
    return _log_partition(rows, embeddings, counts) - ops.sum(counts * logits)


def _check_label_smoothing(label_smoothing):
    if not 0 <= label_smoothing < 1:
        raise ValueError(
            f"label_smoothing must lie in [0, 1). Received: {label_smoothing}"
        )


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


class _MaskOf(keras.layers.Layer):
    """The mask that a Keras layer has attached to a tensor, or `None`."""

    def call(self, inputs, mask=None):
        return mask

    def compute_mask(self, inputs, previous_mask):
        return None


@keras.saving.register_keras_serializable(package="keras_attention")
class SequenceCrossentropy(keras.losses.Loss):
    """Mean cross-entropy of the tokens that count, for `compile`.

        loss = sum of weight * crossentropy(token) / sum of weight

    over all tokens of the batch, see `sequence_crossentropy`. The weight of a token is
    zero if it is `pad` or masked by the Keras mask of the logits, otherwise its
    `sample_weight` or one. A long sentence therefore counts more than a short one, and
    padding changes nothing. A batch in which nothing counts has a loss of zero.

    Args:
        pad: Token that fills up short sequences, or `None` if every token counts.
        label_smoothing: Share in `[0, 1)` of the probability that is spread evenly
            over the vocabulary.
        reduction: As in `keras.losses.Loss`. The default is the mean above; `"sum"` is
            its numerator, `None` gives the weighted losses `(B, T)`, and
            `"sum_over_batch_size"` divides by the number of all tokens, padding
            included.
        name: Name of the loss.

    Call arguments:
        y_true: Target tokens, integers `(B, T)` or `(B, T, 1)`.
        y_pred: Unnormalised log-probabilities, `(B, T, N)`.
        sample_weight: `(B,)`, `(B, T)` or `(B, T, 1)`.

    Returns:
        A scalar, unless `reduction` is `None`; in float32 at least.

    Raises:
        ValueError: If `label_smoothing` is not in `[0, 1)`, or a shape does not fit.

    Example:

    >>> loss = SequenceCrossentropy(pad=0)
    >>> token_ids = np.array([[2, 1, 0], [3, 0, 0]])
    >>> round(float(loss(token_ids, np.zeros((2, 3, 4)))), 4)  # ln 4
    1.3863

    Reference:
        [Szegedy et al., 2016](https://arxiv.org/abs/1512.00567), section 7, for label
        smoothing.
    """

    def __init__(
        self,
        *,
        pad=None,
        label_smoothing=0.0,
        reduction="mean_with_sample_weight",
        name="sequence_crossentropy",
    ):
        _check_label_smoothing(label_smoothing)
        # Keras converts the tokens to this type, too: half precision would mix them up.
        dtype = keras.backend.result_type(keras.config.floatx(), "float32")
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.pad = pad
        self.label_smoothing = label_smoothing
        self._mask_of = _MaskOf(autocast=False, name="mask_of")

    def __call__(self, y_true, y_pred, sample_weight=None):
        mask = self._mask_of(y_pred)
        y_true, y_pred = map(ops.convert_to_tensor, (y_true, y_pred))
        if len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == 1:
            # As Keras has labels, too.
            y_true = y_true[..., 0]
        _check_token_ids("y_true", y_true, "y_pred", y_pred)
        weights = ops.cast(self._valid(y_true), self.dtype)
        if mask is not None:
            weights = weights * ops.cast(mask, self.dtype)
        if sample_weight is not None:
            weights = weights * sample_weights(sample_weight, weights)
        # Not even NaN counts where nothing does.
        counts = weights != 0
        y_true, y_pred = _only(y_true, counts), _only(y_pred, counts, rows=True)
        return super().__call__(y_true, y_pred, weights)

    def call(self, y_true, y_pred):
        return sequence_crossentropy(
            ops.cast(y_true, "int32"), y_pred, label_smoothing=self.label_smoothing
        )

    def _valid(self, token_ids):
        if self.pad is None:
            return ops.ones_like(token_ids, dtype="bool")
        return ops.not_equal(token_ids, self.pad)

    def get_config(self):
        return {
            **super().get_config(),
            "pad": self.pad,
            "label_smoothing": self.label_smoothing,
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class ReinforceLoss(keras.layers.Layer):
    """What hard attention learns from: its samples, rewarded by the words they led to.

    Where one position `s[t]` is drawn at every step, the gradient cannot pass through
    the draw. It is estimated instead, with the log-likelihood of the caption `y` as
    the reward:

        loss = -(log p(y | s, a)
                 + reward_weight * constant(log p(y | s, a) - baseline) * log p(s | a)
                 + entropy_weight * H[s])

    `constant` has no gradient. The baseline is the running mean of the reward and only
    lowers the variance; it is updated, in training, after it was used:

        baseline <- momentum * baseline + (1 - momentum) * mean over the batch of
                    log p(y | s, a)

    With `reward_weight=1` and `entropy_weight=0` the gradient is on average that of
    the lower bound `sum over s of p(s | a) log p(y | s, a)`. The defaults are those of
    the authors' code, which divides the reward by the number of steps, too.

    This is a layer because the baseline belongs to the model: it is saved with it and
    is not trained. Half precision is not used, whatever the dtype policy.

    Args:
        reward_weight: Weight of the estimate, lambda_r in the paper.
        entropy_weight: Weight of the entropy, lambda_e in the paper, which keeps the
            attention from settling too early.
        momentum: In `[0, 1]`, share of the baseline that an update keeps; 1 leaves it
            as it is, zero at first or what was assigned to `baseline`.

    Call arguments:
        log_likelihood: Of the target tokens, `(B, T)`, such as the negative
            `sequence_crossentropy`; or `(B,)`, summed already.
        log_probability: Of the sampled positions, `(B, T)` or summed, `(B,)`. Take it
            from a log-softmax: the logarithm of a weight may be infinite.
        entropy: Of the distributions they were drawn from, `(B, T)` or `(B,)`.
        mask: Boolean `(B, T)`; steps that are `False` do not count, whatever is
            stored there.
        sampled: Boolean `(B,)`; `False` marks examples that used the expectation
            instead of a sample: they add nothing to the estimate or the baseline.
        training: Whether to update the baseline.

    Returns:
        One loss per example, `(B,)`, in float32 at least. Train on its mean.

    Raises:
        ValueError: If `momentum` is not in `[0, 1]`, or if a shape does not fit.

    Example:

    Two captions of two words, read off regions that were drawn one out of four:

    >>> reinforce = ReinforceLoss()
    >>> log_likelihood = np.array([[-1.0, -2.0], [-3.0, -4.0]])
    >>> log_probability = np.full((2, 2), np.log(1 / 4))
    >>> entropy = np.full((2, 2), np.log(4))
    >>> loss = reinforce(log_likelihood, log_probability, entropy, training=True)
    >>> tuple(loss.shape), round(float(reinforce.baseline), 4)
    ((2,), -0.5)

    A model keeps the layer as an attribute, which makes the baseline its own, and
    takes the mean where it computes its loss:

    >>> class Captioner(keras.Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.reinforce = ReinforceLoss()
    ...
    ...     def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
    ...         loss = self.reinforce(
    ...             -sequence_crossentropy(y, y_pred["logits"]),
    ...             y_pred["log_probability"],
    ...             y_pred["entropy"],
    ...             mask=y != 0,
    ...             training=training,
    ...         )
    ...         return keras.ops.mean(loss)

    A layer does the same with `self.add_loss(keras.ops.mean(loss))`.

    Reference:
        [Xu et al., 2015](https://arxiv.org/abs/1502.03044), section 4.1.
    """

    def __init__(
        self, *, reward_weight=0.1, entropy_weight=0.002, momentum=0.9, **kwargs
    ):
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must lie in [0, 1]. Received: {momentum}")
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.reward_weight = reward_weight
        self.entropy_weight = entropy_weight
        self.momentum = momentum
        self.baseline = self.add_weight(
            name="baseline",
            shape=(),
            initializer="zeros",
            dtype=keras.backend.result_type(self.variable_dtype, "float32"),
            trainable=False,
            autocast=False,
        )
        self.built = True

    def call(
        self,
        log_likelihood,
        log_probability,
        entropy,
        *,
        mask=None,
        sampled=None,
        training=None,
    ):
        if sampled is not None:
            check_rank("sampled", sampled.shape, (1,), "(batch,)")
        if mask is not None:
            check_rank("mask", mask.shape, (2,), "(batch, steps)")
        log_likelihood = _total("log_likelihood", log_likelihood, mask)
        log_probability = _total("log_probability", log_probability, mask)
        entropy = _total("entropy", entropy, mask)
        baseline = ops.cast(self.baseline, log_likelihood.dtype)
        advantage = ops.stop_gradient(log_likelihood - baseline)
        if training:
            self._follow(_only(advantage, sampled), sampled)
        return -(
            log_likelihood
            + self.reward_weight * advantage * _only(log_probability, sampled)
            + self.entropy_weight * entropy
        )

    def _follow(self, advantage, sampled):
        """Move the baseline; with no sample in the batch, it stays."""
        if sampled is None:
            mean = ops.mean(advantage)
        else:
            count = ops.sum(ops.cast(sampled, advantage.dtype))
            mean = ops.sum(advantage) / ops.maximum(count, 1.0)
        change = (1 - self.momentum) * mean
        self.baseline.assign_add(ops.cast(change, self.baseline.dtype))

    def compute_mask(self, inputs, previous_mask):
        return None

    def get_config(self):
        return {
            **super().get_config(),
            "reward_weight": self.reward_weight,
            "entropy_weight": self.entropy_weight,
            "momentum": self.momentum,
        }


def _total(name, x, mask):
    """One number per example, of one or of one per step."""
    check_rank(name, x.shape, (1, 2), "(batch, steps) or (batch,)")
    x = _at_least_float32(x)
    return x if len(x.shape) == 1 else ops.sum(_only(x, mask), axis=-1)


def _only(x, mask, rows=False):
    """`x` with zeros where the mask, of its elements or of its rows, is `False`."""
    if mask is None:
        return x
    check_mask("mask", mask, x.shape[:-1] if rows else x.shape, broadcasts=True)
    return ops.where(mask[..., None] if rows else mask, x, ops.zeros_like(x))


def _check_token_ids(name, token_ids, of, rows):
    """Raise `ValueError` if there is not one token for every row of a tensor."""
    if not may_be_equal(token_ids.shape, rows.shape[:-1]):
        raise ValueError(
            f"{name} must have the shape of {of} without the last axis, "
            f"{tuple(rows.shape[:-1])}. Received: {tuple(token_ids.shape)}"
        )


def _at_least_float32(x):
    x = ops.convert_to_tensor(x)
    is_double = keras.backend.standardize_dtype(x.dtype) == "float64"
    return x if is_double else ops.cast(x, "float32")
