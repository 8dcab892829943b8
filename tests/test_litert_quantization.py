"""Weights of LiteRT models in 16 and 8 bits."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_attention import convert_to_litert, litert_quantization

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="conversion needs TensorFlow"
)

ROWS, DEPTH = 300, 16
TABLE = np.random.default_rng(1).normal(size=(ROWS, DEPTH)).astype("float32")


def convert(function, quantize, **shapes):
    """Convert a function of arrays with the shapes and dtypes."""
    import tensorflow as tf

    specs = {name: tf.TensorSpec(*spec) for name, spec in shapes.items()}
    return convert_to_litert({"run": (function, specs)}, quantize=quantize)


def run(model, **inputs):
    module = pytest.importorskip("ai_edge_litert.interpreter")
    interpreter = module.Interpreter(model_content=model)
    return interpreter.get_signature_runner("run")(**inputs)


def parts(model):
    """Return the parts of a file, and the names of the kinds of its operators."""
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    parts = schema.ModelT.InitFromPackedBuf(model, 0)
    names = {number: name for name, number in vars(schema.BuiltinOperator).items()}
    return parts, [names[code.builtinCode] for code in parts.operatorCodes]


def greedy(token):
    """Follow the most similar row of a table five times, and return all of them.

    The table is that of the embeddings, and the matrix of the last layer.
    """
    table = ops.convert_to_tensor(TABLE)

    def step(count, token, total):
        state = ops.take(table, token, axis=0)
        scores = ops.matmul(ops.roll(state, 1, axis=-1), ops.transpose(table))
        _, best = ops.top_k(scores, 1)
        return count + 1, best[:, 0], total + state

    first = ops.take(table, token, axis=0)
    _, token, total = ops.while_loop(
        lambda count, *_: count < 5, step, (0, token, ops.zeros_like(first))
    )
    return {"token": token, "total": total}


@functools.cache
def converted(quantize):
    return convert(greedy, quantize, token=([1], "int32"))


@pytest.mark.parametrize("quantize", ["float16", "int8"])
def test_a_table_of_embeddings_and_of_a_layer_is_stored_once(quantize):
    size = {"float16": 2, "int8": 1}[quantize] * TABLE.size
    model, _ = parts(converted(quantize))
    sizes = [len(x.data) for x in model.buffers if x.data is not None]
    assert sorted(n for n in sizes if n >= TABLE.size) == [size]

    token = np.array([4], "int32")
    found, expected = run(converted(quantize), token=token), greedy(token)
    assert found["token"] == expected["token"]
    tolerance = {"float16": 1e-3, "int8": 2e-2}[quantize]
    largest = np.abs(TABLE).max()
    np.testing.assert_allclose(
        found["total"], expected["total"], atol=5 * tolerance * largest
    )


@pytest.mark.parametrize("quantize", ["float16", "int8"])
def test_no_weights_are_inputs_of_a_loop(quantize):
    """LiteRT copies the inputs of a loop in every step."""
    model, names = parts(converted(quantize))
    loops = [
        (graph, operator)
        for graph in model.subgraphs
        for operator in graph.operators
        if names[operator.opcodeIndex] == "WHILE"
    ]
    assert len(loops) == 1
    [(graph, loop)] = loops
    shapes = [tuple(graph.tensors[number].shape) for number in loop.inputs]
    assert max(np.prod(shape, initial=1) for shape in shapes) < TABLE.size


@pytest.mark.parametrize(
    ("quantize", "size", "tolerance"), [("int8", 0.25, 2e-2), ("float16", 0.5, 1e-3)]
)
def test_weights_are_smaller(quantize, size, tolerance, rng):
    dense = keras.layers.Dense(300)
    inputs = rng.normal(size=(1, 200)).astype("float32")
    expected = ops.convert_to_numpy(dense(inputs))

    def call(inputs):
        return {"outputs": dense(inputs)}

    model = convert(call, quantize, inputs=([1, 200], "float32"))
    weights = 4 * 200 * 300
    assert size * weights < len(model) < 1.2 * size * weights
    found = run(model, inputs=inputs)["outputs"]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found / scale, expected / scale, atol=tolerance)


def test_large_constants_and_vectors_are_exact(rng):
    """In float16, a mask of -1e9 is infinite, and its product with zero is NaN."""
    mask = np.where(TABLE < 0, np.float32(-1e9), np.float32(0))
    vector = rng.normal(size=2000).astype("float32")

    def call(inputs):
        return {"masked": inputs * mask, "sum": inputs[0, 0] + vector}

    model = convert(call, "float16", inputs=(TABLE.shape, "float32"))
    found = run(model, inputs=np.zeros_like(TABLE))
    np.testing.assert_array_equal(found["masked"], 0)
    np.testing.assert_array_equal(found["sum"], vector)


def test_constants_of_equal_bytes_are_kept(monkeypatch):
    """The converter stores zeros of all dtypes in one buffer."""
    monkeypatch.setattr(litert_quantization, "MIN_WEIGHTS", 1)
    zeros, rows = np.zeros((2, 3), "float32"), np.zeros((2, 3), "int32")

    def call(inputs):
        return {"floats": inputs + zeros, "rows": ops.cast(inputs, "int32") + rows}

    model = convert(call, "float16", inputs=([2, 3], "float32"))
    found = run(model, inputs=np.full((2, 3), 1.5, "float32"))
    assert (found["floats"] == 1.5).all() and (found["rows"] == 1).all()


@pytest.mark.exhaustive
def test_int8_leaves_convolutions_in_float16(rng):
    """A convolution of eight bits costs accuracy; its result is that of float16."""
    image = rng.normal(size=(1, 6, 6, 16)).astype("float32")
    convolution = keras.layers.Conv2D(16, 3)
    convolution.build(image.shape)

    def call(image):
        return {"grid": convolution(image)}

    half, eighth = (
        run(convert(call, quantize, image=(image.shape, "float32")), image=image)
        for quantize in ("float16", "int8")
    )
    np.testing.assert_array_equal(eighth["grid"], half["grid"])
