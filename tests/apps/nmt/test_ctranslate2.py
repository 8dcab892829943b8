"""Translators in CTranslate2, and packages of Argos Translate."""

import json
import types
import zipfile

import keras
import numpy as np
import pytest

from attention_testing.nmt.trainings import TINY
from keras_attention_apps.common import models
from keras_attention_apps.common.options import with_defaults
from keras_attention_apps.common.tokenizer import END, START
from keras_attention_apps.nmt.config import (
    RECIPES,
    ModelConfig,
    TranslationRuntimeConfig,
)
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.network import build_network
from keras_attention_apps.nmt.runtimes import RUNTIMES
from keras_attention_apps.nmt.sentences import split_sentences
from keras_attention_apps.nmt.subwords import pad

from .conftest import translate

ctranslate2 = pytest.importorskip("ctranslate2")

from keras_attention_apps.nmt import ctranslate2_models  # noqa: E402
from keras_attention_apps.nmt.argos import sentence_splitter  # noqa: E402
from keras_attention_apps.nmt.ctranslate2_runtime import CTranslate2Translator  # noqa: E402

SENTENCES = ["the red dog sees a cat", "a old bird", "the big cat likes the old dog"]
SIZES = {"units": 22, "encoder_layers": 3, "decoder_layers": 2}


def built(task, subwords):
    """Return a translator of a class with random weights."""
    config = ModelConfig(attention="self-attention", **{**TINY, **SIZES})
    config = with_defaults(config, RECIPES["self-attention"])
    network = build_network(config, len(subwords))
    token_ids = np.ones((1, 2), "int32")
    network({"source": token_ids, "target": token_ids})
    return task(config, subwords, network)


@pytest.fixture(scope="module")
def weights(subwords):
    """Weights of a network that has learned the translations of `SENTENCES`."""
    translator = built(Translator, subwords)
    targets = [[START, *subwords.encode(translate(x.split()))] for x in SENTENCES]
    pairs = {
        "source": pad([subwords.encode(x) for x in SENTENCES]),
        "target": pad(targets),
    }
    network = translator.network
    network.compile(keras.optimizers.Adam(1e-2))
    network.fit(pairs, epochs=80, batch_size=len(SENTENCES), verbose=0)
    return network.get_weights()


@pytest.fixture
def transformer(subwords, weights):
    """A function that returns the trained translator as one of a class."""

    def build(task=Translator):
        translator = built(task, subwords)
        translator.network.set_weights(weights)
        return translator

    return build


@pytest.fixture
def exact(monkeypatch):
    """Let the runtime compute in float32."""
    load = ctranslate2_models.load_engine

    def load_exact(translator, *, compute_type, **options):
        assert compute_type == "int8"
        return load(translator, compute_type="float32", **options)

    monkeypatch.setattr(ctranslate2_models, "load_engine", load_exact)


@pytest.fixture
def folder(transformer, tmp_path):
    path = tmp_path / "translator"
    transformer().save(path, training={"pair": "en-fr"})
    return path


def check_equal(actual, expected):
    assert [x.text for x in actual] == [x.text for x in expected]
    for translation, reference in zip(actual, expected, strict=True):
        assert translation.subwords == reference.subwords
        assert translation.alignment == reference.alignment
        for name in ("weights", "end_weights", "probabilities"):
            np.testing.assert_allclose(
                getattr(translation, name), getattr(reference, name), atol=2e-4
            )
        for name in ("score", "log_probability"):
            assert getattr(translation, name) == pytest.approx(
                getattr(reference, name), abs=1e-3
            )
        assert translation.features.keys() == reference.features.keys()
        for name, value in reference.features.items():
            # The last hypotheses of a beam, which no search promises, may differ.
            if name == "agreement":
                continue
            assert translation.features[name] == pytest.approx(value, abs=1e-3), name


def test_translations_are_those_of_our_search(transformer, exact, monkeypatch):
    ours, theirs = transformer(), transformer(CTranslate2Translator)
    expected = ours.translate(SENTENCES, beam_size=3)
    # Only CTranslate2 searches.
    monkeypatch.setattr(Translator, "_search", None)
    actual = theirs.translate(SENTENCES, beam_size=3)
    assert all(len(translation.words) > 1 for translation in actual)
    check_equal(actual, expected)


