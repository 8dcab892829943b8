from types import SimpleNamespace

import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.inference import Hypothesis
from keras_attention_apps.common.tokenizer import END
from keras_attention_apps.nmt import Glossary, inference
from keras_attention_apps.nmt.data.glossary import encode_phrase, word_continuations
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.sentences import Part
from keras_attention_apps.nmt.subwords import Subwords
from keras_attention_apps.nmt.translations import Translation

from .conftest import untrained


@pytest.mark.parametrize(
    ("entries", "sentence", "phrases"),
    [
        ({"dog": "chien"}, "The Dog, a DOG.", ["chien"]),
        ({"dog": "chien"}, "dogs and hotdog", []),
        ({"Turkey": "Turquie"}, "a turkey in Turkey", ["Turquie"]),
        ({"Turkey": "Turquie"}, "a turkey", []),
        ({"May": "mai", "may": "peut"}, "In May it may rain", ["mai", "peut"]),
        ({"hot dog": "hot-dog", "dog": "chien"}, "a hot  dog", ["hot-dog"]),
        ({"hot dog": "hot-dog", "dog": "chien"}, "dog hot dog", ["chien", "hot-dog"]),
        ({"a b": "x", "b c": "y"}, "a b c", ["x"]),
        ({"e-mail": "courriel"}, "An e-mail!", ["courriel"]),
        ({"狗": "chien"}, "一只狗在跑", ["chien"]),
        ({"straße": "rue"}, "die STRASSE", ["rue"]),
        ({"राम": "Ram"}, "रामायण", []),
        ({"राम": "Ram"}, "यह राम है", ["Ram"]),
        ({"می": "wine"}, "می\u200cخواهم", []),
        ({"می": "wine"}, "می و", ["wine"]),
        ({"กา": "crow"}, "นก กา", ["crow"]),
        ({"กา": "crow"}, "ก่า", []),
        ({"ก": "chicken"}, "กิน", []),
        ({"x": "y"}, "x\u0301 x", ["y"]),
        ({"a_b": "c"}, "(a_b)", ["c"]),
        ({}, "a dog", []),
    ],
)
def test_phrases_are_found_as_whole_words(entries, sentence, phrases):
    assert list(Glossary(entries).find(sentence)) == phrases


