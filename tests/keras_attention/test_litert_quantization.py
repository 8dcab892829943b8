"""Weights of LiteRT models in 16 and 8 bits."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import assert_close
from attention_testing.models import needs_tensorflow
from keras_attention import convert_to_litert, litert_quantization

pytestmark = needs_tensorflow

ROWS, DEPTH = 300, 16
TABLE = np.random.default_rng(1).normal(size=(ROWS, DEPTH)).astype("float32")


def convert(function, quantize, samples=None, **shapes):
    """Convert a function of arrays with the shapes and dtypes."""
    import tensorflow as tf

    specs = {name: tf.TensorSpec(*spec) for name, spec in shapes.items()}
    # AutoGraph would take longer than the conversion.
    function = tf.autograph.experimental.do_not_convert(function)
    signatures = {"run": (function, specs)}
    return convert_to_litert(signatures, quantize=quantize, samples=samples)


def run(model, **inputs):
    return signature(model, "run")(**inputs)


def signature(model, name):
    """Return the function of a signature of a file."""
    module = pytest.importorskip("ai_edge_litert.interpreter")
    return module.Interpreter(model_content=model).get_signature_runner(name)


def parts(model):
    """Return the parts of a file, and the names of the kinds of its operators."""
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    parts = schema.ModelT.InitFromPackedBuf(model, 0)
    names = {number: name for name, number in vars(schema.BuiltinOperator).items()}
    return parts, [names[code.builtinCode] for code in parts.operatorCodes]


def buffers(model, size):
    """Return the sizes of the constants of a file that have at least this size."""
    sizes = [len(x.data) for x in parts(model)[0].buffers if x.data is not None]
    return [n for n in sizes if n >= size]


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
    assert buffers(converted(quantize), TABLE.size) == [size]

    token = np.array([4], "int32")
    actual, expected = run(converted(quantize), token=token), greedy(token)
    assert actual["token"] == expected["token"]
    tolerance = {"float16": 1e-3, "int8": 2e-2}[quantize]
    largest = np.abs(TABLE).max()
    assert_close(actual["total"], expected["total"], 5 * tolerance * largest)


@pytest.mark.parametrize("quantize", ["float16", "int8"])
def test_no_weights_are_inputs_of_a_loop(quantize):
    """LiteRT copies the inputs of a loop in every step."""
    model, names = parts(converted(quantize))
    [(graph, loop)] = [
        (graph, operator)
        for graph in model.subgraphs
        for operator in graph.operators
        if names[operator.opcodeIndex] == "WHILE"
    ]
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
    actual = run(model, inputs=inputs)["outputs"]
    assert_close(actual, expected, tolerance * np.abs(expected).max())


def test_rows_of_a_table_are_multiplied_in_8_bits(rng):
    def products(x, chosen):
        return {"y": x @ ops.transpose(ops.take(TABLE, chosen, axis=0))}

    shapes = {"x": ([3, DEPTH], "float32"), "chosen": ([40], "int32")}
    model = convert(products, "int8", **shapes)
    assert buffers(model, 1024) == [ROWS * DEPTH, 4 * ROWS]
    multiply = signature(model, "run")
    # The second call has other rows than the first.
    for _ in range(2):
        chosen = rng.integers(0, ROWS, 40).astype("int32")
        x = rng.normal(size=(3, DEPTH)).astype("float32")
        result = multiply(x=x, chosen=chosen)["y"]
        np.testing.assert_allclose(result, x @ TABLE[chosen].T, atol=0.15)


def test_rows_of_a_table_that_are_returned_are_floats(rng):
    def products(x, chosen):
        rows = ops.take(TABLE, chosen, axis=0)
        return {"y": x @ ops.transpose(rows), "rows": rows}

    shapes = {"x": ([3, DEPTH], "float32"), "chosen": ([40], "int32")}
    chosen = rng.integers(0, ROWS, 40).astype("int32")
    x = rng.normal(size=(3, DEPTH)).astype("float32")
    outputs = run(convert(products, "int8", **shapes), x=x, chosen=chosen)
    np.testing.assert_allclose(outputs["rows"], TABLE[chosen], atol=0.002)
    np.testing.assert_allclose(outputs["y"], x @ TABLE[chosen].T, atol=0.02)


@pytest.mark.parametrize("quantize", ["float16", "int8"])
def test_constants_of_one_number_and_names_take_no_space(quantize, rng):
    vector = rng.normal(size=2000).astype("float32")

    def call(inputs):
        state = ops.full((50, 2000), 0.3) + inputs
        for number in range(5):
            state = ops.sin(state) * (number + vector)
        return {"outputs": state, "zeros": ops.zeros((7, 200)) + inputs[0]}

    model = convert(call, quantize, inputs=([2000], "float32"))
    assert len(model) < 4 * 2000 * 5 + 10_000
    schema, _ = parts(model)
    named = {x.name for graph in schema.subgraphs for x in graph.tensors if x.name}
    (graph,) = schema.subgraphs
    assert len(named) == len(graph.inputs) + len(graph.outputs) == 3
    inputs = rng.normal(size=2000).astype("float32")
    actual, expected = run(model, inputs=inputs), call(ops.convert_to_tensor(inputs))
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-3, atol=1e-5)


def test_large_constants_and_vectors_are_exact(rng):
    """In float16, a mask of -1e9 is infinite, and its product with zero is NaN."""
    mask = np.where(TABLE < 0, np.float32(-1e9), np.float32(0))
    vector = rng.normal(size=2000).astype("float32")

    def call(inputs):
        return {"masked": inputs * mask, "sum": inputs[0, 0] + vector}

    model = convert(call, "float16", inputs=(TABLE.shape, "float32"))
    output = run(model, inputs=np.zeros_like(TABLE))
    np.testing.assert_array_equal(output["masked"], 0)
    np.testing.assert_array_equal(output["sum"], vector)


def test_constants_of_equal_bytes_are_kept(monkeypatch):
    """The converter stores zeros of all dtypes in one buffer."""
    monkeypatch.setattr(litert_quantization, "MIN_WEIGHTS", 1)
    zeros, rows = np.zeros((2, 3), "float32"), np.zeros((2, 3), "int32")

    def call(inputs):
        return {"floats": inputs + zeros, "rows": ops.cast(inputs, "int32") + rows}

    model = convert(call, "float16", inputs=([2, 3], "float32"))
    output = run(model, inputs=np.full((2, 3), 1.5, "float32"))
    assert (output["floats"] == 1.5).all() and (output["rows"] == 1).all()


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


SHAPE = (1, 7, 7, 3)


def residual_network():
    """Return a function with the kinds of convolutions of a CNN, and its inputs.

    Two outputs are those of convolutions. One of these is also added to another.
    """
    keras.utils.set_random_seed(3)
    layers = keras.layers
    image = keras.Input(SHAPE[1:])
    x = layers.Conv2D(4, 3, padding="same")(image)
    x = layers.DepthwiseConv2D(3, padding="same", activation="relu6")(x)
    first = layers.Conv2D(16, 3, padding="same", activation="relu6")(x)
    each = layers.DepthwiseConv2D(3, padding="same", activation="relu")(first)
    second = layers.Conv2D(16, 1)(each)
    total = layers.Add()([second, first])
    top = layers.Dense(11)(layers.Flatten()(layers.Conv2D(16, 3, 2)(total)))
    model = keras.Model(image, {"second": second, "tanh": ops.tanh(second), "top": top})
    for weight in model.weights:
        if weight.name == "bias":
            weight.assign(keras.random.normal(weight.shape, seed=5))
    images = np.random.default_rng(7).normal(size=(13, *SHAPE)).astype("float32")
    return lambda image: model(image), [{"image": image} for image in images]


@functools.cache
def with_samples():
    """Return the network, its inputs, and the same network with 8-bit convolutions."""
    network, samples = residual_network()
    model = convert(network, "int8", samples, image=(SHAPE, "float32"))
    return network, samples, model


def test_convolutions_with_samples_compute_in_8_bits():
    network, samples, model = with_samples()
    for sample in samples:
        actual, expected = run(model, **sample), network(**sample)
        for name, values in expected.items():
            assert actual[name].dtype == "float32"
            scale = np.abs(values).max()
            error = np.abs(actual[name] - values).max() / scale
            # Eight bits are not exact, and this is what they cost.
            assert 1e-4 < error < 0.06


def test_kernels_have_a_scale_for_each_filter_and_additions_are_integers():
    _, _, model = with_samples()
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    model, names = parts(model)
    (graph,) = model.subgraphs
    filters = []
    for operator in graph.operators:
        name = names[operator.opcodeIndex]
        if "CONV_2D" not in name and name != "ADD":
            continue
        tensors = [graph.tensors[number] for number in operator.inputs]
        types = {tensor.type for tensor in tensors[:2]}
        if types == {schema.TensorType.FLOAT32}:
            filters.append(0)
            continue
        assert types == {schema.TensorType.INT8}
        if name != "ADD":
            scaling = tensors[1].quantization
            filters.append(len(scaling.scale))
            assert tensors[1].shape[scaling.quantizedDimension] == filters[-1]
    # The first two are exact.
    assert filters == [0, 0, 16, 16, 16, 16]
    # The second one's output becomes integers, and two results floats.
    kinds = [names[operator.opcodeIndex] for operator in graph.operators]
    assert kinds.count("QUANTIZE") == 1 and kinds.count("DEQUANTIZE") == 2


@pytest.mark.parametrize(
    # The convolutions of the network have 5,292, 1,764, 28,224, 7,056, 12,544 and
    # 20,736 multiplications.
    ("share", "count"),
    [(0.0, 0), (0.09, 1), (0.46, 2), (0.47, 3), (1.0, 6)],
)
def test_the_first_convolutions_stay_exact(monkeypatch, share, count):
    monkeypatch.setattr(litert_quantization, "EXACT_SHARE", share)
    network, samples = residual_network()

    model = convert(network, "int8", samples, image=(SHAPE, "float32"))

    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    model, names = parts(model)
    (graph,) = model.subgraphs
    are_exact = [
        graph.tensors[operator.inputs[1]].type == schema.TensorType.FLOAT32
        for operator in graph.operators
        if "CONV_2D" in names[operator.opcodeIndex]
    ]
    assert are_exact == [True] * count + [False] * (6 - count)


def test_signatures_share_kernels_of_8_bits(rng, monkeypatch):
    import tensorflow as tf

    kernel = rng.normal(size=(3, 3, 32, 64)).astype("float32")
    specs = {"image": tf.TensorSpec((1, 8, 8, 32))}

    def call(image, factor):
        return {"grid": factor * ops.tanh(ops.conv(image, kernel))}

    monkeypatch.setattr(litert_quantization, "EXACT_SHARE", 0)

    factors = {"once": 1.0, "twice": 2.0}.items()
    signatures = {x: (functools.partial(call, factor=y), specs) for x, y in factors}
    samples = [{"image": rng.normal(size=(1, 8, 8, 32)).astype("float32")}]
    model = convert_to_litert(signatures, quantize="int8", samples=samples)
    assert len(parts(model)[0].subgraphs) == 2
    assert buffers(model, kernel.size) == [kernel.size]


@pytest.mark.parametrize(
    ("quantize", "count"), [("float16", 1), (None, 1), ("int8", 0)]
)
def test_samples_need_8_bits_and_must_exist(quantize, count):
    with pytest.raises(ValueError, match=f"{count} samples, quantize={quantize!r}"):
        convert(greedy, quantize, [{}] * count, token=([1], "int32"))
