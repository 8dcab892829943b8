"""`nmt serve` as clients of LibreTranslate use it, on the default model."""

import re
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
from deep_translator import LibreTranslator
from deep_translator.exceptions import AuthorizationException
from libretranslatepy import LibreTranslateAPI

from attention_testing.nmt import marian as published
from attention_testing.programs import error_of as error_of_program
from attention_testing.servers import error_of, metric, served
from keras_attention_apps.common.models import Runtimes
from keras_attention_apps.common.options import RestConfig
from keras_attention_apps.common.web.rest import Service
from keras_attention_apps.nmt import inference
from keras_attention_apps.nmt.config import DEFAULT_MODEL, PRESETS, ServeConfig
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.markup import translate_html
from keras_attention_apps.nmt.sentences import Layout
from keras_attention_apps.nmt.serve import Detector, Translator, language_code, pair_of
from keras_attention_apps.nmt.translations import (
    BaseTranslator,
    LiteTranslator,
    Translation,
)

KEY = "a key of the translator"
# What the answer to every text of a pair of languages has.
TRANSLATED = {"translatedText", "confidence", "unsure"}
SENTENCES = [
    f"{who} {what} in the {where}."
    for who in ("A man", "Two dogs", "A young woman", "The children")
    for what in ("run", "play", "sit")
    for where in ("snow", "park", "kitchen")
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server with two language pairs, which have the same model."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(KEY)
    pairs = ("en-de", "en-fr")
    models = [x for pair in pairs for x in ("--model", DEFAULT_MODEL, "--pair", pair)]
    limits = ("--max-characters", "1000", "--max-texts", "40")
    with served("nmt", *models, *limits, "--api-keys", str(keys)) as (_, address):
        yield address


@pytest.fixture(scope="module")
def translator():
    return LiteTranslator.from_preset(DEFAULT_MODEL)


def translate(address, q, **options):
    """Return the answer to a request in JSON."""
    values = {"source": "en", "target": "de", "api_key": KEY, "q": q, **options}
    return requests.post(f"{address}/translate", json=values, timeout=60)


def test_libretranslatepy_translates_detects_and_lists(address):
    client = LibreTranslateAPI(address, api_key=KEY)

    assert client.translate("A dog runs.", "en", "de") == "Ein Hund rennt."
    german = "Ein Hund & 50% rennt."
    assert client.translate(german, "auto", "de") == german
    assert client.detect("Guten Morgen, wie geht es dir?")[0]["language"] == "de"
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["en", "de", "fr"]},
        {"code": "de", "name": "German", "targets": ["de"]},
        {"code": "fr", "name": "French", "targets": ["fr"]},
    ]


def test_deep_translator_translates(address):
    options = {"source": "en", "target": "de", "custom_url": f"{address}/"}
    client = LibreTranslator(api_key=KEY, **options)

    translations = client.translate_batch(["A dog runs.", "Two women sing."])
    assert translations == ["Ein Hund rennt.", "Zwei Frauen singen."]
    with pytest.raises(AuthorizationException):
        LibreTranslator(api_key="a key of nobody", **options).translate("A dog runs.")


def test_a_list_is_answered_by_lists(address, translator):
    texts = [*SENTENCES[:5], "", "A dog runs. Two women sing! Where?"]
    answer = translate(address, texts, alternatives=2).json()

    actual = translator.translate(texts)
    assert set(answer) - {"reason"} == TRANSLATED | {"alternatives"}
    assert answer["translatedText"] == [x.text for x in actual]
    for value, translation in zip(answer["confidence"], actual, strict=True):
        assert value == pytest.approx(translation.confidence, abs=0.01)
    assert answer["unsure"] == [x.unsure for x in actual]
    for text, others in zip(texts, answer["alternatives"], strict=True):
        (ranked,) = translator.translate_each([text], n_best=4)
        expected = [x.text for x in ranked if x.text != ranked[0].text]
        assert others == list(dict.fromkeys(expected))[:2]
    assert len(answer["alternatives"][0]) == 2


