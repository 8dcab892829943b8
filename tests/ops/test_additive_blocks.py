import keras
import numpy as np
import pytest
from arrays import assert_close
from combinations import covering, quick_first
from keras import ops
from models import needs_tensorflow
from rounding import rounding_bound

from keras_attention import backends
from keras_attention.layers.additive import additive_scores
from keras_attention.ops import additive_blocks

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS, UNITS = 2, 3, 5, 7


@pytest.fixture
def arrays():
    rng = np.random.default_rng(1)
    shapes = (BATCH, QUERIES, UNITS), (BATCH, POSITIONS, UNITS), (UNITS,)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def large_scores(*arrays):
    return additive_blocks.large_scores(additive_scores, *arrays)


def scores_of(*arrays):
    scores = large_scores(*(ops.convert_to_tensor(x) for x in arrays))
    return ops.convert_to_numpy(scores)


def test_value_worked_by_hand():
    # tanh is 1 or -1 far from zero, so the score adds or subtracts the scale.
    query = np.array([[[0.0, 0.0], [0.0, 100.0]]], "float32")
    keys = np.array([[[100.0, 50.0], [0.0, -200.0], [-100.0, -100.0]]], "float32")

    scores = scores_of(query, keys, np.array([3.0, 5.0], "float32"))

    np.testing.assert_allclose(scores, [[[8, -5, -8], [8, -5, -3]]], rtol=1e-6)


