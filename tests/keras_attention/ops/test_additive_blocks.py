import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import assert_close, draw, numpy
from attention_testing.combinations import covering, quick_first
from attention_testing.models import compiled, needs_tensorflow
from attention_testing.rounding import rounding_bound
from keras_attention import backends
from keras_attention.layers.additive import additive_scores
from keras_attention.ops import additive_blocks

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS, UNITS = 2, 3, 5, 7


UNKNOWN = keras.KerasTensor((None, None, UNITS))
SCALE = keras.KerasTensor((UNITS,))


@pytest.fixture
def arrays(rng):
    return draw(rng, (BATCH, QUERIES, UNITS), (BATCH, POSITIONS, UNITS), (UNITS,))


def large_scores(*arrays):
    return additive_blocks.large_scores(additive_scores, *arrays)


def scores_of(*arrays):
    return numpy(large_scores(*map(ops.convert_to_tensor, arrays)))


def by_the_formula(arrays, upstream=1.0):
    """Scores and gradients, in float64."""
    query, keys, scale = map(np.float64, arrays)
    hidden = np.tanh(query[:, :, None] + keys[:, None])
    upstream = upstream * np.ones(hidden.shape[:-1])
    slope = upstream[..., None] * scale * (1 - hidden**2)
    scale_gradient = np.einsum("bts,btsu->u", upstream, hidden)
    return [hidden @ scale, slope.sum(2), slope.sum(1), scale_gradient]


