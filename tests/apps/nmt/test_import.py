"""Imported models of Marian give the numbers that transformers gives.

`marian_logits.json` has those of transformers for the random weights of
`attention_testing.nmt.marian`.
"""

import collections
import io
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import numpy
from attention_testing.nmt import marian as published
from attention_testing.programs import error_of
from keras_attention import Ban, beam_search
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import END, PAD, START, UNKNOWN
from keras_attention_apps.nmt import marian
from keras_attention_apps.nmt.alignments import align
from keras_attention_apps.nmt.commands.import_model import read_translator
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.network import alignment_head, build_network
from keras_attention_apps.nmt.translations import LiteTranslator

NUMBERS = Path(__file__).parent / "marian_logits.json"


def network_of(model):
    network = build_network(model.config, len(marian.token_order(model)))
    marian.assign_weights(network, model)
    return network


def our_ids(model, rows):
    """Return our token ids of published ones, padded."""
    order = marian.token_order(model)
    ids = {number: token for token, number in enumerate(order)}
    # The start of a target is the published padding.
    ids[len(model.vocabulary) - 1] = START
    return np.array([[ids[x] for x in row] for row in rows], "int32")


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A model of fixed tokens, and the numbers of transformers for it."""
    folder = tmp_path_factory.mktemp("letters")
    published.write_transformers(folder, vocabulary=published.LETTERS)
    model = marian.read_published(folder)
    return model, network_of(model), json.loads(NUMBERS.read_text())


def sources_of(model, numbers):
    sources = our_ids(model, numbers["source"])
    return np.where(sources == START, PAD, sources)


def test_logits_are_those_of_transformers(letters):
    model, network, numbers = letters
    source = sources_of(model, numbers)[:2]
    target = our_ids(model, numbers["target"])

    # The last token of a target is only predicted.
    inputs = {"source": source, "target": np.pad(target, ((0, 0), (0, 1)))}
    logits = numpy(network.logits(network(inputs)))

    expected = np.array(numbers["logits"])[..., marian.token_order(model)]
    expected[..., [PAD, START]] -= np.log(2)
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_beam_search_chooses_the_tokens_of_transformers(letters):
    model, network, numbers = letters
    source = sources_of(model, numbers)
    memory, state = network.begin({"source": ops.convert_to_tensor(source)}, 16)

    result = beam_search(
        lambda token_ids, state: network.step(token_ids, state, memory),
        state,
        start=START,
        end=END,
        max_length=16,
        beam_size=4,
        constraints=[Ban([PAD, START])],
        positions=source.shape[1],
    )

    order = marian.token_order(model)
    rows = zip(
        numpy(result["token_ids"])[:, 0], numpy(result["lengths"])[:, 0], strict=True
    )
    chosen = [[order[token] for token in row[:length]] for row, length in rows]
    assert chosen == numbers["beam"]


def test_the_loss_has_the_bias_of_the_output(letters):
    model, network, numbers = letters
    target = our_ids(model, numbers["target"])
    inputs = {"source": sources_of(model, numbers)[:2], "target": target}
    hidden = network(inputs)

    loss = float(network.compute_loss(inputs, None, hidden))

    log_probs = numpy(ops.log_softmax(network.logits(hidden)))
    chosen = np.take_along_axis(log_probs, target[:, 1:, None], axis=-1)
    np.testing.assert_allclose(loss, -chosen.mean(), rtol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the tokenizers of two languages, as transformers writes it."""
    folder = tmp_path_factory.mktemp("published") / "opus-mt-en-de"
    published.write_transformers(folder, end_bias=2.0)
    return folder


def test_an_imported_model_comes_back_from_its_folder(folder, tmp_path, capsys):
    main(["import", str(folder), "--output", str(tmp_path / "model")])

    assert f"Wrote {tmp_path / 'model'}" in capsys.readouterr().out
    loaded = Translator.from_preset(tmp_path / "model")
    direct = read_translator(folder)
    pairs = zip(loaded.network.get_weights(), direct.network.get_weights(), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)
    assert loaded.languages == ("en", "de")
    assert loaded.tokenizer.target.content != loaded.tokenizer.content
    translation = loaded.translate("Two cats sleep on the roof.")
    assert translation.text == direct.translate("Two cats sleep on the roof.").text
    assert translation.weights.shape == (len(translation.words), 6)
    # A word of the glossary is spelt by the subwords of the target.
    glossary = loaded.translate("Two cats sleep.", glossary={"cats": "katzen"})
    assert "katzen" in glossary.text.lower()


