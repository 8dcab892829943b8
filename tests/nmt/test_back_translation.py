import json
import shutil

import numpy as np
import pytest
from keras_attention_apps.common.text import UNKNOWN
from keras_attention_apps.nmt.config import SamplingConfig
from keras_attention_apps.nmt.data.batches import SentenceBatches
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.training import back_translation

from .trainings import lines, small


@pytest.fixture
def monolingual(few, tmp_path):
    path = tmp_path / "monolingual.fr"
    path.write_text((few / "train.fr").read_text() * 3 + "\n\n", encoding="utf-8")
    return path


@pytest.fixture
def parts_of_twelve(monkeypatch):
    monkeypatch.setattr(back_translation, "PART", 12)


def options(monolingual, model_folder, **changes):
    return {"monolingual": monolingual, "reverse-model": model_folder, **changes}


@pytest.fixture
def pairs(monkeypatch):
    """The pairs of every training that begins."""
    found = []
    init = SentenceBatches.__init__

    def record(self, pairs, *args, **kwargs):
        found.append(pairs)
        init(self, pairs, *args, **kwargs)

    monkeypatch.setattr(SentenceBatches, "__init__", record)
    return found


def test_monolingual_text_joins_the_training(
    few, monolingual, model_folder, tmp_path, parts_of_twelve, untrained_copies, pairs
):
    output = tmp_path / "run"
    added = options(monolingual, model_folder, **{"monolingual-weight": 0.5})
    assert main(small(few, output, **added)) == 0

    parts = sorted((output / "back-translations").glob("part-*"))
    assert [len(lines(part)) for part in parts] == [12, 12, 6]
    targets = lines(few / "train.fr")
    (training,) = pairs
    count = len(training) - len(targets)
    assert 0 < count <= 30
    assert training.back_translated == [False] * len(targets) + [True] * count
    assert training.weights == [1] * len(targets) + [0.5] * count
    assert set(training.target) == set(targets)
    written = [x for part in parts for x in lines(part) if x]
    assert training.source[len(targets) :] == written


def test_an_interrupted_translation_continues_with_the_missing_parts(
    few, monolingual, model_folder, tmp_path, parts_of_twelve, untrained_copies, capsys
):
    added = options(monolingual, model_folder)
    assert main(small(few, tmp_path / "whole", **added)) == 0
    whole, begun = (tmp_path / x / "back-translations" for x in ("whole", "begun"))
    shutil.copytree(whole, begun)
    begun.joinpath("part-000000012.txt").unlink()
    capsys.readouterr()

    assert main(small(few, tmp_path / "begun", **added)) == 0
    printed = capsys.readouterr().out
    assert "24 of 30 sentences are translated back" in printed
    assert "12 of 30" not in printed and "30 of 30" not in printed
    for part in whole.iterdir():
        assert (begun / part.name).read_bytes() == part.read_bytes()


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"seed": 3}, "seed"),
        pytest.param(
            {"back-translation-temperature": 0.5},
            "temperature",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_back_translations_of_something_else_are_kept(
    few, monolingual, model_folder, tmp_path, untrained_copies, capsys, changes, name
):
    added = options(monolingual, model_folder)
    assert main(small(few, tmp_path / "run", **added)) == 0
    folder = tmp_path / "run" / "back-translations"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.copytree(folder, tmp_path / "other" / "back-translations")

    assert main(small(few, tmp_path / "other", **added, **changes)) == 2
    assert f"has back-translations of another {name}" in capsys.readouterr().err
    copied = tmp_path / "other" / "back-translations"
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before


@pytest.mark.parametrize("option", ["monolingual", "reverse-model"])
def test_both_options_are_needed(
    few, monolingual, model_folder, tmp_path, capsys, option
):
    added = options(monolingual, model_folder)
    assert main(small(few, tmp_path / "run", **{option: added[option]})) == 2
    assert "--monolingual" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_samples_depend_on_the_seed_alone(translator):
    sentences = ["the red dog sees a cat", "a bird likes the old dog", ""]

    def texts(**sampling):
        found = translator.translate_each(
            sentences, n_best=7, sampling=SamplingConfig(**sampling)
        )
        return [[translation.text for translation in best] for best in found]

    drawn = texts(sampling_temperature=1.0, seed=3)
    assert drawn == texts(sampling_temperature=1.0, seed=3)
    assert drawn != texts(sampling_temperature=1.0, seed=4)
    assert [len(best) for best in drawn] == [7, 7, 1]
    assert len(set(drawn[0])) > 1


def test_samples_at_temperature_zero_are_greedy(translator):
    sentences = ["the red dog sees a cat", "a bird likes the old dog"]
    greedy = translator.translate(sentences, beam_size=1)
    sampled = translator.translate(
        sentences, sampling=SamplingConfig(sampling_temperature=0)
    )
    one = translator.translate(
        sentences, sampling=SamplingConfig(sampling_temperature=1, sampling_top_k=1)
    )

    assert (
        [x.text for x in greedy] == [x.text for x in sampled] == [x.text for x in one]
    )
    np.testing.assert_allclose(
        [x.log_probability for x in greedy],
        [x.log_probability for x in sampled],
        rtol=1e-4,
    )


def test_the_command_samples(model_folder, echoed, capsys):
    argv = ["translate", "the red dog", "--model", str(model_folder), "--n-best", "9"]
    assert main([*argv, "--json", "--sampling-temperature", "1"]) == 0
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(line["translations"]) == 9

    argv += ["--sampling-temperature", "1", "--runtime", "litert"]
    assert main(argv) == 2
    assert "--sampling-temperature needs the runtime keras" in capsys.readouterr().err


def test_sampling_takes_no_glossary(translator):
    with pytest.raises(ValueError, match="glossary"):
        translator.translate(
            "the dog",
            sampling=SamplingConfig(sampling_temperature=1),
            glossary={"dog": "chien"},
        )


def test_no_text_has_the_tag(subwords):
    for text in ("<unk>", "\ufffd", "漢字", "\U0001f600", "the dog"):
        assert UNKNOWN not in subwords.encode(text)