def test_n_best_translations_are_those_of_our_search(transformer, exact):
    options = {"n_best": 2, "beam_size": 3, "length_penalty": 0.5}
    actual, expected = (
        list(transformer(task).translate_each(SENTENCES, **options))
        for task in (CTranslate2Translator, Translator)
    )
    for ranked, other in zip(actual, expected, strict=True):
        check_equal(ranked, other)


def test_what_breaks_a_constraint_is_searched_again(exact, subwords, monkeypatch):
    texts = ["the dog sees 12 cats", "the dog", "a cat and 7.5 birds"]
    with_symbols = subwords.with_symbols()
    ours, theirs = (
        built(task, with_symbols) for task in (Translator, CTranslate2Translator)
    )
    theirs.network.set_weights(ours.network.get_weights())
    searched = []
    search = Translator._search
    monkeypatch.setattr(
        Translator,
        "_search",
        lambda self, token_ids, *options: (
            searched.extend(token_ids) or search(self, token_ids, *options)
        ),
    )
    translations = theirs.translate(texts, beam_size=3)
    # The untrained network does not copy symbols.
    assert len(searched) >= 2
    check_equal(translations, ours.translate(texts, beam_size=3))
    assert translations[0].text.count("12") == 1


def test_sentences_of_all_lengths_are_searched_again_with_one_trace(
    transformer, monkeypatch
):
    theirs = transformer(CTranslate2Translator)
    monkeypatch.setattr(theirs, "_fast_search", lambda sources, _: [[]] * len(sources))
    texts = ["a old bird", " ".join(["the red dog sees a cat"] * 5)]
    options = {"beam_size": 3, "max_length_ratio": 1.0}
    actual = [theirs.translate(text, **options) for text in texts]
    assert len(theirs._search_models) == 1
    ours = transformer()
    check_equal(actual, [ours.translate(text, **options) for text in texts])
    assert len(ours._search_models) == 2


@pytest.mark.parametrize(
    ("tokens", "is_valid"),
    [
        ("a b .", True),
        ("a b a", False),
        ("a a a a .", True),
        ("a a a a a .", False),
        ("a b a b a b a b .", False),
        ("a .", False),
        ("a 1 .", True),
        ("a 2 .", False),
        ("1 1 .", False),
    ],
)
def test_loops_lengths_ends_and_symbols_are_checked(subwords, tokens, is_valid):
    theirs = built(CTranslate2Translator, subwords.with_symbols())
    first, second, *_ = theirs.tokenizer.symbols.values()
    names = {"a": 300, "b": 301, "1": first, "2": second, ".": END}
    ids = [names[token] for token in tokens.split()]
    source = [300, *[first] * ("1" in tokens or "2" in tokens), END]
    assert theirs._is_valid(source, ids, (3, 8)) == is_valid


def test_glossaries_work(transformer, exact):
    options = {"glossary": {"dog": "wolf"}, "beam_size": 3}
    actual, expected = (
        transformer(task).translate(SENTENCES, **options)
        for task in (CTranslate2Translator, Translator)
    )
    check_equal(actual, expected)
    assert "wolf" in actual[0].text


def spoken(folder, sentence, **options):
    """Return a translation by the files alone, as CTranslate2's manual does it."""
    import sentencepiece

    model = str(folder / "sentencepiece.model")
    subwords = sentencepiece.SentencePieceProcessor(model_file=model)
    engine = ctranslate2.Translator(str(folder))
    (result,) = engine.translate_batch(
        [subwords.encode(sentence, out_type=str)], beam_size=3, **options
    )
    return subwords.decode(result.hypotheses[0])


def test_a_folder_translates_without_this_package(folder, tmp_path, capsys):
    output = tmp_path / "exported"
    command = ["export", str(output), "--format", "ctranslate2", "--model", str(folder)]
    assert main(command) == 0
    assert capsys.readouterr().out == f"Wrote {output}\n"
    expected = Translator.from_preset(folder).translate(SENTENCES, beam_size=3)
    limit = {"max_decoding_length": 20}
    assert [spoken(output, x, **limit) for x in SENTENCES] == [
        translation.text for translation in expected
    ]
    # An older export is replaced, and another folder is not.
    assert main([*command, "--quantize", "int8"]) == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("kept")
    assert main(["export", str(other), *command[2:]]) == 2


