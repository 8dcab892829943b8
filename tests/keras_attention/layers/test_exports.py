"""Attention layers of every kind in SavedModels and LiteRT files."""

import inspect
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import draw, numpy
from attention_testing.combinations import quick_first
from attention_testing.layers.cases import CASES, CONVERTED, QUERY_DIM, VALUE_DIM
from attention_testing.models import needs_tensorflow
from keras_attention import convert_to_litert

pytestmark = needs_tensorflow


def serve(folder):
    """Compare the results of a SavedModel with the arrays in the file beside it."""
    import numpy as np
    import tensorflow as tf

    data = np.load(folder + ".npz")
    served = tf.saved_model.load(folder)
    outputs = served.serve([data[name] for name in ("query", "other", "value")])
    assert len(outputs) == len(data.files) - 3
    for index, x in enumerate(outputs):
        np.testing.assert_allclose(x, data[f"arr_{index}"], atol=1e-5)


def serve_elsewhere(folder):
    """Run `serve` in a process that does not import the library."""
    program = f"""
import sys
{inspect.getsource(serve)}
serve(sys.argv[1])
assert "keras_attention" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, folder], check=True)


@pytest.mark.parametrize(
    ("names", "compare"),
    [
        (["coverage", "local-p concat", "hops"], serve),
        pytest.param(list(CASES), serve_elsewhere, marks=pytest.mark.exhaustive),
    ],
)
def test_an_exported_model_serves_other_batches_and_lengths(
    names, compare, rng, tmp_path
):
    # One model of all layers, for queries of either depth.
    depths = QUERY_DIM, VALUE_DIM, VALUE_DIM
    query, other, value = inputs = [keras.Input((None, depth)) for depth in depths]
    outputs = []
    for case in (CASES[name] for name in names):
        queries = [query if case.depths[0] == QUERY_DIM else other]
        outputs.append(case.build()(*queries[: len(case.depths) - 1], value))
    model = keras.Model(inputs, outputs)
    shapes = (3, 4, QUERY_DIM), (3, 4, VALUE_DIM), (3, 17, VALUE_DIM)
    data = dict(zip(("query", "other", "value"), draw(rng, *shapes), strict=True))
    folder = str(tmp_path / "model")

    model.export(folder, verbose=False)
    np.savez(f"{folder}.npz", *numpy(model(list(data.values()))), **data)

    compare(folder)


# Those of which Keras' own export to LiteRT makes a file that LiteRT cannot run.
LOOPS = ("coverage", "monotonic")


@pytest.mark.parametrize(
    "name", quick_first(sorted(CONVERTED, key=lambda x: x not in LOOPS), len(LOOPS))
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
