"""Copying: words of the source that the vocabulary spells in several subwords."""

import keras
import numpy as np
import pytest
from keras import ops, tree

from attention_testing.arrays import assert_close
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt import inference
from keras_attention_apps.nmt.data.batches import SentenceBatches
from keras_attention_apps.nmt.data.dataset import Pairs
from keras_attention_apps.nmt.network.translation_network import (
    extended_ids,
    word_numbers,
)
from keras_attention_apps.nmt.subwords import NONE, Copying, Subwords

from .conftest import untrained

SENTENCE = "the Zorbalix (4711) sees the \u6771\u4eac Zorbalix!"


@pytest.fixture(scope="module")
def copying(subwords):
    return Copying(subwords)


def words_of(subwords, token_ids, numbers):
    """The text of each numbered word, without spaces."""
    return [
        subwords.decode(np.array(token_ids)[numbers == number].tolist())
        for number in range(numbers.max() + 1)
    ]


def test_words_of_several_subwords_are_numbered(subwords, copying):
    token_ids = subwords.encode(SENTENCE)

    numbers = copying.numbers(token_ids)

    names = ["Zorbalix", "4711", "\u6771\u4eac", "Zorbalix"]
    assert words_of(subwords, token_ids, numbers) == names
    # Words of one subword, punctuation and the end token have no number.
    alone = [subwords.pieces[token] for token in np.array(token_ids)[numbers == NONE]]
    assert {"\u2581the", "\u2581sees", "</s>"} <= set(alone)


def test_tensors_have_the_same_numbers(subwords, copying, rng):
    rows = rng.integers(0, len(subwords), (40, 25)).astype("int32")
    rows[0] = np.resize(subwords.encode(SENTENCE), 25)

    numbers, begins = word_numbers(ops.convert_to_tensor(rows), copying.kinds)
    ids = ops.convert_to_numpy(extended_ids(ops.convert_to_tensor(rows), copying.kinds))

    expected = np.array([copying.numbers(row) for row in rows])
    np.testing.assert_array_equal(ops.convert_to_numpy(numbers), expected)
    arrays = rows, expected, ops.convert_to_numpy(begins), ids
    for row, row_numbers, begin, extended in zip(*arrays, strict=True):
        firsts = [
            int(np.argmax(row_numbers == n)) for n in range(row_numbers.max() + 1)
        ]
        assert np.nonzero(begin)[0].tolist() == firsts
        assert (extended[firsts] - len(subwords)).tolist() == list(range(len(firsts)))
        assert (extended[~begin] == row[~begin]).all()


def test_words_of_the_source_are_extended_ids_of_the_target(subwords, copying):
    source = subwords.encode("the Zorbalix sees Qux and Zorbalix")
    target = subwords.encode("le Qux voit Zorbalix, Zorbalix Zorbalix Wyvern")

    extended = copying.extend(source, target)

    size = len(subwords)
    numbers = [token - size for token in extended if token >= size]
    # "and" is a word of several subwords, too.
    names = words_of(subwords, source, copying.numbers(source))
    assert names == ["Zorbalix", "Qux", "and", "Zorbalix"]
    # Occurrences are in order; the last one of the source stands for the rest.
    assert numbers == [1, 0, 3, 3]
    expanded, positions = copying.expand(extended, source)
    assert expanded == target
    assert len(positions) == len(target) and max(positions) == len(extended) - 1
    assert copying.extend(subwords.encode("the dog"), target) == target


def test_batches_contain_extended_ids(subwords, copying):
    pairs = Pairs(["the Zorbalix", "the dog"], ["le Zorbalix", "le chien"])
    batches = SentenceBatches(
        pairs, subwords, batch_tokens=100, max_length=20, copying=copying
    )
    targets = [row for (inputs,) in batches for row in inputs["target"]]

    assert sorted((row >= len(subwords)).sum() for row in targets) == [0, 1]


