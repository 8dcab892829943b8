"""Shortlists of the subwords among which a search chooses."""

import dataclasses
import json
import zipfile

import keras
import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import END, PAD, START, UNKNOWN
from keras_attention_apps.nmt import LiteTranslator, shortlist
from keras_attention_apps.nmt.commands import export
from keras_attention_apps.nmt.data.dataset import read_pairs
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.network.shortlisted import ShortlistedNetwork
from keras_attention_apps.nmt.shortlist import NEVER, learn_shortlist
from keras_attention_apps.nmt.subwords import pad

from .conftest import untrained

SIZE = 90
SEARCH = {"beam_size": 3, "max_length": 12}


@pytest.fixture(scope="module", params=["self-attention", "bahdanau"])
def with_symbols(request, subwords):
    """An untrained translator with symbols."""
    return untrained(subwords.with_symbols(), request.param)


@pytest.fixture(scope="module")
def pairs(corpus):
    return read_pairs(corpus / "train.en", corpus / "train.fr")


@pytest.fixture(scope="module")
def learned(with_symbols, pairs):
    return learn_shortlist(with_symbols, pairs, size=SIZE)


def sources(translator, *texts):
    return pad([translator.tokenizer.encode(text) for text in texts])


def found(translator, source, **options):
    search = translator.search_model(**SEARCH, **options)
    outputs = search.predict_on_batch({"source": source})
    return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}


def test_likely_translations_of_three_pairs():
    # 5 occurs without 6, and 7 without 8, so that 6 translates to 8.
    pairs = [[5], [5, 6], [6, 5]], [[7], [7, 8], [7, 8]]
    table = shortlist.likely_translations(*pairs, vocabulary=10, width=2)
    assert table.shape == (10, 2)
    assert table[5, 0] == 7
    assert table[6, 0] == 8
    # Subwords that no source has translate to nothing.
    assert (np.delete(table, [5, 6], axis=0) == PAD).all()


def test_candidates_are_different_and_the_same_in_both_forms(with_symbols, learned):
    network = ShortlistedNetwork(with_symbols.network, learned)
    source = sources(with_symbols, "the red dog", "龘 ☃", "a", "")
    candidates = keras.ops.convert_to_numpy(network.candidates(source))
    assert candidates.shape == (4, SIZE)
    for row, ids in zip(candidates, source, strict=True):
        expected = learned.candidates(ids[ids != PAD])
        assert len({*row}) == SIZE
        assert set(row) == set(expected)
        symbols = with_symbols.tokenizer.symbols.values()
        assert row[: len(learned.fixed)].tolist() == [0, 1, 2, 3, *symbols]
        # The subwords of the source may be copied, unless they are banned.
        copied = set(ids.tolist()) - {*with_symbols.tokenizer.banned}
        assert copied <= set(row)
        banned = {*with_symbols.tokenizer.banned} - {PAD, START, UNKNOWN}
        assert not banned & set(row)


def test_the_translations_of_a_word_are_candidates(with_symbols, learned):
    encode = with_symbols.tokenizer.encode
    # All subwords of the prior are left out, so that those of the table remain.
    prior = np.where(learned.prior > NEVER, 0, NEVER).astype("float32")
    bare = dataclasses.replace(learned, prior=prior)
    for word, translation in ("red", "rouge"), ("bird", "oiseau"):
        assert {*encode(translation)} <= {*bare.candidates(encode(word))}


def test_a_shortlist_of_the_whole_vocabulary_changes_nothing(with_symbols, pairs):
    every = learn_shortlist(with_symbols, pairs, size=10**6)
    assert every.size < len(with_symbols.tokenizer)
    source = sources(with_symbols, "the red dog sees a cat", "龘 a")
    actual = found(with_symbols, source, shortlist=every)
    expected = found(with_symbols, source)
    # Others are nearly as probable in an untrained network.
    best = actual["token_ids"][:, 0]
    np.testing.assert_array_equal(best, expected["token_ids"][:, 0])
    # Only PAD, START, UNKNOWN and control characters are missing from the sum.
    np.testing.assert_allclose(actual["scores"], expected["scores"], atol=0.15)


