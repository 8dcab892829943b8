import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import (
    assert_close,
    attend,
    draw,
    numpy,
    random_fixture,
    sigmoid,
    softmax,
)
from attention_testing.layers.cases import step_by_step
from attention_testing.models import reloaded

BATCH, QUERIES, POSITIONS = 2, 3, 17
QUERY_DIM, VALUE_DIM, UNITS = 7, 11, 13
ONES = {"kernel_initializer": "ones"}

query = random_fixture(BATCH, QUERIES, QUERY_DIM)
value = random_fixture(BATCH, POSITIONS, VALUE_DIM)


def weights_of(layer):
    return {
        variable.path.split("/", 1)[1]: np.float64(ops.convert_to_numpy(variable))
        for variable in layer.variables
    }


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        # One query (1, 2) and the keys (1, 0), (0, 1), (1, 1).
        ("dot", [1, 2, 3]),
        ("scaled-dot", [1 / np.sqrt(2), np.sqrt(2), 3 / np.sqrt(2)]),
        # With a W of ones, the projected query is (3, 3).
        ("general", [3, 3, 6]),
        # tanh(1 + 2 + the sum of the key), read by ones.
        ("concat", [2 * np.tanh(4), 2 * np.tanh(4), 2 * np.tanh(5)]),
        # The score of a position does not depend on its key.
        ("location", [3, 3, 3]),
    ],
)
def test_scores_worked_by_hand(score, expected):
    sizes = {"concat": {"units": 2}, "location": {"positions": 3}}
    layer = ka.LuongAttention(score, **sizes.get(score, {}), **ONES)
    query = np.array([[[1, 2]]], "float32")
    key = np.array([[[1, 0], [0, 1], [1, 1]]], "float32")

    _, weights = attend(layer, query, key)

    np.testing.assert_allclose(weights[0, 0], softmax(np.array(expected)), rtol=1e-5)


def test_general_score_is_a_bilinear_form(query, value):
    layer = ka.LuongAttention("general", use_bias=True, bias_initializer="ones")

    context, weights = attend(layer, query, value)

    named = weights_of(layer)
    projected = query @ named["step/score/query_projection/kernel"]
    projected += named["step/score/query_projection/bias"]
    expected = softmax(projected @ value.swapaxes(1, 2))
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-7)
    assert_close(context, expected @ value)


def local_by_the_paper(scores, center, half_width, mask):
    """Section 3.2; positions count from the first valid one.

    Returns the weights in the window, and the factors of the Gaussian.
    """
    distance = np.arange(POSITIONS) - mask.argmax(-1)[:, None, None]
    inside = abs(distance - np.floor(center)[..., None]) <= half_width
    squares = (distance - center[..., None]) ** 2
    factors = np.exp(-squares / (2 * (half_width / 2) ** 2))
    return softmax(scores, inside & mask[:, None]), factors


# The last window, positions 1 to 3, is outside of a source of one position.
@pytest.mark.parametrize("lengths", [(POSITIONS, POSITIONS), (POSITIONS, 1)])
def test_local_m_moves_by_one_position_per_query(value, lengths):
    layer = ka.LuongAttention("dot", window="local-m", half_width=1)
    query = value[:, 5 : 5 + QUERIES]
    mask = np.arange(POSITIONS) < np.array(lengths)[:, None]

    _, weights = attend(layer, query, value, value_mask=mask)

    scores = query @ value.swapaxes(1, 2)
    expected, _ = local_by_the_paper(scores, np.arange(QUERIES)[None], 1, mask)
    assert_close(weights, expected, 1e-6)


@pytest.mark.parametrize(
    ("lengths", "first"), [((POSITIONS, POSITIONS), 0), ((POSITIONS, 9), 2)]
)
def test_local_p_predicts_its_centre(query, value, lengths, first):
    layer = ka.LuongAttention("general", window="local-p", half_width=3)
    mask = np.arange(POSITIONS) < np.array(lengths)[:, None]
    # The padding may also be at the start.
    mask[:, :first] = False

    context, weights = attend(layer, query, value, value_mask=mask)

    named = weights_of(layer)
    hidden = np.tanh(query @ named["step/window/hidden/kernel"])
    share = sigmoid(hidden @ named["step/window/center/kernel"][..., 0])
    projected = query @ named["step/score/query_projection/kernel"]
    scores, center = projected @ value.swapaxes(1, 2), mask.sum(-1)[:, None] * share
    inside, factors = local_by_the_paper(scores, center, 3, mask)
    assert_close(weights, inside * factors)
    assert_close(context, inside * factors @ value, 1e-4)