def test_one_text_is_answered_by_one(address, translator):
    answer = translate(address, SENTENCES[0], source="auto", alternatives="1").json()

    assert answer["translatedText"] == translator.translate(SENTENCES[0]).text
    assert isinstance(answer["alternatives"], list) and len(answer["alternatives"]) == 1
    assert answer["detectedLanguage"]["language"] == "en"
    assert 50 < answer["detectedLanguage"]["confidence"] <= 100
    answer = translate(address, SENTENCES[0]).json()
    assert set(answer) == TRANSLATED and answer["unsure"] is False


def test_every_text_of_a_list_has_its_own_language(address):
    texts = ["Two women sing in the park.", "Zwei Frauen singen im Park."]
    answer = translate(address, texts, source="auto").json()
    assert [x["language"] for x in answer["detectedLanguage"]] == ["en", "de"]
    assert answer["translatedText"] == ["Zwei Frauen singen im Park."] * 2


def test_line_breaks_stay(address, translator):
    first, second = translator.translate(SENTENCES[:2])
    text = f"{SENTENCES[0]}\n\n{SENTENCES[1]}\r\n"
    answer = translate(address, text).json()["translatedText"]
    assert answer == f"{first.text}\n\n{second.text}\n"


class Shouting:
    """A stand-in for a model, which reads seven words and writes capital letters."""

    max_length = 8
    tokenizer = types.SimpleNamespace(languages={})
    target_language_of = BaseTranslator.target_language_of
    with_target_language = BaseTranslator.with_target_language

    def token_count(self, sentence):
        return len(sentence.split()) + 1

    def part_length(self, part):
        return self.token_count(part.original)

    def layout(self, text):
        return Layout(text, "en", split=True, has_symbols=False)

    def search_options(self, **search):
        return {"beam_size": 2}

    def translate_each(self, sentences, *, n_best, split, batch_size):
        empty = np.zeros((0, 0)), np.zeros(0)
        for text in sentences:
            is_cut = len(text.split()) > 7
            yield [
                Translation(text.upper() + mark, [], [], -i, -i, *empty, is_cut)
                for i, mark in enumerate(["", "?"][:n_best])
            ]


def test_sentences_that_are_too_long_lose_nothing(monkeypatch):
    monkeypatch.setattr(Runtimes, "load", lambda *args, **options: Shouting())
    translator = Translator("shouting", ServeConfig(), Service("nmt", RestConfig()))
    numbers = " ".join(map(str, range(100)))

    (result,) = translator.texts([f"a b {numbers} c.\nD e."], 2)
    assert result.texts[0] == f"A B {numbers} C.\nD E."
    assert len(result.texts) == 2 and result.texts[1].endswith("\nD E.?")


def test_a_word_that_is_too_long_stays(address):
    word = "x" * 900
    assert translate(address, word).json()["translatedText"] == word


def test_html_keeps_its_tags(address, translator):
    page = '<p title="x">A <b>dog</b> runs.</p><p>Two women <i>sing</i>.</p>'
    answer = translate(address, [page, "<br>"], format="html", alternatives=1).json()

    expected = translate_html(translator, page, language="de")
    assert "<b>Hund</b>" in expected
    assert answer["translatedText"] == [expected, "<br>"]
    assert answer["alternatives"] == [[], []]
    detected = translate(address, page, format="html", source="auto").json()
    assert detected["translatedText"] == expected


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"q": ""}, "q is missing"),
        ({"q": None}, "q is missing"),
        ({"q": []}, "q: list should have at least 1 item"),
        ({"q": 5}, "q: input should be a valid string. Received: 5"),
        ({"q": "\ud800"}, "q: input should be a valid string"),
        ({"q": ["a", {"b": 1}]}, "q: input should be a valid string"),
        ({"q": "a" * 1001}, "q: string should have at most 1000 characters"),
        ({"q": ["a", "a" * 1001]}, "q: string should have at most 1000 characters"),
        ({"q": ["a"] * 41}, "q: list should have at most 40 items"),
        ({"source": None}, "source is missing"),
        ({"source": "xx"}, "source: expected one of en, de, fr, auto. Received: 'xx'"),
        ({"target": "auto"}, "target: expected one of en, de, fr. Received: 'auto'"),
        ({"target": "/etc/passwd"}, "target: expected one of"),
        ({"source": "de", "target": "en"}, "there is no model from de to en"),
        ({"format": "pdf"}, "format: input should be 'text' or 'html'"),
        ({"alternatives": 4}, "alternatives: input should be less than 4"),
        ({"alternatives": -1}, "alternatives: input should be greater than or equal"),
        ({"alternatives": "x"}, "alternatives: input should be a valid integer"),
    ],
)
def test_a_wrong_value_is_answered_with_the_reason(address, values, error):
    answer = translate(address, **{"q": "A dog runs.", **values})
    assert error_of(answer, 400).startswith(error)


