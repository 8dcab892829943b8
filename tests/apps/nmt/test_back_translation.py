import shutil

import numpy as np
import pytest

from attention_testing.combinations import quick_first
from attention_testing.nmt.trainings import contents, lines, small
from keras_attention_apps.common.tokenizer import UNKNOWN
from keras_attention_apps.nmt.data.batches import SentenceBatches
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.training import back_translation
from keras_attention_apps.nmt.training.back_translation import Sampler


@pytest.fixture
def added(few, model_folder, tmp_path):
    """The options that add 30 sentences, and two empty ones, to a training."""
    path = tmp_path / "monolingual.fr"
    path.write_text((few / "train.fr").read_text() * 3 + "\n\n", encoding="utf-8")
    return {"monolingual": path, "reverse-model": model_folder}


@pytest.fixture
def parts_of_twelve(monkeypatch):
    monkeypatch.setattr(back_translation, "PART", 12)


@pytest.fixture
def pairs(monkeypatch):
    """The pairs of every training that begins."""
    collected = []
    init = SentenceBatches.__init__

    def record(self, pairs, *args, **kwargs):
        collected.append(pairs)
        init(self, pairs, *args, **kwargs)

    monkeypatch.setattr(SentenceBatches, "__init__", record)
    return collected


def test_monolingual_text_joins_the_training(
    few, added, tmp_path, parts_of_twelve, untrained_copies, pairs
):
    output = tmp_path / "run"
    assert main(small(few, output, **added, **{"monolingual-weight": 0.5})) == 0

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
    few, added, tmp_path, parts_of_twelve, untrained_copies, capsys
):
    assert main(small(few, tmp_path / "whole", **added)) == 0
    whole, begun = (tmp_path / x / "back-translations" for x in ("whole", "begun"))
    shutil.copytree(whole, begun)
    begun.joinpath("part-000000012.txt").unlink()
    capsys.readouterr()

    assert main(small(few, tmp_path / "begun", **added)) == 0
    printed = capsys.readouterr().out
    assert "24 of 30 sentences are translated back" in printed
    assert "12 of 30" not in printed and "30 of 30" not in printed
    assert contents(begun) == contents(whole)


@pytest.mark.parametrize(
    "option", quick_first(["seed", "back-translation-temperature"])
)
def test_back_translations_of_something_else_are_kept(
    few, added, tmp_path, untrained_copies, capsys, option
):
    assert main(small(few, tmp_path / "run", **added)) == 0
    folder, copy = (tmp_path / x / "back-translations" for x in ("run", "other"))
    shutil.copytree(folder, copy)

    assert main(small(few, tmp_path / "other", **added, **{option: 3})) == 2
    name = option.removeprefix("back-translation-")
    assert f"has back-translations of another {name}" in capsys.readouterr().err
    assert contents(copy) == contents(folder)


@pytest.mark.parametrize("option", ["monolingual", "reverse-model"])
def test_both_options_are_needed(few, added, tmp_path, capsys, option):
    assert main(small(few, tmp_path / "run", **{option: added[option]})) == 2
    assert "--monolingual" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.fixture
def sampler(translator):
    return Sampler(translator.config, translator.tokenizer, translator.network)


def test_samples_depend_on_the_seed_alone(sampler):
    sentences = ["the red dog sees a cat", "a bird likes the old dog", ""] * 3

    def texts(seed):
        translations = sampler.sample(sentences, temperature=1.0, seed=seed)
        return [translation.text for translation in translations]

    drawn = texts(seed=3)
    assert drawn == texts(seed=3) != texts(seed=4)
    assert len(set(drawn)) > 3


def test_samples_at_temperature_zero_are_greedy(sampler, translator):
    sentences = ["the red dog sees a cat", "a bird likes the old dog"]
    greedy = translator.translate(sentences, beam_size=1)
    sampled = sampler.sample(sentences, temperature=0, seed=0)

    assert [x.text for x in greedy] == [x.text for x in sampled]
    np.testing.assert_allclose(
        [x.log_probability for x in greedy],
        [x.log_probability for x in sampled],
        rtol=1e-4,
    )


def test_no_text_has_the_tag(subwords):
    for text in ("<unk>", "\ufffd", "漢字", "\U0001f600", "the dog"):
        assert UNKNOWN not in subwords.encode(text)
