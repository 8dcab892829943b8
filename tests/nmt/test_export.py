import dataclasses
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras_attention_apps.nmt.main import main

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="SavedModels need TensorFlow"
)

# Runs where nothing of ours can be imported.
SERVE = """
import json, sys
import tensorflow as tf
import tensorflow_text

def strings(x):
    if isinstance(x, list):
        return [strings(item) for item in x]
    return x.decode() if isinstance(x, bytes) else x

model = tf.saved_model.load(sys.argv[1])
sentences = [s.encode("utf-8", "surrogateescape") for s in sys.argv[2:]]
told = []
for batch in (sentences, sentences[:1], [], [""]):
    batch = tf.constant(batch, tf.string)
    result = model.signatures["serving_default"](sentences=batch)
    told.append({name: strings(x.numpy().tolist()) for name, x in result.items()})
assert not any(name.startswith("keras_attention") for name in sys.modules)
print(json.dumps(told))
"""
SENTENCES = [
    "the red dog",
    "",
    "a old cat sees the big bird",
    " the\u00a0 \u4e2d\u6587 e\u0301 dog\u2581 ",
    "dog " * 500,
]


@tensorflow_only
def test_a_served_model_says_what_the_python_path_says(model_folder, tmp_path, capsys):
    served = tmp_path / "served"
    assert main(["export", str(served), "--model", str(model_folder)]) == 0
    done = subprocess.run(
        [sys.executable, "-c", SERVE, served, *SENTENCES],
        capture_output=True,
        cwd=tmp_path,
        check=True,
    )
    several, single, none, blank = json.loads(done.stdout.splitlines()[-1])
    assert set(none) == set(several) and not any(none.values())
    assert blank["translation"] == [""] and blank["score"] == [0.0]

    from keras_attention_apps.nmt.inference import Translator

    translator = Translator.from_preset(model_folder)
    expected = translator.translate(SENTENCES)
    assert several["translation"] == [found.text for found in expected]
    assert single["translation"] == several["translation"][:1]
    for row, found in enumerate(expected):
        tokens = [token for token in several["tokens"][row] if token]
        source = [token for token in several["source_tokens"][row] if token]
        assert (
            "".join(source)
            .replace("\u2581", "")
            .startswith("".join(found.source_words[:1]))
            or not source
        )
        assert bool(tokens) == bool(found.words)
        attention = np.array(several["attention"][row])
        assert not attention[len(tokens) :].any()
        assert not attention[:, len(source) :].any()
        assert several["score"][row] == pytest.approx(found.score, abs=1e-3)
        log_probability = several["log_probability"][row]
        assert log_probability == pytest.approx(found.log_probability, abs=1e-2)


@pytest.mark.exhaustive
@tensorflow_only
def test_a_served_translation_is_as_long_as_the_python_path_lets_it(
    translator, tmp_path
):
    import tensorflow as tf
    from keras_attention_apps.nmt.commands.export import save_served
    from keras_attention_apps.nmt.inference import Translator

    config = dataclasses.replace(translator.config, length_ratio=0.5, max_length=40)
    shorter = Translator(config, translator.tokenizer, translator.network)
    save_served(shorter, shorter.search_model(), tmp_path / "served")
    served = tf.saved_model.load(tmp_path / "served").signatures["serving_default"]
    lengths = []
    for sentence in ("dog", "dog " * 30):
        found = served(sentences=tf.constant([sentence]))
        lengths.append(len([x for x in found["tokens"][0].numpy() if x]))
        assert (
            found["translation"].numpy()[0].decode() == shorter.translate(sentence).text
        )
    assert lengths[0] <= 16 < lengths[1]


def test_a_served_model_has_no_size_of_batches(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path / "x"), "--batch-size", "3"])
    assert "--batch-size" in capsys.readouterr().err


@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="there it is possible"
)
def test_other_backends_are_told_what_is_needed(model_folder, tmp_path, capsys):
    assert main(["export", str(tmp_path / "x"), "--model", str(model_folder)]) == 2
    assert "TensorFlow" in capsys.readouterr().err
