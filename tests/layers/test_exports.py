"""Attention layers of every kind in SavedModels and LiteRT files."""

import inspect
import subprocess
import sys

import keras
import numpy as np
import pytest
from combinations import quick_first
from keras import ops
from layers.cases import CASES, functional

from keras_attention import convert_to_litert

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow", reason="exports need TensorFlow"
    ),
]


def serve(*folders):
    """Compare the results of SavedModels with the arrays in the files beside them."""
    import numpy as np
    import tensorflow as tf

    for folder in folders:
        data = np.load(folder + ".npz")
        served = tf.saved_model.load(folder)
        names = [name for name in sorted(data.files) if name.startswith("input")]
        found = served.serve([data[name] for name in names])
        np.testing.assert_allclose(found, data["expected"], atol=1e-5, err_msg=folder)


def serve_elsewhere(*folders):
    """Run `serve` in a process that does not import the library."""
    program = f"""
import sys
{inspect.getsource(serve)}
serve(*sys.argv[1:])
assert "keras_attention" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, *folders], check=True)


EXPORTED = ["coverage", "local-p concat", "hops"]


@pytest.mark.parametrize(
    ("names", "compare"),
    [
        (EXPORTED, serve),
        pytest.param(list(CASES), serve_elsewhere, marks=pytest.mark.exhaustive),
    ],
)
def test_exported_models_serve_other_batches_and_lengths(names, compare, rng, tmp_path):
    folders = []
    for number, case in enumerate(CASES[name] for name in names):
        model = functional(case, case.build())
        data = case.draw(rng, batch=3, queries=4, positions=17)
        folder = tmp_path / str(number)
        model.export(folder, verbose=False)
        tensors = {f"input{i}": x for i, x in enumerate(data)}
        expected = ops.convert_to_numpy(model(data))
        np.savez(tmp_path / f"{number}.npz", expected=expected, **tensors)
        folders.append(str(folder))

    compare(*folders)


# Those of which Keras' own export to LiteRT makes a file that LiteRT cannot run.
LOOPS = ("coverage", "monotonic")


@pytest.mark.parametrize(
    "name", quick_first(sorted(CASES, key=LOOPS.__contains__, reverse=True), len(LOOPS))
)
def test_layers_convert_to_litert(name, rng):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    case = CASES[name]
    layer, tensors = case.build(), case.draw(rng, batch=1)
    named = {f"tensor_{i}": x for i, x in enumerate(tensors)}
    expected = ops.convert_to_numpy(layer(*tensors))

    def attend(**named):
        return {"context": layer(*(named[name] for name in sorted(named)))}

    import tensorflow as tf

    specs = {name: tf.TensorSpec(x.shape) for name, x in named.items()}
    if name == "monotonic":
        with pytest.raises(ValueError, match=r"LiteRT has no operator.*Roll"):
            convert_to_litert({"attend": (attend, specs)}, quantize=None)
        return
    model = convert_to_litert({"attend": (attend, specs)}, quantize=None)
    run = interpreter.Interpreter(model_content=model).get_signature_runner("attend")
    np.testing.assert_allclose(run(**named)["context"], expected, atol=1e-5)