def named(translator, sources, targets):
    """Source and target as arrays, with the extended ids that the model has."""
    source, target = [], []
    for sentence, translation in zip(sources, targets, strict=True):
        source.append(translator.tokenizer.encode(sentence))
        ids = translator.tokenizer.encode(translation)
        target.append([1, *translator.copying.extend(source[-1], ids)])
    return {
        name: np.array([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
        for name, rows in (("source", source), ("target", target))
    }


@pytest.fixture(scope="module", params=["bahdanau", "luong", "self-attention"])
def translator(request, subwords):
    return untrained(subwords, request.param, copy=True)


@pytest.fixture
def inputs(translator):
    sources = ["the Zorbalix sees Qux", "the dog"]
    return named(translator, sources, ["Qux voit le Zorbalix", "le chien"])


def log_probs_of(network, outputs):
    """Return the log-probabilities of words and of copies, an array."""
    hidden, *others = (outputs[name] for name in ("hidden", "weights", "source_ids"))
    mixed = network.pointer_generator(network.logits(hidden), *others, hidden)
    return ops.convert_to_numpy(mixed)


def test_steps_equal_the_pass(translator, inputs):
    network = translator.network
    tensors = tree.map_structure(ops.convert_to_tensor, inputs)
    assert (inputs["target"] >= len(translator.tokenizer)).sum() == 2
    expected = log_probs_of(network, network(tensors))
    memory, state = network.begin(tensors, 9)
    state = tree.map_structure(lambda x: x[:, None], state)

    for t in range(inputs["target"].shape[1] - 1):
        log_probs, state, _ = network.step(tensors["target"][:, None, t], state, memory)
        actual = np.exp(ops.convert_to_numpy(log_probs)[:, 0])
        assert_close(actual, np.exp(expected[:, t]))


def test_the_loss_is_that_of_the_extended_vocabulary(translator, inputs):
    network = translator.network
    outputs = network(inputs)
    log_probs = log_probs_of(network, outputs)
    logits = ops.convert_to_numpy(network.logits(outputs["hidden"]))
    losses = []
    for b, t in np.argwhere(inputs["target"][:, 1:] != 0):
        negative_log_prob = -log_probs[b, t, inputs["target"][b, t + 1]]
        spread = np.log(np.exp(logits[b, t]).sum()) - logits[b, t].mean()
        losses.append(0.9 * negative_log_prob + 0.1 * spread)

    network.label_smoothing = 0.1
    loss = network.compute_loss(inputs, None, outputs)
    network.label_smoothing = 0.0

    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-4)


def copy_always(translator):
    """Let a model produce nothing but words of several subwords of the source."""
    translator.tokenizer.banned = tuple(range(len(translator.tokenizer)))
    return translator


@pytest.fixture
def own_subwords(subwords):
    """Subwords that a test may change."""
    return Subwords(subwords.content)


def test_translations_contain_words_of_the_source(eager, own_subwords, monkeypatch):
    # The only word is repeated up to the maximum length.
    monkeypatch.setattr(inference, "LOOP", 100)
    translator = copy_always(untrained(own_subwords, "bahdanau", copy=True))
    sentences = ["the Zorbalix \u6771\u4eac", "a 4711 dog"]
    translations = translator.translate(sentences, beam_size=2)

    assert set(translations[0].text.split()) <= {"Zorbalix", "\u6771\u4eac"}
    assert translations[1].text.split() == ["4711"] * 20
    pieces = [own_subwords.pieces[token] for token in own_subwords.encode("4711")[:-1]]
    assert translations[1].subwords == ["".join(pieces)] * 20
    assert len(translations[1].probabilities) == 20
    for translation in translations:
        words, source_words = translation.words, translation.source_words
        assert translation.weights.shape == (len(words), len(source_words))
        sums = translation.weights.sum(axis=1) + translation.end_weights
        np.testing.assert_allclose(sums, 1, atol=1e-5)


def test_a_model_without_attention_cannot_copy(subwords):
    with pytest.raises(UserError, match=r"needs a model with attention.*none"):
        untrained(subwords, "none", copy=True)


@pytest.mark.exhaustive
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports")
def test_exports_give_the_same(subwords, tmp_path, monkeypatch):
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("tensorflow_text")
    import tensorflow as tf

    from keras_attention_apps.nmt import LiteTranslator, Translator
    from keras_attention_apps.nmt.commands import export

    monkeypatch.setattr(export, "TARGET_LENGTHS", ())
    # The only word is repeated up to the maximum length.
    monkeypatch.setattr(inference, "LOOP", 100)
    untrained(subwords, "bahdanau", copy=True).save(tmp_path / "model")
    translator = copy_always(Translator.from_preset(tmp_path / "model"))
    search = {"beam_size": 2, "length_penalty": 1.0}
    sentences = ["the Zorbalix \u6771\u4eac", "a Qux", "", "Qux, 4711 sees Zorbalix"]
    expected = translator.translate(sentences, **search)
    assert set(expected[1].text.split()) == {"Qux"}

    path, folder = tmp_path / "model.tflite", tmp_path / "served"
    export.save_lite_translator(translator, path, search=search, quantize="none")
    lite = LiteTranslator(path).translate(sentences)
    export.write_saved_model(translator, translator.search_model(**search), folder)
    pieces = translator.tokenizer.pieces
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    served = serve(sentences=tf.constant(sentences))

    for i, translation in enumerate(expected):
        assert lite[i].text == translation.text
        np.testing.assert_allclose(lite[i].weights, translation.weights, atol=1e-4)
        assert served["translation"][i].numpy().decode() == translation.text
        tokens = [x.decode() for x in served["subwords"][i].numpy() if x]
        assert (
            translator.tokenizer.decode(map(pieces.index, tokens)) == translation.text
        )
        assert served["attention"][i].numpy().any() == bool(translation.text)


@pytest.mark.exhaustive
def test_self_critical_training_samples_copied_words(own_subwords):
    from keras_attention_apps.nmt.training.train import SelfCriticalTranslations

    translator = untrained(own_subwords, "bahdanau", copy=True)
    translator.network.compile("adam")
    pairs = Pairs(["the Zorbalix"] * 3, ["le Zorbalix"] * 3)
    batches = SentenceBatches(
        pairs, own_subwords, batch_tokens=100, max_length=20, copying=translator.copying
    )
    copy_always(translator)

    def reward(text, reference):
        return float("Zorbalix" in text) + (reference == "?")

    options = {"samples": 6, "seed": 1}
    training = SelfCriticalTranslations(translator, batches, reward, **options)
    (items, *_) = training.plan(0)
    batch, mean = training.sample(items, 0)
    loss = translator.network.train_on_batch(batch)

    assert mean > 0 and (batch["target"] >= len(own_subwords)).any()
    assert np.isfinite(loss).all()