def test_given_translations_have_the_subwords_of_the_target(folder, monkeypatch):
    translator, forced = read_translator(folder), []
    force = translator.forced_hypotheses

    def record(sources, targets):
        forced.append((sources, targets))
        return force(sources, targets)

    monkeypatch.setattr(translator, "forced_hypotheses", record)
    source, target = "Two cats sleep.", "schnee katzen dach schlafen rotem"

    (alignment,) = align(translator, [(source, target)])

    subwords = translator.tokenizer
    assert subwords.encode(target) != subwords.target.encode(target)
    ((sources, targets),) = forced
    assert list(sources[0]) == subwords.encode(source)
    assert list(targets[0]) == subwords.target.encode(target)
    assert alignment.weights.shape == (5, 3)


def test_a_maximum_length_can_be_chosen(folder, tmp_path):
    output = str(tmp_path / "model")
    main(["import", str(folder), "--output", output, "--max-length", "7"])

    translator = Translator.from_preset(output)
    assert translator.max_length == 7
    assert translator.translate("Two cats sleep on the roof in the red snow.").cut


def test_subwords_are_those_of_both_tokenizers(folder):
    import sentencepiece

    subwords = marian.subwords_of(marian.read_published(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text())
    for name, ours, text in (
        # The normalisation of the tokenizer takes the ligature apart. It does not know
        # the letter z, which is in the vocabulary of the other language.
        ("source", subwords, "Two cats ru\ufb01n a z dog?"),
        ("target", subwords.target, "Zwei Hunde rennen im Schnee!"),
    ):
        theirs = sentencepiece.SentencePieceProcessor(
            model_file=str(folder / f"{name}.spm")
        )
        pieces = [subwords.pieces[token] for token in ours.encode(text)]
        expected = [
            piece if piece in vocabulary else "<unk>"
            for piece in theirs.encode(text, out_type=str)
        ]
        assert pieces == [*expected, "</s>"]
    assert subwords.decode(subwords.encode("Two cats sleep.")) == "Two cats sleep."


def test_a_target_language_is_one_token(tmp_path, capsys):
    published.write_transformers(tmp_path / "many", languages=[">>deu<<", ">>fra<<"])
    main(["import", str(tmp_path / "many"), "--output", str(tmp_path / "model")])

    assert "target languages: deu, fra" in capsys.readouterr().out
    subwords = Translator.tokenizer_type.load(tmp_path / "model")
    first, *rest = subwords.encode(">>deu<< Two cats")
    assert subwords.pieces[first] == "\u2581>>deu<<"
    assert rest == subwords.encode("Two cats")
    assert first in subwords.banned and UNKNOWN in subwords.banned


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory):
    """The translator of a model with two target languages."""
    folder = tmp_path_factory.mktemp("many")
    published.write_transformers(folder, languages=[">>deu<<", ">>fra<<"], end_bias=2.0)
    return read_translator(folder)


@pytest.mark.parametrize(
    "text, language",
    [
        ("Two cats sleep. The snow is red.", "deu"),
        (">>deu<< Two cats sleep. The snow is red.", None),
        (" >>deu<<Two cats sleep. The snow is red.", "fra"),
    ],
)
def test_every_sentence_begins_with_the_target_language(
    multilingual, monkeypatch, text, language
):
    searched, search = [], multilingual._search

    def record(token_ids, *arguments):
        searched.extend(map(list, token_ids))
        return search(token_ids, *arguments)

    monkeypatch.setattr(multilingual, "_search", record)
    translation = multilingual.translate(text, target_language=language)

    subwords = multilingual.tokenizer
    token = subwords.pieces.index("\u2581>>deu<<")
    sentences = ["Two cats sleep.", "The snow is red."]
    assert sorted(searched) == sorted([token, *subwords.encode(x)] for x in sentences)
    # It is no word of the source, and its attention is that of the end.
    assert " ".join(translation.source_words) == " ".join(sentences)
    assert translation.words
    totals = translation.weights.sum(axis=1) + translation.end_weights
    np.testing.assert_allclose(totals, 1.0, atol=1e-5)