def test_local_p_learns_its_centre(query, value, gradients):
    layer = ka.LuongAttention("dot", window="local-p", half_width=3)
    query = value[:, :QUERIES]
    layer.build(query.shape, value.shape)

    def read(query):
        return ops.sum(layer(query, value) ** 2)

    grads = gradients(read, [query], layer.trainable_variables)

    assert len(grads) == 3
    assert all(np.isfinite(x).all() and (x != 0).any() for x in grads)


def test_values_outside_of_the_window_are_not_read(value):
    # NaN is not masked here: a product with zero would spread it.
    layer = ka.LuongAttention("dot", window="local-m", half_width=1)
    value = value.copy()
    value[:, 5:] = np.nan

    assert np.isfinite(numpy(layer(value[:, :QUERIES], value))).all()


def test_attention_mask_is_that_of_the_positions(value, rng):
    layer = ka.LuongAttention("dot", window="local-m", half_width=2)
    mask = rng.random((BATCH, QUERIES, POSITIONS)) < 0.5

    _, weights = attend(layer, value[:, :QUERIES], value, attention_mask=mask)

    inside = abs(np.arange(POSITIONS) - np.arange(QUERIES)[:, None]) <= 2
    np.testing.assert_array_equal(weights > 0, mask & inside)


def test_location_score_takes_shorter_sources(query, value):
    layer = ka.LuongAttention("location", positions=POSITIONS + 2)

    _, weights = attend(layer, query, value)

    kernel = weights_of(layer)["step/score/projection/kernel"]
    expected = softmax((query[1, 2] @ kernel)[:POSITIONS])
    np.testing.assert_allclose(weights[1, 2], expected, rtol=1e-4)
    with pytest.raises(ValueError, match=r"at most 4 positions.*Received: 17"):
        ka.LuongAttention("location", positions=4)(query, value)


def test_location_score_in_a_decoder_of_unknown_lengths(query, value):
    # On PyTorch, Keras infers shapes with a length of 83 for an unknown one.
    attention = ka.LuongAttention("location", positions=97)
    decoder = ka.AttentionDecoder(
        ka.AttentionCell(keras.layers.GRUCell(UNITS), attention)
    )
    inputs = [keras.Input((None, x.shape[-1])) for x in (query, value)]
    model = keras.Model(inputs, decoder(*inputs)["weights"])

    weights = model.predict([query, value], verbose=0)

    assert_close(weights, decoder(query, value)["weights"], 1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": "cosine"}, "score must be one of 'dot'.*Received: 'cosine'"),
        ({"window": "local"}, "window must be one of 'global'.*Received: 'local'"),
        ({"score": "location"}, "positions must be a positive integer.*None"),
        ({"score": "concat"}, "units must be a positive integer.*None"),
        ({"window": "local-m", "half_width": 0}, "half_width must be.*Received: 0"),
        ({"weighting": "max"}, "weighting must be one of 'softmax'.*Received: 'max'"),
        ({"coverage": True}, "coverage is defined.*Received: score='general'"),
        (
            {"score": "location", "positions": 5, "window": "local-m"},
            "takes no window.*Received: LocationScore",
        ),
        ({"weighting": "monotonic", "window": "local-p"}, "over all positions"),
        ({"weighting": "hard", "window": "local-p"}, "hard choice"),
        (
            {"score": "concat", "units": 3, "coverage": True, "window": "local-m"},
            "coverage sums the weights of all positions",
        ),
    ],
)
def test_parts_that_cannot_be_combined_are_reported(arguments, message):
    with pytest.raises(ValueError, match=message):
        ka.LuongAttention(**arguments)


def test_a_model_comes_back_from_hdf5(query, tmp_path):
    inputs = keras.Input(query.shape[1:])
    model = keras.Model(inputs, ka.LuongAttention()(inputs, inputs))
    model.save(tmp_path / "model.h5")
    again = keras.models.load_model(tmp_path / "model.h5")

    np.testing.assert_array_equal(
        again.predict(query, verbose=0), model.predict(query, verbose=0)
    )


def test_hard_choice_inside_a_window(value):
    layer = ka.LuongAttention("dot", window="local-m", half_width=1, weighting="hard")
    query = value[:, 5 : 5 + QUERIES]

    _, weights = attend(layer, query, value)

    inside = abs(np.arange(POSITIONS) - np.arange(QUERIES)[:, None]) <= 1
    best = np.where(inside, query @ value.swapaxes(1, 2), -np.inf).argmax(-1)
    np.testing.assert_array_equal(weights, np.eye(POSITIONS)[best])


