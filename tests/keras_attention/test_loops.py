from functools import partial

import keras
import numpy as np
import pytest
from keras import ops, tree

from attention_testing.arrays import draw, numpy
from attention_testing.models import compiled, needs_tensorflow
from keras_attention import backends, loops

# Every dimension is a different prime, so that no two axes can be confused.
STEPS, BATCH, DIM, UNITS = 5, 2, 3, 7

BACKEND = keras.backend.backend()


def step(state, now):
    """A step with nested state, inputs and outputs that all differ in structure."""
    total, (hidden, count) = state["total"], state["rest"]
    hidden = ops.tanh(ops.matmul(now["x"], now["w"]) + hidden)
    chosen = ops.where(now["mask"][:, None], hidden, total)
    outputs = {"pair": (chosen, hidden * 2.0), "seen": count, "mask": now["mask"]}
    return {"total": total + chosen, "rest": (hidden, count + 1)}, outputs


@pytest.fixture
def arguments(rng):
    total, hidden = draw(rng, (BATCH, UNITS), (BATCH, UNITS))
    state = {"total": total, "rest": (hidden, np.array(0, "int32"))}
    x, w = draw(rng, (STEPS, BATCH, DIM), (STEPS, DIM, UNITS))
    inputs = {"x": x, "w": w, "mask": rng.random((STEPS, BATCH)) < 0.5}
    return tree.map_structure(ops.convert_to_tensor, (state, inputs))


def loop(state, inputs):
    """The result of `scan`, computed in Python."""
    states = []
    for t in range(len(tree.flatten(inputs)[0])):
        state, outputs = step(state, tree.map_structure(lambda x, t=t: x[t], inputs))
        states.append(outputs)
    return state, tree.map_structure(lambda *steps: ops.stack(steps), *states)


def assert_same(actual, expected):
    def compare(x, y):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)

    tree.assert_same_structure(actual, expected)
    tree.map_structure(compare, numpy(actual), numpy(expected))


def scan(state, inputs):
    return loops.scan(step, state, inputs)


@pytest.mark.parametrize("steps", [STEPS, 1])
@pytest.mark.parametrize(
    "how", [lambda run: run, compiled, partial(compiled, xla=True)]
)
def test_equals_a_python_loop(arguments, how, steps):
    state, inputs = arguments
    inputs = tree.map_structure(lambda x: x[:steps], inputs)

    assert_same(how(scan)(state, inputs), loop(state, inputs))


def test_gradient_flows_through_the_loop(arguments, gradients):
    state, inputs = arguments
    arrays = [inputs["x"], inputs["w"], state["rest"][0]]

    def read(run, x, w, hidden):
        start = {"total": state["total"], "rest": (hidden, state["rest"][1])}
        last, outputs = run(start, {**inputs, "x": x, "w": w})
        return ops.sum(last["total"] ** 2) + ops.sum(outputs["pair"][1] ** 3)

    quick = compiled(lambda *tensors: read(scan, *tensors))
    actual = gradients(quick, arrays)

    expected = gradients(lambda *tensors: read(loop, *tensors), arrays)
    for x, y in zip(actual, expected, strict=True):
        assert (y != 0).all()
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_step_is_traced_a_fixed_number_of_times():
    # A loop that is unrolled takes ever longer to compile.
    if BACKEND == "torch":
        pytest.skip("PyTorch runs the loop and compiles nothing")
    traced = []

    def count(state, x):
        traced.append(x)
        return state + x, state

    compiled(lambda numbers: loops.scan(count, ops.zeros(()), numbers))(
        ops.ones((101,))
    )

    assert len(traced) < 5


def test_step_is_run_once_per_input_when_eager():
    if BACKEND == "jax":
        pytest.skip("JAX traces the step and compiles the loop")
    seen = []

    def remember(state, x):
        seen.append(float(x))
        return state, x

    loops.scan(remember, ops.zeros(()), np.arange(STEPS, dtype="float32"))

    assert seen == [0, 1, 2, 3, 4]


@needs_tensorflow
@pytest.mark.parametrize("xla", [False, True])
def test_length_and_batch_may_be_unknown(arguments, xla):
    state, inputs = arguments
    unknown = {
        "x": keras.KerasTensor((None, None, DIM)),
        "w": keras.KerasTensor((None, DIM, UNITS)),
        "mask": keras.KerasTensor((None, None), "bool"),
    }
    row = keras.KerasTensor((None, UNITS))
    start = {"total": row, "rest": (row, keras.KerasTensor((), "int32"))}
    run = compiled(scan, [start, unknown], xla=xla)

    for length, batch in ((5, 2), (2, 2), (3, 1)):
        some = {name: x[:length] for name, x in inputs.items()}
        some["x"], some["mask"] = some["x"][:, :batch], some["mask"][:, :batch]
        hidden, count = state["rest"]
        first = {"total": state["total"][:batch], "rest": (hidden[:batch], count)}
        assert_same(run(first, some), loop(first, some))


@needs_tensorflow
def test_gradient_compiles_for_a_known_length_and_an_unknown_batch(arguments):
    import tensorflow as tf

    state, inputs = arguments

    def read(run, x):
        hidden = ops.zeros((ops.shape(x)[1], UNITS))
        start = {"total": hidden, "rest": (hidden, state["rest"][1])}
        last, _ = run(start, {**inputs, "x": x})
        return ops.sum(last["total"] ** 2)

    @tf.function(input_signature=[tf.TensorSpec((STEPS, None, DIM))], jit_compile=True)
    def compiled_gradient(x):
        return tf.gradients(read(scan, x), x)[0]

    x = inputs["x"]
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = read(loop, x)
    expected = tape.gradient(result, x)
    np.testing.assert_allclose(compiled_gradient(x), expected, rtol=1e-4, atol=1e-5)


@needs_tensorflow
def test_stacked_outputs_keep_their_known_sizes():
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((STEPS, None, UNITS))])
    def run(x):
        state, outputs = loops.scan(lambda s, now: (s + now, now), x[0], x)
        assert state.shape.as_list() == [None, UNITS]
        assert outputs.shape.as_list()[1:] == [None, UNITS]
        return outputs

    assert run(tf.zeros((STEPS, BATCH, UNITS))).shape == (STEPS, BATCH, UNITS)


@pytest.mark.parametrize("steps", [0, None])
def test_no_step_keeps_the_state(arguments, steps):
    state, inputs = arguments
    nothing = tree.map_structure(lambda x: x[:0], inputs)

    def unknown(x):
        return keras.KerasTensor((steps, *x.shape[1:]), x.dtype)

    signature = [
        tree.map_structure(lambda x: keras.KerasTensor(x.shape, x.dtype), state),
        tree.map_structure(unknown, nothing),
    ]

    last, outputs = compiled(scan, signature)(state, nothing)

    assert_same(last, state)
    expected = tree.map_structure(lambda x: x[:0], loop(state, inputs)[1])
    assert_same(outputs, expected)


def test_a_graph_for_a_cpu_is_known(monkeypatch):
    assert not backends.traces_for_cpu()
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    def traced():
        return tf.function(lambda: tf.constant(backends.traces_for_cpu()))().numpy()

    for devices in ([], ["GPU:0"]):
        monkeypatch.setattr(
            "tensorflow.config.list_logical_devices", lambda _, x=devices: x
        )
        assert traced() == (not devices)
