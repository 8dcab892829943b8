"""How well a query fits a key: scores before any normalisation.

Shapes: B batch, T queries, S positions, U depth of projected queries and keys. Keys are
`(B, S, U)`, or `(B, T, S, U)` where every query has positions of its own.
"""

import functools

import keras
from keras import ops

from keras_attention import loops


def dot_scores(query, keys):
    """Multiply every query with every key.

        scores[b, t, s] = query[b, t] . keys[b, s]

    Args:
        query: Tensor `(B, T, U)`.
        keys: Tensor `(B, [T,] S, U)`.

    Returns:
        Scores, `(B, T, S)`.

    Reference:
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.1.
    """
    if len(keys.shape) == 4:
        return ops.matmul(keys, query[..., None])[..., 0]
    return ops.matmul(query, ops.swapaxes(keys, 1, 2))


def additive_scores(query, keys, scale, shift=None):
    """Score every projected query against every projected key.

        scores[b, t, s] = scale . tanh(query[b, t] + keys[b, s] + shift[b, t, s])

    Many queries are worked off in blocks, forwards and backwards, so that the hidden
    layer `(B, T, S, U)` never exists as a whole: the memory that is needed beside the
    operands and the scores does not grow with T.

    Args:
        query: Projected queries, `(B, T, U)`.
        keys: Projected keys, `(B, [T,] S, U)`.
        scale: Vector that turns the hidden layer into one number, `(U,)`.
        shift: What else the hidden layer is to know, `(B, T, S, U)`; optional.

    Returns:
        Scores, `(B, T, S)`.

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.1.2.
    """
    # TensorFlow wants to know of every variable; a reshaped one is a tensor.
    scale = ops.reshape(scale, (-1,))
    if shift is not None or len(keys.shape) == 4:
        return _at_once(query, keys, scale, shift)
    if _is_large(query, keys):
        return _in_blocks(query, keys, scale)
    return _at_once_or_fused(query, keys, scale)


# Elements of the hidden layer: in a block, which is worth compiling; and in an example
# for which blocks pay.
BLOCK = 2**21
LARGE = 2**22

# What is assumed of a number of examples that is not known.
USUAL_BATCH = 32

# Up to this |x|, neither exp(x) nor its inverse leaves the range of float32.
SMALL = 80.0


def _at_once(query, keys, scale, shift=None):
    # In half precision, processors need longer for a tanh.
    hidden = _sums(_exactly(query), _exactly(keys))
    if shift is not None:
        hidden = hidden + _exactly(shift)
    return ops.cast(_dot(ops.tanh(hidden), _exactly(scale)), query.dtype)


_at_once_fused = loops.fused(_at_once)


def _at_once_or_fused(query, keys, scale):
    """All at once, as one loop where a graph does so again and again.

    As in a search over many hypotheses: a large hidden layer then is not written to
    memory, and read from there, which takes CPUs longer than to compute it.
    """
    (batch, queries, units), positions = query.shape, keys.shape[1]
    if not loops.traces_for_cpu() or None in (queries, positions) or queries == 1:
        # Every length would be compiled anew; gradients of one query are no quicker.
        return _at_once(query, keys, scale)
    is_large = (batch or USUAL_BATCH) * queries * positions * units > BLOCK
    return (_at_once_fused if is_large else _at_once)(query, keys, scale)


def _sums(query, keys):
    if len(keys.shape) == 3 and query.shape[1] == 1:
        # A step of a decoder. Over fewer axes the gradient of a sum is quicker.
        return ops.expand_dims(query + keys, 1)
    # The gradient of an index would be another array of the size of the keys.
    if len(keys.shape) == 3:
        keys = ops.expand_dims(keys, 1)
    return ops.expand_dims(query, 2) + keys


def _dot(hidden, scale):
    # One product of matrices: far quicker than a product and a sum over the last axis.
    flat = ops.reshape(hidden, (-1, hidden.shape[-1]))
    return ops.reshape(ops.matmul(flat, scale[:, None]), ops.shape(hidden)[:-1])


def _is_large(query, keys):
    (_, queries, units), positions = query.shape, keys.shape[1]
    lengths = [loops.USUAL_LENGTH if n is None else n for n in (queries, positions)]
    # JAX infers shapes with symbols for lengths.
    if queries == 1 or not all(isinstance(n, int) for n in lengths):
        return False
    return lengths[0] * lengths[1] * units > LARGE


def _in_blocks(query, keys, scale):
    """`additive_scores` with the backward pass written out.

    It works with `r = (1 - tanh(x)) / 2 = sigmoid(-2 x)`: tanh is `1 - 2 r` then, and
    its slope `4 r (1 - r)`.
    """
    known = None not in (query.shape[1], keys.shape[1])
    fused = _fused if known else _fused_if_large
    forward, backward = fused if loops.fuses() else _plain

    @ops.custom_gradient
    def scores(query, keys, scale):
        def gradient(*upstreams, upstream=None):
            upstream = upstreams[0] if upstream is None else upstream
            return backward(query, keys, scale, upstream)

        # Nobody is to differentiate the loop itself.
        constants = (ops.stop_gradient(x) for x in (query, keys, scale))
        return forward(*constants), gradient

    return scores(query, keys, scale)