def test_weights_of_words_do_not_move_with_the_target_language(multilingual):
    subwords = multilingual.tokenizer
    ids = [subwords.languages["fra"], *subwords.encode("Two cats sleep.")]
    (ranked,) = multilingual._search([ids], 1, 1, multilingual.search_options())

    translation = multilingual.translate("Two cats sleep.", target_language="fra")

    _, word_indices = subwords.words(ids[1:])
    tokens = ranked[0].length - 1
    _, target_places = subwords.words(ranked[0].token_ids)
    expected = np.zeros((len(translation.words), len(translation.source_words)))
    for token in range(tokens):
        for column, word in enumerate(word_indices, start=1):
            share = 1 / np.sum(target_places == target_places[token])
            weight = ranked[0].weights[token, column]
            expected[target_places[token], word] += share * weight
    np.testing.assert_allclose(translation.weights, expected, atol=1e-5)


def test_a_wrong_target_language_is_refused(multilingual, folder, tmp_path, capsys):
    with pytest.raises(UserError, match=r"must be one of deu, fra. Received: 'xyz'"):
        multilingual.translate("Two cats.", target_language="xyz")
    with pytest.raises(UserError, match=r"needs a multilingual model.*'deu'"):
        read_translator(folder).translate("Two cats.", target_language="deu")
    multilingual.save(tmp_path / "model", half=False)
    command = ["translate", "Two cats.", "--model", str(tmp_path / "model")]
    error = error_of(main, [*command, "--target-language", "xyz"], capsys)
    assert "must be one of deu, fra" in error
    assert main([*command, "--target-language", "fra"]) == 0
    expected = multilingual.translate("Two cats.", target_language="fra")
    assert capsys.readouterr().out == f"{expected.text}\n"


