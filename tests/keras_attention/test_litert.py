"""Functions as LiteRT models, run by LiteRT and compared with Keras."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import draw, numpy
from attention_testing.models import needs_tensorflow
from attention_testing.repository import module_of
from keras_attention import litert_quantization

from .test_litert_quantization import signature

pytestmark = needs_tensorflow

START, END = 7, 8
SOURCE = np.arange(12, dtype="float32").reshape(1, 4, 3) / 10


@pytest.fixture(scope="module")
def search():
    """Beam search of an untrained decoder with attention."""
    keras.utils.set_random_seed(5)
    cell = ka.AttentionCell(keras.layers.GRUCell(6), ka.AdditiveAttention(5))
    embed, classify = keras.layers.Embedding(9, 4), keras.layers.Dense(9)

    def search(source):
        memory = cell.attention.memory(source)

        def step(token_ids, state):
            outputs, state = cell(embed(token_ids), state, memory)
            scores = 9.0 * classify(outputs["output"])
            return ops.log_softmax(scores), state, outputs["weights"]

        first = ops.matmul(ops.mean(source, axis=1), PROJECTION)
        state = cell.complete_state({"cell": [first]}, memory)
        return ka.beam_search(
            step,
            state,
            start=START,
            end=END,
            max_length=6,
            beam_size=3,
            constraints=[ka.Ban([START]), ka.NoRepeatNgrams(2)],
        )

    search(SOURCE)
    return search


PROJECTION = np.linspace(-1, 1, 18, dtype="float32").reshape(3, 6)


def specs(*lengths):
    import tensorflow as tf

    return {n: {"source": tf.TensorSpec([1, n, 3], tf.float32)} for n in lengths}


@pytest.fixture(scope="module")
def converted(search):
    """The search with a signature for each of two lengths."""
    return converted_for_two_lengths(search)


def converted_for_two_lengths(function):
    signatures = {f"length_{n}": (function, x) for n, x in specs(4, 7).items()}
    return ka.convert_to_litert(signatures, quantize=None)


def assert_same(actual, expected, tolerance=1e-4, atol=1e-5):
    assert sorted(actual) == sorted(expected)
    for name, x in numpy(expected).items():
        np.testing.assert_allclose(actual[name], x, tolerance, atol, err_msg=name)


@pytest.mark.parametrize("length", [4, 7])
def test_a_search_finds_the_same_in_litert(search, converted, length, rng):
    source = draw(rng, (1, length, 3))
    outputs = signature(converted, f"length_{length}")(source=source)
    assert_same(outputs, search(source))
    assert len(set(outputs["token_ids"].ravel().tolist())) > 2


@pytest.mark.exhaustive
def test_a_search_finds_the_same_in_onnx_runtime(search, rng):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    onnx_search = module_of("benchmarks/onnx_search.py")
    source = draw(rng, (1, 4, 3))

    content = onnx_search.to_onnx(search, specs(4)[4])

    assert_same(onnx_search.session(content, threads=1)(source=source), search(source))


@pytest.mark.exhaustive
def test_signatures_share_their_weights(search, converted):
    single = ka.convert_to_litert({"one": (search, specs(4)[4])}, quantize=None)
    table = np.random.default_rng(0).normal(size=(500, 40)).astype("float32")
    large = keras.Variable(table)

    def look_up(source):
        return {"rows": ops.take(large, ops.cast(source[0, :, 0], "int32"), axis=0)}

    pair = converted_for_two_lengths(look_up)
    assert table.nbytes < len(pair) < 1.3 * table.nbytes
    assert len(single) < len(converted)


@pytest.mark.exhaustive
def test_int8_search_is_that_of_keras(search, monkeypatch):
    monkeypatch.setattr(litert_quantization, "MIN_WEIGHTS", 1)
    model = ka.convert_to_litert({"search": (search, specs(4)[4])}, quantize="int8")
    actual = signature(model, "search")(source=SOURCE)
    expected = search(SOURCE)
    np.testing.assert_array_equal(actual["token_ids"], expected["token_ids"])
    np.testing.assert_allclose(actual["scores"], expected["scores"], atol=0.05)


TABLE = np.random.default_rng(3).normal(size=(9, 9)).astype("float32")


def table_step(token_ids, state):
    """A step whose hidden state is the row of the last token."""
    rows = ops.take(TABLE, token_ids, axis=0)
    return ops.log_softmax(2 * rows), {"rows": rows}, rows[..., :3]


def search_table(search, *constraints, **options):
    options |= {"start": START, "end": END, "max_length": 7}
    state = {"rows": ops.zeros((1, 9))}
    return search(table_step, state, constraints=constraints, **options)


def with_phrases(phrases, min_length):
    """Diverse beam search with phrases and a minimum length as inputs."""
    constraints = ka.MinLength(min_length), ka.RequiredPhrases(phrases)
    return search_table(ka.beam_search, *constraints, beam_size=6, beam_groups=2)


def contrastive(min_length):
    options = {"hidden": lambda state: state["rows"]}
    return search_table(ka.contrastive_search, ka.MinLength(min_length), **options)


@pytest.mark.exhaustive
def test_phrases_groups_and_contrastive_search_are_converted():
    import tensorflow as tf

    sizes = {"min_length": tf.TensorSpec([1], tf.int32)}
    phrases = {"phrases": tf.TensorSpec([1, 2, 2], tf.int32), **sizes}
    content = ka.convert_to_litert(
        {"phrases": (with_phrases, phrases), "contrastive": (contrastive, sizes)}
    )
    phrases = np.array([[[3, 3], [1, -1]]], "int32")
    inputs = {"phrases": phrases, "min_length": np.array([6], "int32")}
    for name, function in (("phrases", with_phrases), ("contrastive", contrastive)):
        outputs = signature(content, name)(**inputs)
        # The weights of the file are float16.
        assert_same(outputs, function(**inputs), 1e-3, 1e-3)
        inputs.pop("phrases", None)


def test_bad_arguments():
    with pytest.raises(ValueError, match="at least one signature"):
        ka.convert_to_litert({})
    with pytest.raises(ValueError, match=r"quantize must be one of .*'int4'"):
        ka.convert_to_litert({"one": (len, {})}, quantize="int4")
    with pytest.raises(ValueError, match=r"'one' must be a pair .*built-in function"):
        ka.convert_to_litert({"one": len})


def test_another_backend_is_named(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"KERAS_BACKEND=tensorflow.*jax"):
        ka.convert_to_litert({"one": (len, {})})