def _forward(query, keys, scale, sigmoid):
    dtype, scale = query.dtype, _exactly(scale)

    def example(_, now):
        keys = sigmoid.prepare(-2 * now["keys"])

        def block(_, now):
            r = sigmoid(-2 * now["query"], keys)
            return {}, ops.sum(scale) - 2 * _dot(r, scale)

        return loops.scan(block, {}, {"query": now["query"]})

    blocks = _in_examples(keys, query=query)
    _, scores = loops.scan(example, {}, blocks)
    return ops.cast(_join(scores, query), dtype)


def _backward(query, keys, scale, upstream, sigmoid):
    """Gradients for query, keys and scale."""
    dtypes = [x.dtype for x in (query, keys, scale)]
    scale = _exactly(scale)

    def example(_, now):
        keys = sigmoid.prepare(-2 * now["keys"])

        def block(of_keys, now):
            up = now["upstream"]
            r = sigmoid(-2 * now["query"], keys)
            slope = r * (1 - r)
            of_keys = of_keys + ops.sum(up[..., None] * slope, axis=0)
            sums = {"query": slope, "r": r}
            return of_keys, {k: ops.matmul(up[:, None], x) for k, x in sums.items()}

        blocks = {name: now[name] for name in ("query", "upstream")}
        of_keys, sums = loops.scan(block, ops.zeros_like(now["keys"]), blocks)
        return {}, {"keys": of_keys, **sums}

    blocks = _in_examples(keys, query=query, upstream=upstream)
    _, sums = loops.scan(example, {}, blocks)
    gradients = (
        4 * scale * _join(sums["query"], query),
        4 * scale * sums["keys"],
        ops.sum(_exactly(upstream)) - 2 * ops.sum(sums["r"], axis=(0, 1, 2, 3)),
    )
    return tuple(ops.cast(x, t) for x, t in zip(gradients, dtypes, strict=True))


class _Sigmoid:
    """`sigmoid(query + keys)` by its definition, for `(T, U)` and `(S, U)`."""

    def prepare(self, keys):
        return (keys,)

    def __call__(self, query, keys):
        return ops.sigmoid(query[:, None] + keys[0])


class _FactorisedSigmoid(_Sigmoid):
    """`1 / (1 + exp(-query) exp(-keys))`: no exponential for every element.

    Right only while both factors stay within the range of the numbers; a block with
    larger ones goes by the definition. Pays where a compiler makes one loop of it.
    """

    def prepare(self, keys):
        return keys, ops.exp(-keys), ops.max(ops.abs(keys)) <= SMALL

    def __call__(self, query, keys):
        _, exp_keys, small_keys = keys
        small = ops.logical_and(small_keys, ops.max(ops.abs(query)) <= SMALL)
        exp_query = ops.exp(-query)
        return ops.cond(
            small,
            lambda: 1 / (1 + exp_query[:, None] * exp_keys),
            lambda: _Sigmoid.__call__(self, query, keys),
        )


def _of(sigmoid):
    return (
        functools.partial(_forward, sigmoid=sigmoid),
        functools.partial(_backward, sigmoid=sigmoid),
    )


_plain = _of(_Sigmoid())
_fused = tuple(loops.fused(function) for function in _of(_FactorisedSigmoid()))


def _if_large(fused, plain):
    """For lengths that are not known before: compiling for new ones has to pay."""

    def run(query, keys, *others):
        pairs = ops.shape(query)[1] * ops.shape(keys)[1]
        return ops.cond(
            pairs > LARGE // keys.shape[2],
            lambda: fused(query, keys, *others),
            lambda: plain(query, keys, *others),
        )

    return run


_fused_if_large = tuple(
    _if_large(*functions) for functions in zip(_fused, _plain, strict=True)
)


def _in_examples(keys, **sequences):
    """Keys `(B, S, U)`, and blocks `(B, blocks, queries of a block, ...)`.

    Examples one by one, each in its blocks: so nothing has to be laid out anew, and
    the scores of the last block end where those of all of them do.
    """
    positions = keys.shape[1] or loops.USUAL_LENGTH
    size = max(1, BLOCK // (positions * keys.shape[2]))
    queries = sequences["query"].shape[1]
    if queries is not None:
        # As few blocks, but equal ones.
        size = -(-queries // -(-queries // size))

    def split(x):
        batch, queries, depth = ops.shape(x)
        x = _exactly(x)
        padding = -queries % size
        if not isinstance(padding, int) or padding:
            x = ops.pad(x, ((0, 0), (0, padding), (0, 0)))
        return ops.reshape(x, (batch, -1, size, depth))

    return {"keys": _exactly(keys), **{name: split(x) for name, x in sequences.items()}}


def _join(blocks, query):
    """What had been split, `(B, T, ...)` with the T queries of `query`."""
    batch, queries, _ = ops.shape(query)
    joined = ops.reshape(blocks, (batch, -1, ops.shape(blocks)[-1]))
    if joined.shape[1] is not None and joined.shape[1] == query.shape[1]:
        return joined
    return joined[:, :queries]


def _exactly(x):
    is_double = keras.backend.standardize_dtype(x.dtype) == "float64"
    return x if is_double else ops.cast(x, "float32")