def test_a_search_finds_candidates_alone(with_symbols, learned):
    source = sources(with_symbols, "the red dog", "a big bird likes the cat")
    small = found(with_symbols, source, shortlist=learned)
    for row, ids in zip(small["token_ids"], source, strict=True):
        assert {*row.ravel()} <= {*learned.candidates(ids[ids != PAD])}


def test_the_probability_of_other_subwords_is_estimated(with_symbols, learned, pairs):
    translator, network = with_symbols, with_symbols.network
    source = sources(translator, *pairs.source[:20])
    targets = translator.tokenizer.encode_all(pairs.target[:20])
    begun = pad([[START, *ids[:-1]] for ids in targets])
    hidden, _ = network.decode(begun, network.encode(source), return_weights=True)
    hidden, logits = np.array(hidden), np.array(network.logits(hidden))
    estimates = hidden @ learned.rest[:-1] + learned.rest[-1]
    for row, ids in enumerate(source):
        others = np.ones(logits.shape[-1], bool)
        others[learned.candidates(ids[ids != PAD])[1:]] = False
        sums = np.log(np.exp(logits[row][:, others]).sum(axis=-1))
        count = len(targets[row])
        np.testing.assert_allclose(estimates[row][:count], sums[:count], atol=0.1)


def test_symbols_are_found_exactly_once(with_symbols, learned):
    symbol = next(iter(with_symbols.tokenizer.symbols))
    source = sources(with_symbols, f"the dog {symbol} sees")
    outputs = found(with_symbols, source, shortlist=learned)
    number = with_symbols.tokenizer.symbols[symbol]
    assert number in source
    counts = (outputs["token_ids"][0] == number).sum(axis=-1)
    assert counts.tolist() == [1] * SEARCH["beam_size"]


def test_copying_has_no_shortlist(subwords, pairs):
    copying = untrained(subwords, "bahdanau", copy=True)
    with pytest.raises(UserError, match="with copying cannot have a shortlist"):
        learn_shortlist(copying, pairs)


def test_pairs_must_have_text(with_symbols, pairs):
    long = dataclasses.replace(pairs.chosen([0]), source=["dog " * 200])
    with pytest.raises(UserError, match="at most 60 subwords"):
        learn_shortlist(with_symbols, long)


needs_litert = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="conversion needs TensorFlow"
)


@needs_litert
def test_an_exported_file_has_a_shortlist(corpus, subwords, tmp_path, monkeypatch):
    pytest.importorskip("ai_edge_litert")
    monkeypatch.setattr(export, "TARGET_LENGTHS", (16,))
    translator = untrained(subwords.with_symbols(), "self-attention")
    translator.save(tmp_path / "model")
    path = tmp_path / "short.tflite"
    command = ["export", path, "--model", tmp_path / "model", "--beam-size", 2]
    command += ["--quantize", "none", "--shortlist-data", corpus, "--pair", "en-fr"]
    assert main([*map(str, command), "--shortlist-size", str(SIZE)]) == 0

    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("metadata.json"))["shortlist_size"] == SIZE
    pairs = read_pairs(corpus / "train.en", corpus / "train.fr")
    learned = learn_shortlist(translator, pairs, size=SIZE)
    lite = LiteTranslator(path)
    for text in "the red dog", "龘 ☃", "a big cat":
        ids = lite.tokenizer.encode(text)
        (best,) = lite._search([ids], 1, 1, {})
        columns = min(x for x in lite.lengths if x >= len(ids))
        longest = translator.max_search_length(columns, {}, step=export.TARGET_STEP)
        search = translator.search_model(longest, beam_size=2, shortlist=learned)
        expected = search.predict_on_batch({"source": pad([ids])})
        scores = keras.ops.convert_to_numpy(expected["scores"])
        # Roundings decide between hypotheses of an untrained network.
        np.testing.assert_allclose(best[0].score, scores[0, 0], atol=0.01)
        assert set(best[0].token_ids) <= {END, *learned.candidates(ids)}


@needs_litert
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            ["saved", "--shortlist-data", "x"],
            "--shortlist-data needs the format litert",
        ),
        (["a.tflite", "--pair", "en-fr"], "--pair needs the format argos"),
        (["a.tflite", "--shortlist-data", "x"], "--data needs --pair"),
    ],
)
def test_bad_options_are_refused(
    options, error, model_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    assert main(["export", *options, "--model", str(model_folder)]) != 0
    assert error in capsys.readouterr().err
