"""Layers exported to ONNX by `model.export`, on every backend, run in onnxruntime."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.combinations import quick_first
from attention_testing.layers.cases import CASES, CONVERTED, functional

BACKEND = keras.backend.backend()
# Converters, and runtime.
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip(
    {"jax": "jax2onnx", "tensorflow": "tf2onnx", "torch": "onnx"}[BACKEND]
)

# PyTorch unrolls their loop over the queries, whose number is that of the file.
LOOPS = ("coverage", "monotonic", "parallel", "mocha")
FIRST = ("additive", "sparsemax")


@pytest.fixture(autouse=True)
def no_functions_of_earlier_exports():
    """Remove what tf2onnx leaves behind, as the next export may reuse its names."""
    if BACKEND != "tensorflow":
        yield
        return
    from tensorflow.python.eager import context

    before = context.context().list_function_names()
    yield
    for name in context.context().list_function_names() - before:
        if re.fullmatch("while_(cond|body)_function_[0-9]+", name):
            context.context().remove_function(name)


@pytest.mark.parametrize(
    "name", quick_first(sorted(CONVERTED, key=lambda x: x not in FIRST), 2)
)
def test_an_onnx_file_takes_other_batches_and_lengths(name, rng, tmp_path):
    case = CASES[name]
    model = functional(case, case.build())
    model(case.draw(rng))

    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    queries = 1 if BACKEND == "torch" and name in LOOPS else 4
    for batch, positions in ((1, 1), (3, 17)):
        data = case.draw(rng, batch=batch, queries=queries, positions=positions)
        names = [tensor.name for tensor in session.get_inputs()]
        actual, *_ = session.run(None, dict(zip(names, data, strict=True)))
        expected = ops.convert_to_numpy(model(data))
        np.testing.assert_allclose(actual, expected, atol=1e-5)
