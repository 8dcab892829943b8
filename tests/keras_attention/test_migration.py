"""The page on coming from other layers: old and new layers give the same numbers."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import sigmoid, softmax
from attention_testing.repository import blocks, read
from keras_attention import MonotonicWeighting

PAGE = read("docs/migration.md")


def run(title):
    """Run the first example of the page, then those below a title."""
    parts = re.split(r"^#+ (.*)\n", PAGE, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    names = {"__name__": "page"}
    for section in (sections["Migration"], sections[title]):
        for code in blocks(section):
            exec(compile(code, title, "exec"), names)
    return names


def array(x):
    return np.asarray(ops.convert_to_numpy(x), "float64")


def same(actual, expected):
    np.testing.assert_allclose(array(actual), array(expected), rtol=1e-4, atol=1e-5)


# The formulas of tfa.seq2seq, for one query at a time: keys are the memory times the
# kernel of its layer, the context is a sum of the memory itself.


def bahdanau_scores(query, memory, old, normalize):
    v, b = old["attention_v"], 0.0
    if normalize:
        v = old["attention_g"] * v / np.sqrt(np.sum(v**2))
        b = old["attention_b"]
    keys = memory @ old["memory_layer"]
    processed = (query @ old["query_layer"])[:, None]
    return np.sum(v * np.tanh(keys + processed + b), axis=-1)


def luong_scores(query, memory, old):
    keys = memory @ old["memory_layer"]
    return old.get("attention_g", 1.0) * np.einsum("bu,bsu->bs", query, keys)


def monotonic_weights(p, previous):
    """The parallel form, with its clipped divisor."""
    passed = np.cumprod(np.pad(1 - p, ((0, 0), (1, 0)), constant_values=1), axis=1)
    passed = passed[:, :-1]
    carried = np.cumsum(previous / np.clip(passed, 1e-10, 1.0), axis=1)
    return p * passed * carried


def context_of(weights, memory):
    return np.einsum("bs,bsd->bd", weights, memory)


@pytest.mark.parametrize(
    "title",
    [
        "keras.layers.Attention",
        "keras.layers.AdditiveAttention",
        "keras.layers.MultiHeadAttention",
        "The last hidden state as the query",
        "A weight for every time step",
        "A dense layer over the time steps",
        "AttentionWithContext",
        "The TensorFlow tutorials",
    ],
)
def test_new_layer_equals_the_old_one(title):
    names = run(title)

    assert np.ptp(array(names["old_context"])) > 0.1
    same(names["new_context"], names["old_context"])


@pytest.mark.parametrize("normalize", [True, False])
def test_bahdanau_attention_of_addons(normalize):
    names = run("Bahdanau's weights")
    old, query, memory = names["old"], names["query"], names["value"]

    contexts = names["new_context" if normalize else "plain_context"]
    for t in range(query.shape[1]):
        scores = bahdanau_scores(query[:, t], memory, old, normalize)
        same(contexts[:, t], context_of(softmax(scores, names["mask"]), memory))


def test_luong_attention_of_addons():
    names = run("Luong's weights")
    old, query, memory = names["old"], names["query"], names["value"]

    for t in range(query.shape[1]):
        scores = luong_scores(query[:, t], memory, old)
        weights = softmax(scores, names["mask"])
        same(names["new_context"][:, t], context_of(weights, memory))


def test_monotonic_attention_of_addons():
    names = run("Monotonic weights")
    old, query, memory = names["old"], names["query"], names["value"]

    weights = np.zeros(memory.shape[:2])
    weights[:, 0] = 1
    for t in range(query.shape[1]):
        scores = bahdanau_scores(query[:, t], memory, old, normalize=False)
        scores = scores + old["attention_score_bias"]
        p = np.where(names["mask"], sigmoid(scores), 0)
        weights = monotonic_weights(p, weights)
        same(names["new_context"][:, t], context_of(weights, memory))


def test_attention_wrapper_of_addons():
    names = run("A decoder of AttentionWrapper")
    old, inputs, memory = names["old"], names["query"], names["value"]

    state = np.zeros((2, names["units"]), "float32")
    attention = np.zeros((2, 10), "float32")
    for t in range(inputs.shape[1]):
        joined = np.concatenate([inputs[:, t], attention], axis=-1)
        output, (state,) = old["cell"](joined, [state])
        output = ops.convert_to_numpy(output)
        scores = luong_scores(output, memory, old)
        context = context_of(softmax(scores, names["mask"]), memory)
        attention = np.concatenate([output, context], axis=-1) @ old["attention_layer"]
        attention = attention.astype("float32")
        same(names["new_context"][:, t], attention)


def test_attention_wrapper_without_an_attention_layer_returns_the_context():
    names = run("A decoder of AttentionWrapper")
    old, inputs, memory = names["old"], names["query"], names["value"]
    cell = old["cell"] = keras.layers.GRUCell(names["units"])
    luong = names["LuongAttention"]("general")
    new = names["AttentionDecoder"](
        names["AttentionCell"](cell, luong, order="current", input_feeding=True)
    )
    new.build(inputs.shape, memory.shape)
    projection = new.cell.attention.step.score.query_projection
    projection.set_weights([old["memory_layer"].T])
    steps = new(inputs, memory, value_mask=names["mask"])

    state = np.zeros((2, names["units"]), "float32")
    attention = np.zeros((2, memory.shape[-1]), "float32")
    for t in range(inputs.shape[1]):
        joined = np.concatenate([inputs[:, t], attention], axis=-1)
        output, (state,) = cell(joined.astype("float32"), [state])
        output = ops.convert_to_numpy(output)
        scores = luong_scores(output, memory, old)
        attention = context_of(softmax(scores, names["mask"]), memory)
        same(steps["context"][:, t], attention)
        same(steps["output"][:, t], output)


def test_parallel_monotonic_weights_lose_some_where_the_recursive_ones_do_not(rng):
    """The difference that the page states; the expected weights are in float64."""
    scores = rng.normal(scale=3.0, size=(32, 20, 40)).astype("float32")

    def attend(mode):
        weighting = MonotonicWeighting(mode, noise=0.0, score_bias=0.0)
        memory, actual = {"values": np.zeros((32, 40, 1), "float32")}, []
        state = weighting.initial_state(memory, 1)
        for t in range(20):
            outputs, state = weighting(scores[:, t, None], None, state)
            actual.append(array(outputs["weights"])[:, 0])
        return np.stack(actual, axis=1)

    expected = np.zeros((32, 20, 40))
    previous = np.eye(40)[np.zeros(32, int)]
    for t in range(20):
        p = sigmoid(np.float64(scores[:, t]))
        q = np.zeros(32)
        for s in range(40):
            q = q * (1 - p[:, s - 1] if s else 0) + previous[:, s]
            expected[:, t, s] = p[:, s] * q
        previous = expected[:, t]

    np.testing.assert_allclose(attend("recursive"), expected, atol=1e-4)
    difference = np.max(np.abs(attend("parallel") - expected))
    assert 0.5 < difference < 0.7


def test_every_old_name_is_on_the_page():
    for name in (
        *("Attention", "AdditiveAttention", "MultiHeadAttention"),
        *("AttentionWrapper", "BahdanauAttention", "LuongAttention"),
        *("BahdanauMonotonicAttention", "LuongMonotonicAttention"),
        *("BasicDecoder", "BeamSearchDecoder"),
    ):
        assert re.search(rf"\b{name}\b", PAGE), name