def test_a_package_has_what_argos_translate_reads(folder, tmp_path):
    output = tmp_path / "en_fr.argosmodel"
    assert main(["export", str(output), "--model", str(folder)]) == 0
    with zipfile.ZipFile(output) as archive:
        roots = {name.split("/")[0] for name in archive.namelist()}
        archive.extractall(tmp_path)
    assert roots == {"translate-en_fr-1_0"}
    root = tmp_path / "translate-en_fr-1_0"
    metadata = json.loads((root / "metadata.json").read_text())
    names = {name: metadata[name] for name in ("from_code", "to_code", "to_name")}
    assert names == {"from_code": "en", "to_code": "fr", "to_name": "French"}
    # Argos Translate appends no end.
    assert json.loads((root / "model/config.json").read_text())["add_source_eos"]
    assert (root / "sentencepiece.model").exists()
    assert list((root / "minisbd").glob("*.onnx"))


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["m.tflite", "--format", "ctranslate2"], "must end in .tflite for the format"),
        (["m", "--format", "argos"], "must end in .tflite for the format"),
        (["m", "--pair", "en-de"], "--pair needs the format argos"),
        (["m", "--format", "ctranslate2", "--beam-size", "2"], "beam_size=2"),
        (["m.argosmodel", "--pair", "x"], "needs the language pair"),
    ],
)
def test_problems_of_exports_are_one_line(folder, tmp_path, options, fault, capsys):
    output, *options = options
    command = ["export", str(tmp_path / output), *options, "--model", str(folder)]
    assert main(command) == 2
    assert fault in capsys.readouterr().err
    assert not (tmp_path / output).exists()


def test_recurrent_networks_are_refused(model_folder, tmp_path, capsys):
    output = str(tmp_path / "m")
    command = [
        "export",
        output,
        "--format",
        "ctranslate2",
        "--model",
        str(model_folder),
    ]
    assert main(command) == 2
    assert "attention=bahdanau" in capsys.readouterr().err
    command = ["translate", "a dog", "--runtime", "ctranslate2"]
    assert main([*command, "--model", str(model_folder)]) == 2
    assert "attention=bahdanau" in capsys.readouterr().err


def test_the_command_runs_on_ctranslate2(folder, capsys, monkeypatch):
    monkeypatch.setattr(Translator, "_search", None)
    command = ["translate", SENTENCES[0], "--model", str(folder)]
    assert main([*command, "--runtime", "ctranslate2", "--threads", "1"]) == 0
    assert capsys.readouterr().out.strip()
    assert main([*command, "--runtime", "ctranslate2", "--jit-compile"]) == 2
    assert "jit_compile needs the runtime keras" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, True), ({"activation": "swish"}, False)],
)
def test_auto_leaves_imported_models_on_keras(folder, options, expected, monkeypatch):
    monkeypatch.setattr(models, "MANY_FOR_KERAS", 2)
    path = folder / "config.json"
    content = json.loads(path.read_text())
    content["model"] |= options
    del content["digest"]
    path.write_text(json.dumps(content))

    translator = RUNTIMES.load(
        folder,
        TranslationRuntimeConfig(),
        search={},
        has_at_least=lambda number: number <= 2,
    )

    assert isinstance(translator, CTranslate2Translator) == expected
    asked = TranslationRuntimeConfig(runtime="ctranslate2")
    assert isinstance(RUNTIMES.load(folder, asked, search={}), CTranslate2Translator)
    content["model"]["norm_first"] = False
    path.write_text(json.dumps(content))
    assert not RUNTIMES.converts(folder)


def recorded_loads(monkeypatch):
    """Return a list to which every translator of CTranslate2 that is loaded adds 1."""
    loads: list[int] = []
    load = CTranslate2Translator.from_preset
    monkeypatch.setattr(
        CTranslate2Translator,
        "from_preset",
        lambda *arguments, **options: loads.append(1) or load(*arguments, **options),
    )
    return loads


