import dataclasses

import keras
import numpy as np
import pytest

from attention_testing.programs import assert_same_results
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.inference import hypotheses
from keras_attention_apps.nmt import subwords as subwords_module
from keras_attention_apps.nmt.data.dataset import Pairs
from keras_attention_apps.nmt.inference import Translator, length_ratio
from keras_attention_apps.nmt.main import main

from .conftest import untrained

LINES = ["the red dog", "", "a bird", "a old cat sees the big dog", "the \u4e2d", " "]


def test_translations_come_in_order_whatever_the_batches(model_folder, cached_models):
    # The command below has the same search.
    fresh = Translator.from_preset(model_folder)
    # Another test may have searched with it.
    fresh._search_models.clear()
    options = {"beam_size": 2, "n_best": 2}
    one_by_one = [next(fresh.translate_each([line], **options)) for line in LINES]
    if keras.backend.backend() == "tensorflow":
        # Single sentences of similar lengths are traced once.
        (search,) = fresh._search_models.values()
        assert search.predict_function.experimental_get_tracing_count() == 1
    together = fresh.translate(LINES, beam_size=2, batch_size=3)

    for line, (translation, *others), reference in zip(
        LINES, one_by_one, together, strict=True
    ):
        assert translation.source_words == reference.source_words == line.split()
        assert translation.text == reference.text == " ".join(translation.words)
        assert translation.score == pytest.approx(reference.score, abs=1e-4)
        assert translation.weights.shape == (
            len(translation.words),
            len(translation.source_words),
        )
        np.testing.assert_allclose(translation.weights, reference.weights, atol=1e-4)
        total = translation.weights.sum(axis=1) + translation.end_weights
        np.testing.assert_allclose(total, 1, atol=1e-5)
        # The best of several come first, and subwords have their probabilities.
        assert len(others) == bool(line.strip())
        for other in others:
            assert translation.score >= other.score
            total = np.sum(np.log(other.probabilities))
            assert total == pytest.approx(other.log_probability, abs=1e-4)
            assert len(other.subwords) == len(other.probabilities)


def test_a_model_without_attention_aligns_nothing(eager, subwords):
    translations = untrained(subwords, "none").translate("the red dog")
    assert translations.words and translations.weights.shape == (
        len(translations.words),
        3,
    )
    assert not translations.weights.any()


def test_the_command_prints_the_same(model_folder, cached_models, capsys):
    command = ["translate", LINES[0], "--model", str(model_folder), "--beam-size", "2"]
    assert main(command) == 0
    expected = Translator.from_preset(model_folder).translate(LINES[0], beam_size=2)
    assert capsys.readouterr().out == f"{expected.text}\n"


def test_invalid_options_of_a_model_are_refused(model_folder):
    with pytest.raises(UserError, match=r"dropout must be .*0\.99\. Received: 2"):
        Translator.from_preset(model_folder, dropout=2)


def test_words_of_scripts_without_spaces_are_aligned(unspaced_subwords, monkeypatch):
    translator = untrained(unspaced_subwords, "bahdanau")
    text = "我们看见了 iPhone 手机，很好！"
    token_ids = np.array(unspaced_subwords.encode(text))
    # Each subword attends to itself.
    outputs = {
        "token_ids": token_ids[None, None],
        "weights": np.eye(len(token_ids))[None, None],
        "lengths": np.array([[len(token_ids)]]),
        "scores": np.array([[-1.0]]),
        "log_probs": np.array([[-2.0]]),
        "token_log_probs": np.full((1, 1, len(token_ids)), -0.5),
    }
    ranked = hypotheses(outputs)
    monkeypatch.setattr(translator, "_search", lambda *arguments: ranked)
    translation = translator.translate(text)

    assert translation.text == text
    assert translation.words == translation.source_words
    assert len(translation.words) > 3 and "iPhone" in translation.words
    assert translation.alignment == [(i, i) for i in range(len(translation.words))]


@pytest.mark.exhaustive
def test_compiled_search_finds_the_same(translator):
    parts = translator.config, translator.tokenizer, translator.network
    compiled = Translator(*parts, jit_compile=True)
    # Three sentences, so one row of padding.
    both = translator, compiled
    expected, actual = (x.translate(LINES[:4], beam_size=2) for x in both)

    assert_same_results(actual, expected)
    (search,) = compiled._search_models.values()
    assert search.jit_compile