def test_follows_the_formula(arrays):
    assert_close(scores_of(*arrays), by_the_formula(arrays)[0], 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_at_the_end_alone(arrays, dtype):
    half = [ops.cast(x, dtype) for x in arrays]
    exact = large_scores(*(ops.cast(x, "float32") for x in half))

    scores = large_scores(*half)

    assert keras.backend.standardize_dtype(scores.dtype) == dtype
    rounded = ops.cast(exact, dtype)
    assert_close(ops.cast(scores, "float32"), ops.cast(rounded, "float32"), 0)


@needs_tensorflow
@pytest.mark.parametrize(
    ("queries", "jit_compile"), covering([None, QUERIES], [True, False], strength=1)
)
def test_batch_and_lengths_may_be_unknown(arrays, queries, jit_compile):
    signature = [keras.KerasTensor((None, queries, UNITS)), UNKNOWN, SCALE]

    run = compiled(large_scores, signature, xla=jit_compile)

    assert_close(run(*arrays), scores_of(*arrays), 1e-6)


@needs_tensorflow
@pytest.mark.parametrize("batch", [BATCH, None])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_large_hidden_layer_is_one_loop_in_a_graph(arrays, monkeypatch, batch, dtype):
    import tensorflow as tf

    monkeypatch.setattr(additive_blocks, "BLOCK_ELEMENTS", QUERIES * POSITIONS * UNITS)
    arrays = [tf.cast(x, dtype) for x in arrays]

    def scores_and_gradients(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            scores = large_scores(*arrays)
        return scores, tape.gradient(scores, arrays)

    shapes = (batch, QUERIES, UNITS), (batch, POSITIONS, UNITS), (UNITS,)
    run = compiled(
        scores_and_gradients, [keras.KerasTensor(shape, dtype) for shape in shapes]
    )

    scores, gradients = run(*arrays)

    graph = run.get_concrete_function().graph.as_graph_def()
    # Marked for XLA, and known to converters.
    marked = {node.op for node in graph.node if node.attr["_XlaCompile"].b}
    assert "Tanh" in marked and "PartitionedCall" not in marked
    # Scores and gradients are rounded once, at the end.
    relative = 1e-5 if dtype == "float32" else rounding_bound(dtype, 1)
    for x, wanted in zip([scores, *gradients], by_the_formula(arrays), strict=True):
        assert x.dtype == dtype
        results = tf.cast(x, "float32")
        np.testing.assert_allclose(results, wanted, rtol=1.01 * relative, atol=1e-5)


@pytest.fixture
def blocks(monkeypatch):
    """Work in blocks of two queries, however small the tensors are."""
    monkeypatch.setattr(additive_blocks, "MIN_BLOCKED_ELEMENTS", 0)
    monkeypatch.setattr(additive_blocks, "BLOCK_ELEMENTS", 2 * POSITIONS * UNITS)


@pytest.mark.parametrize(
    ("queries", "block_queries", "blocks_of"),
    [(10, 8, (2, 5)), (7, 3, (3, 3)), (6, 99, (1, 6))],
)
def test_blocks_are_of_equal_sizes(
    arrays, monkeypatch, queries, block_queries, blocks_of
):
    monkeypatch.setattr(
        additive_blocks, "BLOCK_ELEMENTS", block_queries * POSITIONS * UNITS
    )
    query = ops.ones((BATCH, queries, UNITS))

    blocks = additive_blocks._split_into_blocks(
        ops.convert_to_tensor(arrays[1]), query=query
    )

    assert tuple(blocks["query"].shape) == (BATCH, *blocks_of, UNITS)
    assert ops.sum(blocks["query"]) == BATCH * queries * UNITS


@pytest.mark.parametrize(
    ("queries", "lengths"),
    covering([3, 2, 7], ["known", "unknown", "unknown but small"], strength=1),
)
def test_blocks_give_the_scores_and_the_gradients_of_the_formula(
    arrays, blocks, gradients, monkeypatch, queries, lengths, rng
):
    query, upstream = draw(rng, (BATCH, queries, UNITS), (BATCH, queries, POSITIONS))
    arrays = [query, *arrays[1:]]
    if lengths == "unknown but small":
        # Unlike the others, they are not compiled.
        usual = backends.USUAL_LENGTH**2 * UNITS
        monkeypatch.setattr(additive_blocks, "MIN_BLOCKED_ELEMENTS", usual - 1)

    def total(query, keys, scale):
        if lengths == "known":
            scores = large_scores(query, keys, scale)
        else:
            scores = _of_unknown_length(query, keys, scale)
        return ops.sum(ops.multiply(scores, upstream))

    scores_and_grads = [scores_of(*arrays), *gradients(total, arrays)]

    assert_close(scores_and_grads, by_the_formula(arrays, upstream))


@needs_tensorflow
@pytest.mark.parametrize("large", [True, False])
def test_blocks_of_unknown_lengths_are_compiled_if_they_are_large(
    arrays, blocks, monkeypatch, large
):
    if not large:
        # Less than the usual size, for which the graph is made.
        usual = backends.USUAL_LENGTH**2 * UNITS
        monkeypatch.setattr(additive_blocks, "MIN_BLOCKED_ELEMENTS", usual - 1)

    scores = compiled(large_scores, [UNKNOWN, UNKNOWN, SCALE])(*arrays)

    assert_close(scores, by_the_formula(arrays)[0])


def _of_unknown_length(query, keys, scale):
    forward, backward = additive_blocks._plain

    @ops.custom_gradient
    def scores(query, keys, scale):
        def gradient(*upstreams, upstream=None):
            upstream = upstreams[0] if upstream is None else upstream
            return backward(query, keys, scale, upstream)

        return forward(query, keys, scale), gradient

    return scores(query, keys, scale)


@pytest.mark.parametrize("size", [1e-3, 1.0, 20.0, 39.0, 41.0, 100.0, 1e4, 1e30])
def test_blocks_are_exact_for_numbers_of_any_size(blocks, size, rng):
    # Query and key may nearly cancel out, however large they are.
    query = rng.normal(size=(BATCH, 5, UNITS)) * size
    keys = rng.normal(size=(BATCH, POSITIONS, UNITS)) - query[:, :1]
    query, keys = query.astype("float32"), keys.astype("float32")
    scale = rng.normal(size=UNITS).astype("float32")

    scores = scores_of(query, keys, scale)

    # The exact result is the sum of the float32 numbers, rounded once.
    hidden = np.tanh(query[:, :, None] + keys[:, None], dtype="float64")
    np.testing.assert_allclose(scores, hidden @ scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", quick_first(["float16", "bfloat16"]))
def test_blocks_sum_up_half_precision_exactly(arrays, blocks, gradients, dtype):
    def total(query, keys, scale):
        scores = large_scores(*(ops.cast(x, dtype) for x in (query, keys, scale)))
        assert keras.backend.standardize_dtype(scores.dtype) == dtype
        return ops.sum(ops.cast(scores, "float32"))

    for gradient in gradients(total, arrays):
        assert np.isfinite(gradient).all()
    half = [ops.cast(x, dtype) for x in arrays]
    outputs = numpy(ops.cast(large_scores(*half), "float32"))
    exact, *_ = by_the_formula(numpy([ops.cast(x, "float32") for x in half]))
    bound = 1.01 * rounding_bound(dtype, 1)
    np.testing.assert_allclose(outputs, exact, rtol=bound, atol=1e-5)