def test_a_wrong_key_is_refused(address):
    for key in ("x", ["x"], None):
        error_of(translate(address, "A dog runs.", api_key=key), 403)
    error_of(requests.post(f"{address}/detect", data={"q": "a"}), 403)


@pytest.mark.parametrize("text", ["\0", "\u202e", "<b", "&#xd800;", "\n\n"])
@pytest.mark.parametrize("kind", ["text", "html"])
def test_any_characters_are_answered(address, text, kind):
    answer = translate(address, text, source="auto", format=kind)
    assert answer.status_code == 200, answer.text


def test_answers_are_not_mixed_up_and_are_computed_together(address, translator):
    expected = {x: translator.translate(x).text for x in SENTENCES}
    expected |= {f"<p>{x}</p>": f"<p>{y}</p>" for x, y in expected.items()}

    def ask(text, count):
        kind = "html" if text.startswith("<p>") else "text"
        return translate(address, [text] * count, format=kind).json()["translatedText"]

    headers = {"authorization": f"Bearer {KEY}"}

    def batches():
        text = requests.get(f"{address}/metrics", headers=headers).text
        return [metric(text, f"nmt_batch_size_{x}") for x in ("sum", "count")]

    before, counts = batches(), [1 + i % 3 for i in range(len(expected))]
    with ThreadPoolExecutor(24) as pool:
        actual = [*pool.map(ask, expected, counts)]
    pairs = zip(expected.values(), counts, strict=True)
    assert actual == [[text] * count for text, count in pairs]
    total, count = (y - x for x, y in zip(before, batches(), strict=True))
    # A text that a list repeats is translated once.
    assert total >= len(SENTENCES) * 2
    assert total / count > 2


def test_a_model_knows_its_language_pair():
    assert pair_of(DEFAULT_MODEL) == "en-de"
    assert pair_of("multi30k-en-de-luong+multi30k-en-de-bahdanau") == "en-de"
    assert pair_of(PRESETS / DEFAULT_MODEL / "model.tflite") == "en-de"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--model", "none"), "expected the name of a preset"),
        (
            ("--model", DEFAULT_MODEL, "--pair", "english"),
            "expected the language pair of .*Received: english",
        ),
        (("--model", DEFAULT_MODEL, *["--pair", "en-de"] * 2), "one --pair for each"),
        (("--model", DEFAULT_MODEL) * 2, "one model for each language pair: en-de"),
        (("--api-keys", __file__), "an API key of 16 to 1000 bytes"),
        (("--host", "192.0.2.1"), "cannot listen at 192.0.2.1"),
        (("--api-key", "x"), "no option --api-key. Did you mean '--api-keys'"),
    ],
)
def test_wrong_options_are_one_line(arguments, error, capsys):
    arguments = ["serve", "--port", "0", *arguments]
    assert re.search(error, error_of_program(main, arguments, capsys))


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory):
    """The folder of a translator with three target languages."""
    folder = tmp_path_factory.mktemp("many")
    languages = [">>deu<<", ">>fra<<", ">>pt_br<<"]
    published.write_transformers(
        folder / "opus-mt-en-mul", languages=languages, end_bias=2.0
    )
    output = folder / "model"
    main(["import", str(folder / "opus-mt-en-mul"), "--output", str(output)])
    return output