@pytest.mark.parametrize("dtype", ["float64", "mixed_bfloat16"])
def test_every_part_has_the_dtype_of_its_attention(dtype):
    parts = {
        "score": ka.GeneralScore(),
        "key_projection": keras.layers.Dense(4),
        "weighting": ka.HardWeighting(),
        "window": ka.LocalMonotonicWindow(),
    }

    ka.Attention(**parts, dtype=dtype)

    for name, part in parts.items():
        assert part.dtype_policy.name == dtype, name


def test_a_key_projection_that_is_built_keeps_its_precision():
    projection = keras.layers.Dense(4)
    projection.build((None, 3))

    ka.Attention(ka.GeneralScore(), projection, dtype="mixed_bfloat16")

    assert projection.compute_dtype == "float32"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["dot"], "score must be a Score, such as .* Received: 'dot'"),
        ([ka.DotScore], "score must be a Score, such as .* Received: <class"),
        ([ka.DotScore(), 8], "key_projection must be a Layer, such as .* Received: 8"),
        ([ka.DotScore(), None, "softmax", "local-p"], "a LocalWindow, .*: 'local-p'"),
    ],
)
def test_wrong_parts_are_refused(parts, message):
    names = ("score", "key_projection", "weighting", "window")

    with pytest.raises(ValueError, match=message):
        ka.Attention(**dict(zip(names, parts, strict=False)))


@pytest.mark.parametrize("shape", [(BATCH, 1, POSITIONS), (1, QUERIES, POSITIONS)])
def test_the_mask_of_a_local_step_broadcasts(shape, query, value, rng):
    layer = ka.LuongAttention("general", window="local-p", half_width=2)
    layer(query, value)
    memory, mask = layer.memory(value), rng.random(shape) < 0.5

    actual, _ = layer.step(query, memory, mask=mask)

    whole = np.broadcast_to(mask, (BATCH, QUERIES, POSITIONS))
    expected, _ = layer.step(query, memory, mask=whole)
    np.testing.assert_array_equal(*numpy([actual["weights"], expected["weights"]]))


def test_local_m_counts_masked_queries_step_by_step(query, value):
    layer = ka.LuongAttention("general", window="local-m", half_width=1)
    mask = np.array([[False, True, True], [True, False, True]])
    expected = attend(layer, query, value, query_mask=mask)

    actual = step_by_step(layer, query, layer.memory(value), query_mask=mask)

    assert_close(actual, expected, 1e-6)


class MovingWindow(ka.LocalWindow):
    """A custom window, which every query moves by the sum of its features."""

    state_names = ("center",)
    sequential = True

    def initial_state(self, memory, queries):
        return {"center": ops.zeros((ops.shape(memory["values"])[0], queries))}

    def centers(self, query, memory, state):
        center = state["center"] + 1 + ops.sum(query, axis=-1)
        return center, {"center": center}


def test_masked_queries_do_not_move_a_sequential_window():
    layer = ka.Attention(ka.GeneralScore(), window=MovingWindow(1))
    query, value = np.zeros((1, 3, QUERY_DIM), "float32"), np.ones((1, 7, 5), "float32")
    mask = np.array([[True, False, True]])

    _, weights = attend(layer, query, value, query_mask=mask)

    seen = [np.flatnonzero(row).tolist() for row in weights[0]]
    assert seen == [[0, 1, 2], [], [1, 2, 3]]


@keras.saving.register_keras_serializable(package="keras_attention_tests")
class Nearness(ka.DotScore):
    """A custom score: minus the squared distance."""

    def call(self, query, keys):
        difference = query[:, :, None] - keys[:, None]
        return -ops.sum(ops.square(difference), axis=-1)


def test_a_custom_score(value, tmp_path):
    layer = ka.Attention(Nearness(), weighting=ka.HardWeighting())
    query = value[:, 4:7] + 0.01

    _, weights = attend(layer, query, value)

    for t in range(QUERIES):
        assert weights[:, t].argmax(axis=-1).tolist() == [4 + t] * BATCH
    inputs = [keras.Input((None, VALUE_DIM)) for _ in range(2)]
    model = keras.Model(inputs, layer(*inputs))
    restored = reloaded(model, tmp_path)
    assert_close(restored.predict([query, value], verbose=0), value[:, 4:7], 1e-6)


def test_the_kernels_of_concat_differ_from_the_start(rng):
    same = draw(rng, (BATCH, QUERIES, UNITS))
    layer = ka.LuongAttention("concat", units=UNITS)
    layer(same, same)

    projections = layer.memory.key_projection, layer.step.score.query_projection
    key_kernel, query_kernel = numpy([dense.kernel for dense in projections])
    assert not np.isclose(key_kernel, query_kernel).any()
