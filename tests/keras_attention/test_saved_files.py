"""Models in files load, and give the outputs that they gave when they were saved."""

from pathlib import Path

import keras
import numpy as np
import pytest

import keras_attention  # noqa: F401  (registers the layers)
from attention_testing.arrays import numpy

# Saved on TensorFlow, with random weights. `expected.npz` holds the inputs, and the
# outputs of each model as MODEL_0, MODEL_1, ...
SAVED = Path(__file__).parent / "data" / "saved"
FILES = sorted(SAVED.glob("*.keras"))


def test_every_file_has_its_outputs():
    names = {name.rpartition("_")[0] for name in np.load(SAVED / "expected.npz")}

    assert len(FILES) == 12
    assert {file.stem for file in FILES} == names - {""}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_saved_model_gives_the_same_outputs(file):
    expected = np.load(SAVED / "expected.npz")
    model = keras.models.load_model(file)

    outputs = model([expected[name] for name in ("query", "value", "mask")])
    outputs = keras.tree.flatten(outputs)

    names = [name for name in expected if name.rpartition("_")[0] == file.stem]
    assert len(outputs) == len(names)
    for index, output in enumerate(outputs):
        saved = expected[f"{file.stem}_{index}"]
        np.testing.assert_allclose(numpy(output), saved, rtol=1e-5, atol=1e-5)