def test_follows_the_formula(arrays):
    query, keys, scale = arrays

    scores = scores_of(query, keys, scale)

    assert scores.shape == (BATCH, QUERIES, POSITIONS)
    for b in range(BATCH):
        for t in range(QUERIES):
            for s in range(POSITIONS):
                expected = scale @ np.tanh(query[b, t] + keys[b, s])
                np.testing.assert_allclose(scores[b, t, s], expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_at_the_end_alone(arrays, dtype):
    half = [ops.cast(x, dtype) for x in arrays]
    exact = large_scores(*(ops.cast(x, "float32") for x in half))

    found, expected = (
        ops.convert_to_numpy(ops.cast(x, "float32"))
        for x in (large_scores(*half), ops.cast(exact, dtype))
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_keeps_the_dtype(arrays, dtype):
    scores = large_scores(*(ops.cast(x, dtype) for x in arrays))

    assert keras.backend.standardize_dtype(scores.dtype) == dtype


@needs_tensorflow
@pytest.mark.parametrize(
    ("queries", "jit_compile"), covering([None, QUERIES], [True, False], strength=1)
)
def test_batch_and_lengths_may_be_unknown(arrays, queries, jit_compile):
    import tensorflow as tf

    shapes = (None, queries, UNITS), (None, None, UNITS), (UNITS,)
    compiled = tf.function(
        large_scores,
        input_signature=list(map(tf.TensorSpec, shapes)),
        jit_compile=jit_compile,
    )

    np.testing.assert_allclose(compiled(*arrays), scores_of(*arrays), atol=1e-6)


@needs_tensorflow
@pytest.mark.parametrize("batch", [BATCH, None])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_large_hidden_layer_is_one_loop_in_a_graph(arrays, monkeypatch, batch, dtype):
    import tensorflow as tf

    monkeypatch.setattr(additive_blocks, "BLOCK_ELEMENTS", QUERIES * POSITIONS * UNITS)
    arrays = [tf.cast(x, dtype) for x in arrays]
    query, keys, scale = arrays

    @tf.function(
        input_signature=[
            tf.TensorSpec((batch, QUERIES, UNITS), dtype),
            tf.TensorSpec((batch, POSITIONS, UNITS), dtype),
            tf.TensorSpec((UNITS,), dtype),
        ],
        autograph=False,
    )
    def scores_and_gradients(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            scores = large_scores(*arrays)
        return scores, tape.gradient(scores, arrays)

    found, gradients = scores_and_gradients(*arrays)
    graph = scores_and_gradients.get_concrete_function().graph.as_graph_def()
    assert any(x.attr["_XlaMustCompile"].b for x in graph.library.function)
    hidden = np.tanh(np.float64(query)[:, :, None] + np.float64(keys)[:, None])
    slope = np.float64(scale) * (1 - hidden**2)
    expected = (
        hidden @ np.float64(scale),
        slope.sum(2),
        slope.sum(1),
        hidden.sum((0, 1, 2)),
    )
    # Scores and gradients are rounded once, at the end.
    relative = 1e-5 if dtype == "float32" else rounding_bound(dtype, 1)
    for x, wanted in zip([found, *gradients], expected, strict=True):
        assert x.dtype == dtype
        found = tf.cast(x, "float32")
        np.testing.assert_allclose(found, wanted, rtol=1.01 * relative, atol=1e-5)


@pytest.fixture
def blocks(monkeypatch):
    """Work in blocks of two queries, however small the tensors are."""
    monkeypatch.setattr(additive_blocks, "MIN_BLOCKED_ELEMENTS", 0)
    monkeypatch.setattr(additive_blocks, "BLOCK_ELEMENTS", 2 * POSITIONS * UNITS)


@pytest.mark.parametrize(
    ("queries", "most", "blocks_of"), [(10, 8, (2, 5)), (7, 3, (3, 3)), (6, 99, (1, 6))]
)
def test_blocks_are_of_equal_sizes(arrays, monkeypatch, queries, most, blocks_of):
    monkeypatch.setattr(additive_blocks, "BLOCK_ELEMENTS", most * POSITIONS * UNITS)
    query = ops.ones((BATCH, queries, UNITS))

    blocks = additive_blocks._split_into_blocks(
        ops.convert_to_tensor(arrays[1]), query=query
    )

    assert tuple(blocks["query"].shape) == (BATCH, *blocks_of, UNITS)
    assert ops.sum(blocks["query"]) == BATCH * queries * UNITS


def exact_scores(query, keys, scale):
    query, keys, scale = (np.float64(x) for x in (query, keys, scale))
    return np.tanh(query[:, :, None] + keys[:, None]) @ scale


@pytest.mark.parametrize(
    ("queries", "lengths"),
    covering([3, 2, 7], ["known", "unknown", "unknown but small"], strength=1),
)
def test_blocks_give_the_scores_and_the_gradients_of_the_formula(
    arrays, blocks, gradients, monkeypatch, queries, lengths
):
    rng = np.random.default_rng(2)
    query = rng.normal(size=(BATCH, queries, UNITS)).astype("float32")
    arrays = [query, *arrays[1:]]
    upstream = rng.normal(size=(BATCH, queries, POSITIONS)).astype("float32")
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

    found = gradients(total, arrays)

    hidden = np.tanh(np.float64(query)[:, :, None] + np.float64(arrays[1])[:, None])
    slope = upstream[..., None] * arrays[2] * (1 - hidden**2)
    expected = slope.sum(2), slope.sum(1), (upstream[..., None] * hidden).sum((0, 1, 2))
    assert_close(found, expected)
    np.testing.assert_allclose(
        scores_of(*arrays), exact_scores(*arrays), rtol=0, atol=1e-5
    )


@needs_tensorflow
@pytest.mark.parametrize("large", [True, False])
def test_blocks_of_unknown_lengths_are_compiled_if_they_are_large(
    arrays, blocks, monkeypatch, large
):
    import tensorflow as tf

    if not large:
        # Less than the usual size, for which the graph is made.
        usual = backends.USUAL_LENGTH**2 * UNITS
        monkeypatch.setattr(additive_blocks, "MIN_BLOCKED_ELEMENTS", usual - 1)
    unknown = tf.TensorSpec((None, None, UNITS))
    specs = unknown, unknown, tf.TensorSpec((UNITS,))

    run = tf.function(large_scores, input_signature=specs, autograph=False)

    scores = run(*arrays)

    np.testing.assert_allclose(scores, exact_scores(*arrays), atol=1e-5)


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
def test_blocks_are_exact_for_numbers_of_any_size(blocks, size):
    # Query and key may nearly cancel out, however large they are.
    rng = np.random.default_rng(3)
    query = rng.normal(size=(BATCH, 5, UNITS)) * size
    keys = rng.normal(size=(BATCH, POSITIONS, UNITS)) - query[:, :1]
    query, keys = query.astype("float32"), keys.astype("float32")
    scale = rng.normal(size=UNITS).astype("float32")

    found = scores_of(query, keys, scale)

    # The exact result is the sum of the float32 numbers, rounded once.
    hidden = np.tanh(query[:, :, None] + keys[:, None], dtype="float64")
    np.testing.assert_allclose(found, hidden @ scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", quick_first(["float16", "bfloat16"]))
def test_blocks_sum_up_half_precision_exactly(arrays, blocks, gradients, dtype):
    def total(query, keys, scale):
        scores = large_scores(*(ops.cast(x, dtype) for x in (query, keys, scale)))
        assert keras.backend.standardize_dtype(scores.dtype) == dtype
        return ops.sum(ops.cast(scores, "float32"))

    for gradient in gradients(total, arrays):
        assert np.isfinite(gradient).all()
    half = [ops.cast(x, dtype) for x in arrays]
    found = ops.cast(large_scores(*half), "float32")
    exact = exact_scores(*(ops.convert_to_numpy(ops.cast(x, "float32")) for x in half))
    np.testing.assert_allclose(
        ops.convert_to_numpy(found),
        exact,
        rtol=1.01 * rounding_bound(dtype, 1),
        atol=1e-5,
    )
