import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from attention_testing.arrays import assert_close
from attention_testing.tensorflow_serving import documented_functions
from keras_attention_apps.captioner.main import main

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="SavedModels need TensorFlow"
)

# Runs without this package on the path: TensorFlow alone loads the model.
SERVE = """
import json, sys
import tensorflow as tf

folder, *paths = sys.argv[1:]
model = tf.saved_model.load(folder)
reported = []
for batch in (paths, paths[:1]):
    encoded = tf.constant([open(path, "rb").read() for path in batch])
    result = model.signatures["serving_default"](encoded=encoded)
    reported.append({
        "caption": [text.decode() for text in result["caption"].numpy()],
        "words": [[w.decode() for w in row] for row in result["words"].numpy()],
        "log_probability": result["log_probability"].numpy().tolist(),
        "attention": result["attention"].numpy().tolist(),
    })
assert not any(name.startswith("keras_attention") for name in sys.modules)
print(json.dumps(reported))
"""


@tensorflow_only
@pytest.mark.slow
def test_a_served_preset_gives_the_captions_of_python(squares, tmp_path, capsys):
    served = tmp_path / "served"
    options = ["--model", "flickr8k-coco-soft", "--image-size", "96"]
    assert main(["export", str(served), *options]) == 0
    paths = [str(path) for path in sorted((squares / "Images").iterdir())[:5]]
    command = [sys.executable, "-c", SERVE, served, *paths]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, check=True)
    batch, single = json.loads(done.stdout.splitlines()[-1])

    from keras_attention_apps.captioner.inference import Captioner

    expected = Captioner.from_preset("flickr8k-coco-soft", image_size=96).caption(paths)
    assert batch["caption"] == [caption.text for caption in expected]
    assert single["caption"] == batch["caption"][:1]
    for row, caption in enumerate(expected):
        count = len(caption.words)
        assert batch["words"][row][:count] == caption.words
        assert set(batch["words"][row][count:]) <= {""}
        attention = np.array(batch["attention"][row])
        np.testing.assert_allclose(attention[:count], caption.weights, atol=1e-4)
        assert not attention[count:].any()
        actual = batch["log_probability"][row]
        assert actual == pytest.approx(caption.log_probability, rel=1e-4)


@pytest.fixture(scope="module")
def served(model_folder, tmp_path_factory):
    """The tiny model, exported with chunks of two images, and loaded."""
    import tensorflow as tf

    from keras_attention_apps.captioner.commands import export

    folder = str(tmp_path_factory.mktemp("served") / "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "CHUNK", 2)
        assert main(["export", folder, "--model", str(model_folder)]) == 0
    return tf.saved_model.load(folder)


@tensorflow_only
def test_a_served_model_captions_like_python_and_takes_empty_batches(
    served, model_folder, squares, without_tracing
):
    import tensorflow as tf

    from keras_attention_apps.captioner.inference import Captioner

    path = squares / "Images" / "red-8.png"
    actual = served.serve(tf.constant([path.read_bytes()]))

    with without_tracing():
        expected = Captioner.from_preset(model_folder).caption(path)
    count = len(expected.words)
    assert actual["caption"].numpy()[0].decode() == expected.text
    assert_close(actual["attention"][0, :count], expected.weights, 1e-4)
    # Three chunks, of which one has an image that cannot be read.
    file = path.read_bytes()
    batch = served.serve(tf.constant([file, file, b"text", file, file[:60]]))
    captions = [text.decode() for text in batch["caption"].numpy()]
    assert captions == [expected.text, expected.text, "", expected.text, ""]
    errors = [text.decode() for text in batch["error"].numpy()]
    assert [bool(error) for error in errors] == [False, False, True, False, True]
    assert "got a file of the bytes [116 101 120 116]" in errors[2]
    assert not np.any(batch["attention"][2]) and not batch["log_probability"][2]
    empty = served.serve(tf.constant([], tf.string))
    assert {len(x) for x in empty.values()} == {0}


@tensorflow_only
def test_the_documented_requests_fit_the_signature(served, squares, monkeypatch):
    import tensorflow as tf

    def answer(address, inputs):
        assert address.endswith("/v1/models/captioner:predict")
        inputs = {name: tf.constant(rows) for name, rows in inputs.items()}
        actual = served.signatures["serving_default"](**inputs)
        return {"caption": [text.decode() for text in actual["caption"].numpy()]}

    caption = documented_functions(monkeypatch, answer)["caption"]
    path = squares / "Images" / "red-8.png"
    expected = served.serve(tf.constant([path.read_bytes()]))["caption"].numpy()

    assert caption(path, path) == [{"caption": expected[0].decode()}] * 2


@tensorflow_only
def test_words_are_joined_as_in_python():
    from keras_attention_apps.captioner.commands.export import joined
    from keras_attention_apps.captioner.vocabulary import detokenize

    captions = [
        ["a", "man", "'s", "hat"],
        ["一", "只", "狗", "在", "跑"],
        ["黒", "い", "t-shirt", "の", "人"],
        ["ห", "ม", "า", "วิ่", "ง"],
    ]
    padded = [words + [""] * (6 - len(words)) for words in captions]
    outputs = [text.decode() for text in joined(padded).numpy()]

    assert outputs == [detokenize(words) for words in captions]