@pytest.mark.parametrize("runtime", ["auto", "ctranslate2"])
def test_the_command_takes_glossaries(folder, runtime, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(models, "MANY_FOR_KERAS", 1)
    loaded = recorded_loads(monkeypatch)
    (tmp_path / "terms.tsv").write_text("dog\twolf\n")
    command = ["translate", SENTENCES[0], "--model", str(folder)]
    command += ["--runtime", runtime, "--glossary", str(tmp_path / "terms.tsv")]

    assert main(command) == 0
    assert "wolf" in capsys.readouterr().out
    assert len(loaded) == (runtime == "ctranslate2")


@pytest.mark.parametrize(("count", "batch_size"), [(2, 64), (3, 64), (3, 2), (3, 1)])
def test_long_lists_are_translated_by_ctranslate2(
    count, batch_size, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(models, "MANY_FOR_KERAS", 3)
    loaded = recorded_loads(monkeypatch)
    text, output = tmp_path / "text.en", tmp_path / "text.fr"
    text.write_text("".join(f"{line}\n" for line in SENTENCES[:count]))
    command = ["translate", "--input", str(text), "--output", str(output)]
    command += ["--batch-size", str(batch_size)]
    assert main([*command, "--model", str(folder)]) == 0
    assert len(output.read_text().splitlines()) == count
    # With a batch size of 1, no line is read before the one before it is translated.
    assert len(loaded) == (count == 3 and batch_size > 1)


@pytest.mark.parametrize("flags", ["fma avx512f avx512_vnni", "fma avx2", None])
def test_linux_tells_whether_a_processor_has_avx512(flags, tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"vendor_id\t: GenuineIntel\nflags\t\t: fpu {flags}\n")
    monkeypatch.setattr(models, "CPUINFO", cpuinfo)
    assert models.has_avx512() == (flags is not None and "avx512f" in flags)


@pytest.mark.parametrize("has_avx512", [True, False])
@pytest.mark.parametrize("count", [4, 5])
def test_lists_of_a_litert_file_need_more_lines_and_avx512(
    count, has_avx512, folder, monkeypatch
):
    monkeypatch.setattr(models, "MANY_FOR_KERAS", 2)
    monkeypatch.setattr(models, "MANY_FOR_LITERT", 5)
    lite = types.SimpleNamespace(search={"beam_size": 4})
    monkeypatch.setattr(models.Runtimes, "_available_litert", lambda *_: lite)

    def load(**search):
        return RUNTIMES.load(
            folder,
            TranslationRuntimeConfig(),
            search=search,
            has_at_least=lambda number: count >= number,
        )

    monkeypatch.setattr(models, "has_avx512", lambda: has_avx512)
    assert (load() is lite) == (count == 4 or not has_avx512)
    # The file has another beam width, so it would be Keras.
    assert isinstance(load(beam_size=3), CTranslate2Translator)


TEXTS = [
    "The dog runs. The cat sleeps.",
    'He said "Come here!" Then he left.',
    "Is it late? (Yes.) No!",
    "Mr. Smith met Dr. Brown on Jan. 5 at No. 7 in town. They talked.",
    "J. R. Tolkien wrote e.g. books. Der Hund, z. B. dieser, schläft.",
    "Am 3. Mai kam Prof. Meyer. Er blieb.",
    "It costs 3.50 dollars. 7 people paid... and left.",
    "no capital. letters here",
    "One sentence",
    "„Komm!“ rief er. »Nein.« Sie ging.",
    "彼は来た。彼女は去った。",
]


@pytest.mark.parametrize("text", TEXTS)
def test_rules_in_onnx_split_as_ours(text):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(
        sentence_splitter(), providers=["CPUExecutionProvider"]
    )
    metadata = session.get_modelmeta().custom_metadata_map
    identifiers = json.loads(metadata["vocab"])["_unit2id"]
    assert json.loads(metadata["config"])["feat_funcs"] == ["capitalized", "numeric"]
    # MiniSBD fills paragraphs up with at least one PAD.
    units = [[*(identifiers.get(x, identifiers["<UNK>"]) for x in text), 0]]
    features = [[*([x.isupper(), x.isdigit()] for x in text), [0, 0]]]
    inputs = {"units": np.array(units), "features": np.array(features, "float32")}
    (classes,) = session.run(None, inputs)
    ends = np.flatnonzero(classes[0].argmax(axis=-1)[: len(text)] == 2) + 1
    pieces = np.split(np.array(list(text)), [x for x in ends if x < len(text)])
    assert ["".join(x).strip() for x in pieces] == split_sentences(text)