def test_scores_are_those_of_the_target_language(multilingual, tmp_path, capsys):
    sources = ["Two cats sleep on the table.", "The snow is red and the dog is big."]
    (tmp_path / "source").write_text("\n".join(sources) + "\n")
    translations = multilingual.translate(sources, target_language="fra")
    references = [translation.text for translation in translations]
    (tmp_path / "target").write_text("\n".join(references) + "\n")
    multilingual.save(tmp_path / "model", half=False)
    files = ["--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]
    command = ["evaluate", *files, "--model", str(tmp_path / "model")]

    scores = {}
    for language in ("fra", "deu"):
        assert main([*command, "--target-language", language]) == 0
        _, _, after = capsys.readouterr().out.partition("chrf ")
        scores[language] = float(after.split()[0])
    assert scores["fra"] == 100 > scores["deu"]
    (tmp_path / "links").write_text("0-0\n0-0\n")
    wrong = ["--target-language", "fra", "--alignments", str(tmp_path / "links")]
    error = error_of(main, [*command, *wrong], capsys)
    assert "begin each source with >>fra<<" in error


def test_two_vocabularies_have_their_embeddings(folder, tmp_path):
    vocabularies = published.write_separate(tmp_path, end_bias=2.0)
    separate = marian.read_published(tmp_path)
    shared = marian.read_published(folder)
    translator, reference = read_translator(tmp_path), read_translator(folder)
    text = "Two cats ru\ufb01n a z dog?"
    ids = translator.tokenizer.encode(text)
    pieces, joint = translator.tokenizer.pieces, reference.tokenizer.pieces
    joint_ids = {piece: i for i, piece in enumerate(joint)}
    # The letter z is in the other vocabulary alone.
    known = [x if x in vocabularies[0] else "<unk>" for x in published_pieces(text)]
    assert [pieces[i] for i in ids] == [*known, "</s>"]
    assert len(pieces) == len(joint) + sum(x.startswith("<") for x in pieces[4:])
    source = np.array([ids], "int32")
    target = [START, *translator.tokenizer.target.encode("Zwei Hunde")]
    logits = []
    for model, names in ((translator, None), (reference, joint_ids)):
        row, column = (
            np.array([[x if names is None else names[pieces[x]] for x in side]])
            for side in (source[0], target)
        )
        outputs = model.network({"source": row, "target": column})
        logits.append(numpy(model.network.logits(outputs)))
    for token, piece in enumerate(pieces):
        if token > START and piece in vocabularies[1] and piece in joint_ids:
            np.testing.assert_allclose(
                logits[0][..., token], logits[1][..., joint_ids[piece]], atol=1e-5
            )
        elif token > START:
            assert (logits[0][..., token] < -25).all()
    assert separate.config.separate_embeddings
    assert not shared.config.separate_embeddings
    translator.save(tmp_path / "model", half=False)
    loaded = Translator.from_preset(tmp_path / "model")
    assert loaded.translate(text).text == translator.translate(text).text


def published_pieces(text):
    """Return the pieces of the source tokenizer."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(
        model_proto=published.spm(published.SOURCE_WORDS)
    )
    return model.encode(text, out_type=str)


@pytest.mark.slow
def test_transformers_reads_two_vocabularies(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    published.write_separate(tmp_path)
    peer = transformers.MarianMTModel.from_pretrained(tmp_path).eval()
    peer.save_pretrained(tmp_path)
    model = marian.read_published(tmp_path)
    network = network_of(model)
    random, pad = np.random.default_rng(1), len(model.vocabulary) - 1
    source = random.integers(1, 20, (2, 9))
    target = np.pad(random.integers(1, 20, (2, 4)), ((0, 0), (1, 0)))
    target[:, 0] = pad

    with torch.no_grad():
        logits = peer(
            input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target)
        ).logits.numpy()

    sides = [marian.token_order(model, is_source=x) for x in (True, False)]
    ids = [{number: i for i, number in enumerate(order)} for order in sides]
    ids[1][pad] = START
    source, target = (
        np.array([[of_side[x] for x in row] for row in rows])
        for of_side, rows in zip(ids, (source, target), strict=True)
    )
    inputs = {"source": source, "target": np.pad(target, ((0, 0), (0, 1)))}
    actual = numpy(network.logits(network(inputs)))
    for token, number in enumerate(sides[1]):
        if number is not None and token > START:
            np.testing.assert_allclose(
                actual[..., token], logits[..., number], atol=1e-5
            )


def test_the_files_of_marian_are_the_same_model(folder, tmp_path):
    vocabulary = published.write_marian(tmp_path)
    theirs = marian.read_published(tmp_path)
    ours = network_of(theirs)
    reference = marian.read_published(folder)
    # The random weights but for the bias of the end, and what differs on purpose.
    reference.weights["final_logits_bias"] = published.random_weights(
        len(vocabulary) + 1, **published.SIZES
    )["final_logits_bias"]
    reference.config = theirs.config
    network = network_of(reference)
    random = np.random.default_rng(2)
    source = random.integers(UNKNOWN + 1, len(vocabulary), (2, 5)).astype("int32")
    inputs = {
        "source": source,
        "target": np.pad(source, ((0, 0), (1, 0)), "constant", constant_values=START),
    }

    logits = [numpy(x.logits(x(inputs)))[..., START + 1 :] for x in (ours, network)]

    np.testing.assert_allclose(*logits, atol=1e-5)
    half = published.SIZES["depth"] // 2
    encoded = numpy(ours.positions(np.zeros((1, 3, 2 * half), "float32")))[0]
    # As Marian computes them: the last wavelength is 10000.
    np.testing.assert_allclose(encoded[2, half - 1], np.sin(2 / 10_000), rtol=1e-4)
    np.testing.assert_allclose(encoded[2, half], np.cos(2.0), rtol=1e-5)


@pytest.mark.parametrize("zipped", [True, False])
def test_weights_of_pytorch_are_read_without_pytorch(folder, tmp_path, zipped):
    torch = pytest.importorskip("torch")
    weights = marian.read_safetensors(folder / "model.safetensors")
    tensors = collections.OrderedDict(
        (name, torch.tensor(x.copy())) for name, x in weights.items()
    )
    # A view of a storage, transposed, and a second name of it.
    tensors["turned"] = tensors["model.shared.weight"][2:5].T
    tensors["half"] = tensors["final_logits_bias"].half()
    path = tmp_path / "pytorch_model.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=zipped)

    arrays = marian.read_pytorch(path)

    assert arrays.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(arrays[name], tensor.float().numpy())


class Harmful:
    """An object whose pickle would make a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_runs_nothing(tmp_path, zipped):
    mark, path = tmp_path / "mark", tmp_path / "pytorch_model.bin"
    content = pickle.dumps({"model.shared.weight": Harmful(mark)}, protocol=2)
    if zipped:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("archive/data.pkl", content)
        content = buffer.getvalue()
    path.write_bytes(content)

    with pytest.raises(UserError, match=r"mkdir is not part of a tensor"):
        marian.read_pytorch(path)
    assert not mark.exists()


def test_an_archive_of_arrays_with_a_pickle_is_refused(tmp_path):
    mark, path = tmp_path / "mark", tmp_path / "model.npz"
    objects = np.empty(1, object)
    objects[0] = Harmful(mark)
    np.savez(path, objects)

    with pytest.raises(UserError, match=r"model\.npz cannot be read"):
        marian._marian_arrays(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("value", "read"),
    [("'a b'", "a b"), ('"a"', "a"), ("\"a'", "\"a'"), ("'a\"", "'a\""), ("a'", "a'")],
)
def test_quotation_marks_of_yaml_belong_together(value, read):
    assert marian.read_yaml(f"name: {value}\n") == {"name": read}


def test_cells_of_all_grids_have_the_number_of_their_row_or_column():
    lengths = [(2, 3), (1, 2)]
    rows = alignment_head._rows(lengths, by_target=True)
    columns = alignment_head._rows(lengths, by_target=False)
    assert rows.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert columns.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]


