"""Faster operators of LiteRT models, which give the same results."""

import numpy as np
import pytest
from keras import ops

from attention_testing.models import needs_tensorflow
from keras_attention import beam_search

from .test_litert_quantization import convert, parts, run

pytestmark = needs_tensorflow


def operators(model):
    """Return the names of the kinds of all operators of a model."""
    model, names = parts(model)
    return [names[x.opcodeIndex] for graph in model.subgraphs for x in graph.operators]


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 11)])
def test_log_softmax_is_computed_by_other_operators(rng, shape):
    def call(x):
        return {"log_probs": ops.log_softmax(x, axis=-1)}

    model = convert(call, None, x=(shape, "float32"))
    x = 30 * rng.normal(size=shape).astype("float32")
    x[..., 2] = -np.inf
    x[..., 3] = 1000

    assert "LOG_SOFTMAX" not in operators(model)
    actual, expected = (y["log_probs"] for y in (run(model, x=x), call(x)))
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-5)
    x[..., 4] = np.nan
    assert np.isnan(run(model, x=x)["log_probs"][..., 4]).all()


def test_reshapes_and_slices_without_effect_are_removed(rng):
    def call(x):
        y = ops.reshape(ops.reshape(2 * x, (15, 1)), (5, 3))
        return {
            "expanded": ops.exp(y[:, None])[:, 0],
            "part": ops.exp(y[1:]),
            "strided": ops.exp(y[::2]),
            "same": ops.reshape(x, (3, 5)),
        }

    model = convert(call, None, x=([3, 5], "float32"))
    x = rng.normal(size=(3, 5)).astype("float32")

    actual, expected = run(model, x=x), call(x)
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-6)
    kinds = operators(model)
    # `(3, 5)` to `(5, 3)`, to `(5, 1, 3)`, and back.
    assert kinds.count("RESHAPE") <= 4
    # Those of `part` and `strided`, and that of `[:, 0]`.
    assert kinds.count("STRIDED_SLICE") <= 3


def search(table):
    def step(token_ids, state):
        log_probs = ops.log_softmax(ops.take(state[0, 0], token_ids, axis=0))
        return log_probs, state, ops.ones((*token_ids.shape, 3))

    options = {"start": 0, "end": 4, "max_length": 3, "beam_size": 2}
    return beam_search(step, table[None], **options)


@pytest.fixture(scope="module")
def search_model():
    return convert(search, None, table=([5, 5], "float32"))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_search_reports_what_is_not_finite(search_model, bad):
    """In LiteRT, a sum finds NaN and infinity."""
    table = np.tile(np.arange(5, dtype="float32"), (5, 1))
    table[1, 2] = -np.inf

    actual = run(search_model, table=table)
    expected = search(ops.convert_to_tensor(table))
    assert actual["finite"].tolist() == [True]
    np.testing.assert_array_equal(actual["token_ids"], expected["token_ids"])
    table[0, 1] = bad
    assert run(search_model, table=table)["finite"].tolist() == [False]


def test_a_search_changes_no_shape(search_model):
    """LiteRT would plan the memory of a loop again whenever a shape changes."""
    model, names = parts(search_model)

    for graph in model.subgraphs:
        for operator in graph.operators:
            kind = names[operator.opcodeIndex]
            assert kind != "SLICE"
            if kind == "RESHAPE":
                shape = graph.tensors[operator.inputs[1]]
                assert model.buffers[shape.buffer].data is not None