def test_a_request_names_the_target_language_of_a_multilingual_model(multilingual):
    model = inference.Translator.from_preset(multilingual)
    text = "Two cats sleep. The snow is red."

    with served("nmt", "--model", str(multilingual)) as (_, address):
        listed = requests.get(f"{address}/languages", timeout=60).json()
        assert listed[0]["targets"] == ["en", "de", "fr", "pt-BR"]
        assert listed[3] == {
            "code": "pt-BR",
            "name": "Portuguese (BR)",
            "targets": ["pt-BR"],
        }
        expected = {
            code: model.translate(text, target_language=language)
            for code, language in (("de", "deu"), ("fr", "fra"), ("pt", "pt_br"))
        }
        texts = [x.text for x in expected.values()]
        assert len(set(texts)) == len(texts)
        for code, translation in expected.items():
            answer = translate(address, text, target=code).json()
            assert answer["translatedText"] == translation.text
        # The languages of two lines and of all their sentences.
        answers = translate(address, [f"{text}\n>>fra<< {text}", text]).json()
        both = f"{texts[0]}\n{texts[1]}"
        assert answers["translatedText"] == [both, texts[0]]
        page = translate(address, f"<p>{text}</p>", target="fr", format="html").json()
        assert page["translatedText"] == translate_html(
            model, f"<p>{text}</p>", language="fr", target_language="fra"
        )
        error = error_of(translate(address, text, target="es"), 400)
        assert "expected one of en, de, fr, pt-BR. Received: 'es'" in error


def test_a_server_offers_chosen_target_languages(multilingual, capsys):
    chosen = ("--target-language", "fra", "--target-language", "deu")
    with served("nmt", "--model", str(multilingual), *chosen) as (_, address):
        (english, *others) = requests.get(f"{address}/languages", timeout=60).json()
    assert english["targets"] == ["en", "de", "fr"] and len(others) == 2
    for model, error in (
        (multilingual, "must be one of deu, fra, pt_br. Received: 'xyz'"),
        (DEFAULT_MODEL, "needs an imported multilingual model.*'xyz'"),
    ):
        command = ["serve", "--model", str(model), "--target-language", "xyz"]
        assert re.search(error, error_of_program(main, command, capsys))


def test_languages_are_those_of_the_models():
    detect = Detector(["en", "de", "xx"])

    assert detect("Die Katze schläft.")[0]["language"] == "de"
    # Nothing speaks for a language: the source of the first model comes first.
    assert detect("123")[0] == {"confidence": 0.7, "language": "en"}
    assert detect("A dog.")[2] == {"confidence": 0.0, "language": "xx"}
    assert Detector(["xx"])("A dog.") == [{"confidence": 0.0, "language": "xx"}]


def test_languages_are_detected_among_all():
    detect = Detector(["en", "de"])
    for text, language in (
        ("Il pleut beaucoup aujourd'hui.", "fr"),
        ("¿Dónde está la estación?", "es"),
        ("Where is the file?", "en"),
    ):
        best, *others = detect(text)
        assert best["language"] == language and best["confidence"] > 80
        assert {"en", "de"} <= {best["language"], *(x["language"] for x in others)}
    # Words of one language that are as probable in many are not foreign.
    for word in ("Taxi", "OK", "Hallo", ""):
        assert detect(word)[0]["language"] in ("en", "de")
    assert detect.is_other("Il pleut beaucoup aujourd'hui.", "en")
    for text in ("Where is the file?", "Taxi", "Tom", ""):
        assert not detect.is_other(text, "en")


@pytest.mark.parametrize(
    ("code", "expected"),
    [("en-US", "en"), ("de_DE", "de"), ("EN", "en"), ("zh-hant", "zh-Hant")],
)
def test_codes_of_languages(code, expected):
    assert language_code(code, ["en", "de", "zh-Hant"]) == expected


def test_codes_with_a_region_are_understood(address):
    answer = translate(address, SENTENCES[0], source="en-US", target="de_DE")
    assert answer.json() == translate(address, SENTENCES[0]).json()


def test_unknown_languages_are_refused_or_marked(address):
    russian = "Где находится библиотека?"
    refused = error_of(translate(address, russian, source="auto"), 400)
    assert "seems to be in Russian (ru)" in refused
    answer = translate(address, [russian, SENTENCES[0]], source="auto").json()
    assert answer["translatedText"][0] == russian
    assert answer["unsure"] == [True, False]
    assert "Russian (ru)" in answer["reason"][0]
    assert answer["detectedLanguage"][0]["language"] == "ru"
    # The given language is used, and the answer marked.
    marked = translate(address, russian, source="en").json()
    assert marked["unsure"] and "not to be in English" in marked["reason"]