def test_a_tensor_outside_of_its_storage_is_refused(tmp_path):
    storage = marian._Storage("<f4", "0", 4)
    storage.read(bytes(16))
    for offset, shape, strides in (
        (1, (4,), (1,)),
        (0, (2, 2), (4, 1)),
        (-1, (2,), (1,)),
        (0, (2,), (-1,)),
        (0, (2, 2), (1,)),
    ):
        with pytest.raises(pickle.UnpicklingError):
            marian._Tensor(storage, offset, shape, strides).array()


CHANGES = [
    ({"model_type": "bart"}, "model_type='marian'.*Received: 'bart'"),
    ({"scale_embedding": False}, "scale_embedding=True.*Received: False"),
    ({"normalize_before": True}, "normalize_before=False.*Received: True"),
    ({"activation_function": "tanh"}, "activations.*Received: 'tanh'"),
    ({"decoder_ffn_dim": 14}, r"equal encoder_ffn_dim.*Received: \[13, 14\]"),
    ({"encoder_layers": "two"}, "encoder_layers.*Received: 'two'"),
    ({"encoder_attention_heads": 3}, "equal encoder_attention_heads"),
    ({"decoder_layers": 1}, "weights that are not known: 'model.decoder.layers.1"),
    ({"decoder_layers": 3}, "have no model.decoder.layers.2.self_attn"),
    ({"d_model": 16}, r"shape \(58|expected"),
    ({"pad_token_id": 3}, "pad_token_id.*Received: 3"),
    ({"decoder_start_token_id": 0}, "decoder_start_token_id.*Received: 0"),
]


@pytest.mark.parametrize("changes, message", CHANGES, ids=str)
def test_other_models_are_refused(tmp_path, changes, message):
    published.write_transformers(tmp_path, **changes)

    with pytest.raises(UserError, match=message):
        read_translator(tmp_path)