def test_a_file_has_a_line_for_each_entry(tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_bytes("\ufeffdog\tle  chien\r\n\nhot dog\thot-dog\n".encode())
    glossary = Glossary.from_file(file)

    assert len(glossary) == 2
    assert glossary.find("a dog and a hot dog") == {"le chien": {1}, "hot-dog": {4, 5}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"dog chien\n", "line 1: expected a source phrase, a tab.*: 'dog chien'"),
        (b"a\tb\n\nc\td\te\n", r"line 3: expected a source phrase, a tab.*: 'c\\td"),
        (b"dog\t \n", "line 1: expected two phrases.*: 'dog' and ''"),
        (b"dog\ta\ndog\tb\n", "line 2: 'dog' has two translations.*: 'a' and 'b'"),
        (b"\xff\tb\n", "line 1, is not UTF-8"),
        (b"", "is empty"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path, content, message):
    file = tmp_path / "terms.tsv"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        Glossary.from_file(file)


def test_a_phrase_replaces_the_word_that_is_aligned_with_its_source(subwords):
    translator = untrained(subwords, "bahdanau")
    encoded = [*subwords.encode("le chien, rouge")]
    weights = np.full((len(encoded), 4), 0.1)
    words = subwords.word_indices(encoded)
    # chien, translates dog, and rouge translates red.
    for token, word in enumerate(words):
        weights[token, [0, 2, 1][word]] = 1.0
    hypothesis = Hypothesis(
        np.array(encoded), 0.0, 0.0, np.zeros(9), len(encoded), weights
    )
    spelt = {x: encode_phrase(subwords, x) for x in ("chien", "rouge", "xyz", "oiseau")}

    def replaced(glossary):
        source = translator._source(Part("the red dog"), Glossary(glossary))
        assert len(source.token_ids) == 4
        return translator._replaced(source, [hypothesis])

    comma = encoded.index(subwords.encode("a,")[-2])
    begin = words.tolist().index(1)
    assert encoded[begin:comma] == spelt["chien"]
    assert replaced({"dog": "xyz"}) == ([begin], [spelt["chien"]])
    # The second phrase begins later, since the first one is longer than its word.
    (second, first), banned = replaced({"red": "oiseau", "dog": "xyz"})
    assert first == begin and banned == [spelt["rouge"], spelt["chien"]]
    longer = len(spelt["xyz"]) - len(spelt["chien"])
    assert second == words.tolist().index(2) + longer
    assert replaced({"dog": "chien"}) == ([], [])


def test_phrases_become_tokens_within_a_sentence(subwords, unspaced_subwords):
    for phrase in ("le chien rouge", "xyz"):
        assert subwords.decode(encode_phrase(subwords, phrase)) == phrase
    assert encode_phrase(unspaced_subwords, "看见了") != []
    pieces = [subwords.pieces[x] for x in word_continuations(subwords)]
    assert {"o", "a"} < set(pieces) and not any("▁" in piece for piece in pieces)


def test_phrases_of_scripts_without_spaces_have_no_space_before_them():
    lines = ["苹果很好", "我吃苹果", "他吃苹果", "苹果手机", "我看苹果手机"] * 3
    subwords = Subwords.train(lines, 330)
    assert "▁苹果" in subwords.pieces and "苹果" in subwords.pieces

    before = subwords.encode("我")[:-1]
    for phrase, expected in {
        "苹果": ["苹果"],
        "苹果 手机": ["苹果", "▁", "手机"],
        "龘": ["<0xE9>", "<0xBE>", "<0x98>"],
    }.items():
        token_ids = encode_phrase(subwords, phrase)
        assert [subwords.pieces[x] for x in token_ids] == expected
        assert subwords.decode([*before, *token_ids]) == f"我{phrase}"
    token_ids = encode_phrase(subwords, "a 苹果")
    assert subwords.decode([*before, *token_ids]) == "我 a 苹果"


def test_letters_marks_and_bytes_of_characters_continue_words():
    pieces = ["<s>", "<0x2E>", "<0x61>", "<0x7F>", "<0x80>", "<0xE4>", "▁a", "a", "7"]
    pieces += [".", "\u093e\u092e", "\u200cخ", "\u0301", "狗", "\u0e34", "_", "▁"]
    tokenizer = SimpleNamespace(
        pieces=pieces, bytes={1: 0x2E, 2: 0x61, 3: 0x7F, 4: 0x80, 5: 0xE4}
    )

    actual = [pieces[x] for x in word_continuations(tokenizer)]

    expected = ["<0x61>", "<0x80>", "<0xE4>", "a", "7", "\u093e\u092e", "\u200cخ"]
    assert actual == [*expected, "\u0301", "\u0e34", "_"]


def test_translations_contain_the_phrases_of_their_sentences(eager, subwords):
    translator = untrained(subwords, "bahdanau", max_length=12)
    long = " ".join(["chien"] * 30)
    glossary = {"dog": "vieux chien", "red": "grand", "cat": long, "bird": "xyz"}
    # Phrases that do not fit are left out from the end. The end of the last sentence is
    # cut off, so its phrases are not looked for.
    expected = {
        "the red dog": (["grand", "vieux chien"], []),
        "a old": ([], []),
        "": ([], []),
        "a dog sees a cat": (["vieux chien"], [long]),
        "a cat, a bird": ([], [long, "xyz"]),
        f"{'dog ' * 25} bird cat": (["vieux chien"], []),
    }
    options = {"beam_size": 2, "n_best": 2}
    actual = list(translator.translate_each(expected, glossary=glossary, **options))

    for translations, (phrases, omitted) in zip(actual, expected.values(), strict=True):
        for translation in translations:
            assert all(phrase in translation.text for phrase in phrases)
            assert "xyz" not in translation.text and translation.omitted == omitted
    assert [translations[0].cut for translations in actual] == [False] * 5 + [True]
    plain = translator.translate("a old", beam_size=2)
    assert actual[1][0].text == plain.text
    assert actual[1][0].score == pytest.approx(plain.score, abs=1e-4)


def test_a_batch_that_is_filled_up_has_phrases_in_every_row(subwords, monkeypatch):
    translator = untrained(subwords, "bahdanau")
    translator.jit_compile = True
    sizes = {}

    def record(search_model, inputs):
        sizes.update({name: len(rows) for name, rows in inputs.items()})
        raise LookupError

    monkeypatch.setattr(inference, "predict_rows", record)
    phrases = 3 * [([[7]], [0], [[]])]
    with pytest.raises(LookupError):
        translator._search(3 * [[5, END]], 64, 1, {"beam_size": 2}, phrases)
    # XLA compiles for powers of two.
    assert len(sizes) == 4 and set(sizes.values()) == {4}


@pytest.mark.exhaustive
@pytest.mark.parametrize("jit_compile", [False, True])
def test_one_search_takes_phrases_of_growing_and_shrinking_sizes(jit_compile, subwords):
    translator = untrained(subwords, "bahdanau")
    translator.jit_compile = jit_compile
    for glossary in (
        {"dog": "chien"},
        {"dog": "un vieux chien", "red": "grand", "the": "le"},
        {"dog": "vieux chien", "the": "un"},
    ):
        translations = translator.translate(["the red dog", "a cat"], glossary=glossary)
        assert all(phrase in translations[0].text for phrase in glossary.values())


def test_the_command_warns_of_phrases_that_do_not_fit(
    model_folder, cached_models, monkeypatch, tmp_path, capsys
):
    nothing = np.zeros((0, 0)), np.zeros(0)

    def translate_each(self, sentences, **options):
        for sentence in sentences:
            omitted = [x for x in ("dog", "cat") if x in sentence.split()]
            yield [Translation(sentence, [], [], 0.0, 0.0, *nothing, omitted=omitted)]

    monkeypatch.setattr(Translator, "translate_each", translate_each)
    (tmp_path / "terms").write_text("dog\tHund\n")
    options = ["--model", str(model_folder), "--glossary", str(tmp_path / "terms")]
    assert main(["translate", "a dog", "a bird", "dog cat", *options]) == 0
    warning = "nmt: warning: "
    assert capsys.readouterr().err == (
        f"{warning}arguments, line 1: 1 glossary phrase does not fit, and is left out\n"
        f"{warning}arguments, line 3: 2 glossary phrases do not fit, and are left out\n"
    )

    assert main(["translate", "a dog", *options, "--runtime", "litert"]) == 2
    assert "--glossary needs the runtime keras. Rec" in capsys.readouterr().err


def test_lengths_keep_their_ratios(eager, translator):
    ratios = {"min_length_ratio": 1.0, "max_length_ratio": 1.0}
    sentences = ["the red dog", "a big bird sees"]
    translations = translator.translate(sentences, beam_size=2, **ratios)
    for sentence, translation in zip(sentences, translations, strict=True):
        count = len(translator.tokenizer.encode(sentence)) - 1
        assert count <= sum(x != "</s>" for x in translation.subwords) <= count + 1


@pytest.mark.parametrize(
    ("length", "ratios", "limits"),
    [
        # Both limits, and the length of the source, include the end token.
        (5, (1.5, 2.0), (7, 9)),
        (5, (0.0, 0.5), (1, 3)),
        (2, (0.0, 0.1), (1, 2)),
        (15, (3.0, None), (20, 20)),
        (15, (0.0, None), (1, 20)),
    ],
)
def test_limits_of_lengths(length, ratios, limits, translator):
    assert translator._limits(length, *ratios) == limits


@pytest.mark.exhaustive
def test_the_command_takes_a_glossary(model_folder, cached_models, tmp_path, capsys):
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("dog\tvieux chien\n")
    options = ["--model", str(model_folder), "--glossary", str(glossary)]
    assert main(["translate", "the red dog", "a cat", *options]) == 0
    first, _ = capsys.readouterr().out.splitlines()
    assert "vieux chien" in first

    assert main(["translate", "x", *options, "--output", str(glossary)]) == 2
    assert "terms.tsv" in capsys.readouterr().err
    assert glossary.read_text() == "dog\tvieux chien\n"
