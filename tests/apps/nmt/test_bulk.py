"""Translations of large collections: the callable and its options."""

import json

import numpy as np
import pytest

from attention_testing.programs import error_of
from keras_attention_apps.common import bulk
from keras_attention_apps.nmt import TranslateBatch
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main

pytestmark = pytest.mark.usefixtures("cached_models", "echoed")
SENTENCES = ["the old dog sees a red bird", "", "dog"]


@pytest.fixture(scope="module")
def translate_batch(model_folder):
    return TranslateBatch(str(model_folder), maps=True, runtime="keras")


def test_translations_are_those_of_one_process(translate_batch, model_folder):
    expected = Translator.from_preset(model_folder).translate(SENTENCES)

    actual = translate_batch({"id": [2, 7, 1], "text": np.array(SENTENCES)})

    assert actual["id"] == [2, 7, 1]
    assert actual["translation"].tolist() == [x.text for x in expected] == SENTENCES
    assert actual["words"].tolist() == [x.words for x in expected]
    np.testing.assert_allclose(actual["score"], [x.score for x in expected], atol=2e-4)
    assert actual["attention"][0] == expected[0].details()["attention"]
    assert actual["error"].tolist() == [None] * 3


def test_sentences_in_bytes_and_unreadable_ones(translate_batch):
    values = np.array([b"dog", b"caf\xe9", None, b"a red bird"], object)

    translations = translate_batch({"text": values})

    texts = translate_batch({"text": ["dog", "a red bird"]})["translation"]
    assert translations["translation"].tolist() == [texts[0], None, None, texts[1]]
    first, broken, nothing, last = translations["error"]
    assert first is None and last is None
    assert broken == "not UTF-8: byte 0xe9 at position 3"
    assert nothing == "expected a string or bytes. Received: NoneType"


@pytest.fixture
def local(monkeypatch):
    """Let commands run without Ray, until they start it."""
    pytest.importorskip("pyarrow")
    require = bulk.require
    monkeypatch.setattr(bulk, "require", lambda x: x == "ray.data" or require(x))


def test_a_job_is_not_resumed_with_another_input(
    local, model_folder, tmp_path, monkeypatch, capsys
):
    def run(inputs, model_batch, parts, **options):
        row = dict.fromkeys(parts.schema.names) | {"id": "1"}
        parts.write({name: [value] for name, value in row.items()})
        return 0, 0, 0

    monkeypatch.setattr(bulk, "run", run)
    text, model = tmp_path / "text", ["--model", str(model_folder)]
    folder = str(tmp_path / "out.jsonl")

    def translate(*options):
        files = ["--input", str(text), "--output", folder]
        return main(["translate", *files, "--engine", "ray", *model, *options])

    for content, code in (("dog\n", 0), ("dog\n", 0), ("cat\n", 2)):
        text.write_text(content)
        assert translate() == code
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"{folder!r} was written with input_digest=" in message
    text.write_text("dog\n")
    assert translate("--id-column", "number") == 2
    assert "id_column='id' instead of 'number'" in capsys.readouterr().err
    assert translate("--precision", "mixed_bfloat16") == 2
    assert "'precision': 'mixed_bfloat16'" in capsys.readouterr().err

    recorded = json.loads((tmp_path / "out.jsonl" / "_options.json").read_text())
    assert recorded["options"] == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "ray"], "needs --output"),
        (["--engine", "ray", "--output", "x.jsonl"], "needs --input"),
        (["dog", "--engine", "ray"], "sentences as arguments cannot be used with"),
        (["--engine", "ray", "--plot", "x"], "with --engine ray. Received: x"),
        (["--engine", "ray", "--n-best", "2"], "--n-best cannot be used with --engine"),
        (["dog", "--part-size", "2"], "--part-size needs --engine ray"),
    ],
)
def test_contradictory_options_are_errors(options, message, capsys):
    assert message in error_of(main, ["translate", *options], capsys)


def test_the_search_is_checked_before_anything_is_written(
    local, model_folder, tmp_path, capsys
):
    (tmp_path / "text").write_text("a dog\n")
    files = ["--input", tmp_path / "text", "--output", tmp_path / "out.jsonl"]
    options = ["--engine", "ray", "--model", model_folder, "--beam-groups", "3"]
    error = error_of(main, ["translate", *files, *options], capsys)

    assert "beam_groups must divide beam_size, 4. Received: 3" in error
    assert not (tmp_path / "out.jsonl").exists()