def test_incomplete_folders_are_one_line(folder, tmp_path, capsys):
    output = ["--output", str(tmp_path / "model")]
    empty = tmp_path / "empty"
    empty.mkdir()
    error = error_of(main, ["import", str(empty), *output], capsys)
    assert "expected the folder of a Marian model" in error
    for name in ("source.spm", "vocab.json", "model.safetensors"):
        copy = tmp_path / name
        copy.mkdir()
        for path in folder.iterdir():
            if path.name != name:
                (copy / path.name).write_bytes(path.read_bytes())
        error = error_of(main, ["import", str(copy), *output], capsys)
        assert name in error and "\n" not in error.strip()
    (tmp_path / "source.spm" / "source.spm").write_bytes(b"\xff\xff")
    error = error_of(main, ["import", str(tmp_path / "source.spm"), *output], capsys)
    assert "source.spm is not a SentencePiece model" in error
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("ids", [[0, 2, 3], [0, 1, 1], [0, 1, "2"]], ids=str)
def test_ids_of_a_vocabulary_leave_none_out(folder, tmp_path, ids):
    copy = shutil.copytree(folder, tmp_path / "model")
    vocabulary = dict(zip("abc", ids, strict=True))
    (copy / "vocab.json").write_text(json.dumps(vocabulary))

    with pytest.raises(UserError, match=r"ids from 0 to 2 in .*vocab\.json"):
        read_translator(copy)


def test_a_damaged_safetensors_file_is_refused(folder, tmp_path):
    content = (folder / "model.safetensors").read_bytes()
    path = tmp_path / "model.safetensors"
    for damaged in (b"", content[:20], b"\xff" * 40, content[:-4], b"\2" + bytes(7)):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"model.safetensors"):
            marian.read_safetensors(path)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="LiteRT files need TensorFlow"
)
def test_a_litert_file_of_an_imported_model_translates_as_it_does(
    tmp_path, monkeypatch
):
    # As for a model of the usual size: one length of sources.
    monkeypatch.setattr("keras_attention_apps.nmt.commands.export.MAX_WEIGHTS", 1000)
    published.write_transformers(
        tmp_path / "en-de", end_bias=2.0, max_position_embeddings=16
    )
    translator = read_translator(tmp_path / "en-de")
    translator.save(tmp_path / "model", half=False)
    model = ["--model", str(tmp_path / "model")]
    lite = tmp_path / "model.tflite"
    main(["export", str(lite), *model, "--quantize", "none"])
    sentences = ["Two cats sleep.", "A dog ru\ufb01n.", "The snow."]

    expected = [x.text for x in translator.translate(sentences, beam_size=4)]

    runtime = LiteTranslator(lite)
    assert runtime.lengths == [16]
    assert [x.text for x in runtime.translate(sentences)] == expected


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="SavedModels need TensorFlow"
)
def test_a_saved_model_of_an_imported_model_translates_as_it_does(tmp_path):
    pytest.importorskip("tensorflow_text")
    import tensorflow as tf

    published.write_transformers(
        tmp_path / "en-de", end_bias=2.0, max_position_embeddings=16
    )
    translator = read_translator(tmp_path / "en-de")
    translator.save(tmp_path / "model", half=False)
    served = tmp_path / "served"
    main(["export", str(served), "--model", str(tmp_path / "model")])
    sentences = ["Two cats sleep", "A dog ru\ufb01n", "the snow"]

    loaded = tf.saved_model.load(str(served)).signatures["serving_default"]
    outputs = loaded(sentences=tf.constant(sentences))

    texts = [x.decode() for x in outputs["translation"].numpy()]
    ids = [translator.tokenizer.encode(x) for x in sentences]
    ranked = translator._search(ids, 3, 1, translator.search_options())
    expected = [translator.tokenizer.decode(x[0].token_ids) for x in ranked]
    assert texts == expected
    assert all(texts)


