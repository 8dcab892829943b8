import inspect
import json
import subprocess
import sys
import unicodedata
from importlib.util import find_spec

import keras
import numpy as np
import pytest

from attention_testing.combinations import quick_first
from attention_testing.tensorflow_serving import documented_functions
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.subwords import clean

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow" or not find_spec("tensorflow_text"),
    reason="SavedModels need TensorFlow and tensorflow-text",
)


def answers(folder, batches):
    """Return the results of a served model for batches of sentences, as lists."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    def strings(x):
        if isinstance(x, list):
            return [strings(item) for item in x]
        return x.decode() if isinstance(x, bytes) else x

    serve = tf.saved_model.load(folder).signatures["serving_default"]
    batches = [[x.encode("utf-8", "surrogateescape") for x in y] for y in batches]
    return [
        {
            name: strings(x.numpy().tolist())
            for name, x in serve(sentences=tf.constant(batch, tf.string)).items()
        }
        for batch in batches
    ]


def answers_elsewhere(folder, batches):
    """Run `answers` in a process that cannot import this package."""
    program = f"""
import json, sys
{inspect.getsource(answers)}
found = answers(sys.argv[1], json.loads(sys.argv[2]))
assert not any(name.startswith("keras_attention") for name in sys.modules)
print(json.dumps(found))
"""
    command = [sys.executable, "-c", program, folder, json.dumps(batches)]
    return json.loads(subprocess.check_output(command, cwd=folder).splitlines()[-1])


SENTENCES = [
    "the red dog",
    "",
    "a old cat sees the big bird",
    " the\u00a0 \u4e2d\u6587 e\u0301 dog\u2581 ",
    "the\u200b r\u00aded\ufeff dog",
    "\u2060",
    "dog " * 500,
]


@tensorflow_only
@pytest.mark.parametrize("ask", quick_first([answers, answers_elsewhere]))
def test_a_served_model_gives_the_translations_of_python(
    ask, model_folder, tmp_path, capsys, monkeypatch
):
    # Three chunks.
    monkeypatch.setattr("keras_attention_apps.nmt.commands.export.CHUNK", 3)
    served = str(tmp_path / "served")
    assert main(["export", served, "--model", str(model_folder)]) == 0
    batches = [SENTENCES, SENTENCES[:1], [], [""], ["caf\udce9", SENTENCES[0]]]
    batch, single, none, blank, other = ask(served, batches)
    assert other["translation"] == ["", batch["translation"][0]]
    assert other["error"] == ["expected UTF-8, got other bytes", ""]
    assert set(none) == set(batch) and not any(none.values())
    assert batch["cut"] == [False] * (len(SENTENCES) - 1) + [True]
    assert not any(batch["error"])
    assert blank["translation"] == [""] and blank["score"] == [0.0]

    from keras_attention_apps.nmt.inference import Translator

    expected = Translator.from_preset(model_folder).translate(SENTENCES)
    assert batch["translation"] == [actual.text for actual in expected]
    assert single["translation"] == batch["translation"][:1]
    for row, actual in enumerate(expected):
        tokens, source = (
            [*filter(None, batch[x][row])] for x in ("subwords", "source_subwords")
        )
        text = "".join(source).replace("\u2581", "")
        assert text.startswith("".join(actual.source_words[:1])) or not source
        assert bool(tokens) == bool(actual.words)
        attention = np.array(batch["attention"][row])
        assert not attention[len(tokens) :].any()
        assert not attention[:, len(source) :].any()
        assert batch["score"][row] == pytest.approx(actual.score, abs=1e-3)
        log_probability = batch["log_probability"][row]
        assert log_probability == pytest.approx(actual.log_probability, abs=1e-2)


def test_the_documented_request_has_the_input_of_the_signature(monkeypatch):
    def answer(address, inputs):
        assert address.endswith("/v1/models/nmt:predict")
        assert inputs == {"sentences": ["A dog runs.", "Two."]}
        return {"translation": ["Ein Hund läuft.", "Zwei."]}

    translate = documented_functions(monkeypatch, answer)["translate"]

    assert translate("A dog runs.", "Two.")[1] == {"translation": "Zwei."}


INVISIBLE = [0xAD, 0x34F, *range(0x180B, 0x1810), *range(0x200B, 0x2010), 0x2060]
INVISIBLE += [0xFE0F, 0xFEFF, 0xE0067, 0xE007F, 0xE0100]


@tensorflow_only
@pytest.mark.parametrize(
    "code_points", quick_first([INVISIBLE, [*range(0xD800), *range(0xE000, 0x110000)]])
)
def test_the_graph_cleans_text_as_python_does(code_points):
    import tensorflow as tf

    from keras_attention_apps.nmt.commands.export import cleaned

    # Marks alone, in a word, beside accents, in Hindi, Mongolian, emoji and a flag.
    patterns = (
        "{}",
        "a{}b ",
        "a\u0301{}\u0323",
        "\u0915\u094d{}\u0937",
        "\u182d{}\u1820",
    )
    patterns += "\U0001f469\u200d{}\u200d\U0001f468", "\U0001f3f4{}\U000e007f"
    for pattern in patterns:
        texts = [pattern.format(chr(point)) for point in code_points]
        outputs = cleaned(tf.constant([text.encode() for text in texts])).numpy()
        pairs = zip(code_points, map(clean, texts), outputs, strict=True)
        other = [point for point, text, got in pairs if text != got.decode()]
        # Python does not reorder accents that are newer than its version of Unicode.
        assert {unicodedata.category(chr(point)) for point in other} <= {"Cn"}
        assert len(other) < 50