@pytest.mark.exhaustive
def test_half_precision_translates_about_the_same(eager, model_folder):
    policy = keras.config.dtype_policy()
    full = Translator.from_preset(model_folder)
    half = Translator.from_preset(model_folder, precision="mixed_bfloat16")

    assert keras.config.dtype_policy() == policy
    expected, actual = (x.translate(LINES[0], beam_size=1) for x in (full, half))
    assert actual.score != expected.score
    assert actual.score == pytest.approx(expected.score, abs=0.1)


def test_an_empty_sentence_has_an_empty_translation(translator):
    nothing = translator.translate(" \t")
    assert (nothing.text, nothing.words, nothing.alignment) == ("", [], [])
    assert nothing.log_probability == 0 and not nothing.cut


def test_a_very_long_sentence_is_cut(translator, echoed):
    translations = translator.translate("dog " * 10_000)
    assert translations.cut
    assert 0 < len(translations.source_words) < 20
    assert set(translations.source_words) == {"dog"}


def test_a_huge_text_is_cut_before_it_is_tokenized(subwords, monkeypatch):
    monkeypatch.setattr(subwords_module, "MAX_CHARACTERS", 9)
    assert subwords.encode("a dog runs") == subwords.encode("a dog run")
    assert subwords.encode_all(["a dog runs"]) == [subwords.encode("a dog run")]


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_has_at_least_one_sentence(translator, batch_size):
    for lines in (LINES, LINES[0]):
        with pytest.raises(ValueError, match=f"at least 1. Received: {batch_size}"):
            translator.translate(lines, batch_size=batch_size)


def test_wrong_arguments_are_refused(translator):
    with pytest.raises(UserError, match=r"such as a list\. Received one: 'the dog'"):
        next(translator.translate_each("the dog"))
    with pytest.raises(UserError, match="n_best must be between 1 and beam_size, 2"):
        next(translator.translate_each(["x"], beam_size=2, n_best=3))


def test_the_length_ratio_limits_translations(translator):
    def longest(ratio):
        config = dataclasses.replace(translator.config, length_ratio=ratio)
        model = Translator(config, translator.tokenizer, translator.network)
        return model.max_search_length(4, {})

    assert (longest(0.0), longest(None)) == (16, 20)


def test_half_precision_is_saved_and_loaded(translator, model_folder):
    loaded = Translator.from_preset(model_folder)

    assert loaded.config == translator.config
    assert loaded.tokenizer.content == translator.tokenizer.content
    weights = (x.network.get_weights() for x in (loaded, translator))
    for loaded_weights, expected in zip(*weights, strict=True):
        np.testing.assert_allclose(loaded_weights, expected, rtol=1 / 200, atol=1e-6)


def test_the_length_ratio_is_measured_on_pairs(subwords):
    source = ["the red dog"] * 999 + ["dog"]
    target = ["the red dog"] * 999 + ["dog " * 100]
    count = len(subwords.encode("the red dog"))
    ratio = length_ratio(subwords, Pairs(source, target))

    assert count <= ratio * (count + 5) <= count + 1


def test_a_folder_may_have_the_name_of_a_preset(translator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "multi30k-en-de-bahdanau"
    translator.save(tmp_path / name)

    ours, shipped = (Translator.from_preset(x) for x in (f"./{name}", name))
    assert ours.config.units == translator.config.units != shipped.config.units


@pytest.mark.parametrize(
    ("attention", "changes"),
    [
        ("bahdanau", {}),
        ("luong", {"window": "local-p", "half_width": 2}),
        ("self-attention", {"decoder_layers": 3}),
        ("none", {}),
        ("self-attention", {"copy": True}),
        ("bahdanau", {"copy": True}),
    ],
)
def test_forced_decoding_gives_what_the_search_gave(subwords, attention, changes):
    translator = untrained(subwords, attention, **changes)
    sources = [translator.tokenizer.encode(line) for line in LINES if line.strip()]
    search = translator.search_options(beam_size=2, length_penalty=0.5)
    ranked = translator._search(sources, 4, 2, search)
    expected = [of_source[0] for of_source in ranked]
    targets = [x.token_ids[: x.length].tolist() for x in expected]
    actual = translator.forced_hypotheses(sources, targets, length_penalty=0.5)

    for hypothesis, reference in zip(actual, expected, strict=True):
        size = reference.length
        assert hypothesis.token_ids.tolist() == reference.token_ids[:size].tolist()
        assert hypothesis.score == pytest.approx(reference.score, abs=1e-4)
        assert hypothesis.log_probability == pytest.approx(
            reference.log_probability, abs=1e-4
        )
        pairs = (
            (
                hypothesis.token_log_probabilities,
                reference.token_log_probabilities[:size],
            ),
            (hypothesis.weights, reference.weights[:size]),
        )
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