def test_ctranslate2_computes_imported_models_as_we_do(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    import sentencepiece

    from keras_attention_apps.nmt import ctranslate2_models
    from keras_attention_apps.nmt.ctranslate2_runtime import CTranslate2Translator

    published.write_transformers(tmp_path / "en-de", languages=[">>deu<<"])
    translator = read_translator(tmp_path / "en-de")
    translator.save(tmp_path / "model", half=False)
    subwords, options = translator.tokenizer, {"target_language": "deu"}
    source = [subwords.languages["deu"], *subwords.encode("Two cats sleep.")]
    target = subwords.target.encode("Zwei Hunde rennen.")

    engine = ctranslate2_models.load_engine(translator, compute_type="float32")
    names = ctranslate2_models.tokens(subwords.pieces)
    spelled = [[[names[i] for i in side[:-1]]] for side in (source, target)]
    (scored,) = engine.score_batch(*spelled)

    (forced,) = translator.forced_hypotheses([source], [target])
    np.testing.assert_allclose(
        scored.log_probs, forced.token_log_probabilities, atol=1e-4
    )
    runtime = CTranslate2Translator.from_preset(tmp_path / "model", threads=1)
    assert runtime.translate("Two cats sleep. The snow.", **options).words
    # Of its files alone, no search finds padding or a target language.
    command = ["--format", "ctranslate2", "--model", str(tmp_path / "model")]
    bias = numpy(translator.network.output_bias).copy()
    bias[list(subwords.banned)] = 9.0
    translator.network.output_bias.assign(bias)
    translator.save(tmp_path / "model", half=False)
    exported = tmp_path / "exported"
    assert main(["export", str(exported), *command]) == 0
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(exported / "sentencepiece.model")
    )
    pieces = processor.encode(">>deu<< Two cats sleep.", out_type=str)
    assert pieces == spelled[0][0]
    engine = ctranslate2.Translator(str(exported))
    (result,) = engine.translate_batch([pieces], max_decoding_length=8)
    assert result.hypotheses[0]
    assert not {names[i] for i in subwords.banned}.intersection(result.hypotheses[0])
    package = tmp_path / "package.argosmodel"
    assert main(["export", str(package), "--pair", "en-de", *command[2:]]) == 0
    with zipfile.ZipFile(package) as archive:
        assert "translate-en_de-1_0/model/model.bin" in archive.namelist()


def test_an_imported_model_is_fine_tuned(folder, tmp_path):
    main(["import", str(folder), "--output", str(tmp_path / "model")])
    for side, words in (("en", published.SOURCE_WORDS), ("de", published.TARGET_WORDS)):
        lines = published.corpus(words, 30)
        for split, part in (("train", lines[:20]), ("val", lines[20:])):
            path = tmp_path / f"{split}.{side}"
            path.write_text("\n".join(part) + "\n", encoding="utf-8")
    options = {
        "data": tmp_path,
        "pair": "en-de",
        "from-preset": tmp_path / "model",
        "output": tmp_path / "tuned",
        "epochs": 1,
        "batch-tokens": 400,
        "validation-metric": "chrf",
    }
    arguments = [
        str(x) for name, value in options.items() for x in (f"--{name}", value)
    ]

    assert main(["train", *arguments]) == 0

    before = Translator.from_preset(tmp_path / "model")
    after = Translator.from_preset(tmp_path / "tuned" / "model")
    assert after.tokenizer.content == before.tokenizer.content
    # Numbers go through the network, as the page on OPUS-MT says.
    assert not after.tokenizer.symbols
    for name in ("output_bias", "embedding"):
        trained, initial = (getattr(x.network, name) for x in (after, before))
        if name == "embedding":
            trained, initial = trained.embeddings, initial.embeddings
        assert np.isfinite(numpy(trained)).all()
        assert np.abs(numpy(trained) - numpy(initial)).max() > 1e-5


def test_the_head_that_aligns_is_found(folder):
    # Each token of a target translates the source token at the mirrored place.
    random = np.random.default_rng(1)
    sources = [[*random.integers(4, 12, 5).tolist(), END] for _ in range(60)]
    targets = [[*(x + 20 for x in ids[-2::-1]), END] for ids in sources]
    posteriors = alignment_head.alignment_posteriors(
        [ids[:-1] for ids in sources], [ids[:-1] for ids in targets]
    )
    best = [x.argmax(axis=1).tolist() for x in posteriors]
    # Equal tokens of one sentence cannot be told apart.
    distinct = [i for i, ids in enumerate(sources) if len(set(ids)) == len(ids)]
    assert len(distinct) > 5
    assert all(best[i] == [4, 3, 2, 1, 0] for i in distinct)

    network = read_translator(folder).network
    weights = alignment_head.head_weights(network, sources, targets)
    assert weights.shape == (60, 2, published.SIZES["heads"], 6, 6)
    scores = alignment_head.head_scores(network, sources, targets)
    shares = [x / x.sum(axis=1, keepdims=True) for x in posteriors]
    expected = np.mean(
        [
            (weights[i, :, :, :5, :5] * share).sum(axis=(2, 3)) / 5
            for i, share in enumerate(shares)
        ],
        axis=0,
    )
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    layer, head, score = alignment_head.best_head(network, sources, targets)
    assert score == scores.max() == scores[layer, head]


def test_pairs_choose_the_head_of_the_alignments(folder, tmp_path, capsys):
    for name, words in (("en", published.SOURCE_WORDS), ("de", published.TARGET_WORDS)):
        lines = published.corpus(words, 20)
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    output = ["--output", str(tmp_path / "model")]
    texts = ["--source", str(tmp_path / "en"), "--target", str(tmp_path / "de")]
    main(["import", str(folder), *output, *texts])

    out = capsys.readouterr().out
    assert "aligns best" in out and "20 pairs" in out
    loaded = Translator.from_preset(tmp_path / "model")
    layer, head = loaded.config.alignment_layer, loaded.config.alignment_head
    assert f"Head {head} of decoder layer {layer}" in out
    # The weights of a translation are those of this head.
    source = loaded.tokenizer.encode("Two cats sleep.")
    target = [*source[:3], END]
    all_heads = alignment_head.head_weights(loaded.network, [source], [target])
    memory = loaded.network.encode(np.array([source], "int32"))
    inputs = np.array([[START, *target[:-1]]], "int32")
    _, weights = loaded.network.decode(inputs, memory, return_weights=True)
    np.testing.assert_allclose(numpy(weights), all_heads[:, layer, head], atol=1e-6)
    error = error_of(main, ["import", str(folder), *output, *texts[:2]], capsys)
    assert "expected both --source and --target" in error


@pytest.mark.slow
def test_transformers_reads_the_same_folder(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"depth": 512, "units": 2048, "heads": 8}
    sizes |= {"encoder_layers": 6, "decoder_layers": 6}
    vocabulary = ["</s>", "<unk>", *(f"w{i}" for i in range(58_098)), "<pad>"]
    published.write_transformers(tmp_path / "first", sizes, vocabulary=vocabulary)
    peer = transformers.MarianMTModel.from_pretrained(tmp_path / "first").eval()
    saved = tmp_path / "saved"
    peer.save_pretrained(saved)
    for name in ("vocab.json", "source.spm", "target.spm"):
        (saved / name).write_bytes((tmp_path / "first" / name).read_bytes())
    model = marian.read_published(saved)
    network = network_of(model)
    random, pad = np.random.default_rng(1), len(vocabulary) - 1
    source = random.integers(1, pad, (2, 9))
    target = np.pad(random.integers(1, pad, (2, 4)), ((0, 0), (1, 0)))
    target[:, 0] = pad

    def logits_of(peer):
        with torch.no_grad():
            logits = peer(
                input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target)
            ).logits.numpy()
        logits = logits[..., marian.token_order(model)]
        logits[..., [PAD, START]] -= np.log(2)
        return logits

    single, double = logits_of(peer), logits_of(peer.double())
    inputs = {
        "source": our_ids(model, source),
        "target": np.pad(our_ids(model, target), ((0, 0), (0, 1))),
    }
    actual = numpy(network.logits(network(inputs)))
    # Random weights of this size amplify the rounding of float32.
    assert np.abs(actual - double).max() <= 1.5 * np.abs(single - double).max() < 1e-3
