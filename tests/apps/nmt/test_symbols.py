"""What must survive a translation, around a model that returns what it reads."""

import json
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest

from attention_testing.browser_pages import SOURCE, run_typescript
from keras_attention_apps.nmt import spans, symbols
from keras_attention_apps.nmt.sentences import Layout, Part, Prepared
from keras_attention_apps.nmt.spans import NUMBER, TIME, WORD, find_spans
from keras_attention_apps.nmt.subwords import clean

CASES = Path(__file__).parent / "symbol_cases.json"
# The words that a vocabulary has as one subword.
WORDS = {"exit", "the"}


def is_ordinary(word):
    """Return whether a word with capital letters is neither abbreviation nor name."""
    return word.lower() in WORDS


def echoed(pair, text):
    """Return a text after a model that returns the words that it reads."""
    languages = tuple(pair.split("-"))
    source, target = languages
    layout = Layout(text, source, target=target, split=True, has_symbols=True)
    texts = []
    for part in layout.parts:
        prepared = Prepared(
            part,
            languages,
            has_symbols=True,
            is_word=WORDS.__contains__,
            is_ordinary=is_ordinary,
            is_common=is_ordinary,
        )
        words = prepared.match_form(list(filter(None, clean(prepared.text).split(" "))))
        texts.append(" ".join(prepared.fill_symbols(words)[0]))
    return layout.joined(texts)


@pytest.mark.parametrize(
    ("text", "has_symbols", "expected"),
    [
        ("?! ...", True, True),
        ("12:30 \u2013 5 %", True, True),
        ("a 5", True, False),
        ("?!", False, False),
    ],
)
def test_a_text_without_letters_needs_no_model(text, has_symbols, expected):
    prepared = Prepared(Part(text), ("en", "de"), has_symbols=has_symbols)
    assert prepared.has_only_symbols == expected


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\u00a0"])
@pytest.mark.parametrize("blank", [" ", "\u00a0", "\n"])
def test_texts_in_capitals_are_read_as_sentences(blank, end):
    """As a line of a file, which ends with its line break, is."""
    text = f"THE DOG IS{blank}IN PARIS.{end}"
    prepared = Prepared(Part(text), ("en", "de"), is_word=WORDS.__contains__)

    assert clean(prepared.text) == "The dog is in paris."
    assert prepared.match_form(["Der", "Hund."]) == ["DER", "HUND."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("EXIT", "Exit"), ("NASA", "NASA"), ("WELCOME", "Welcome"), ("THE EU", "The eu")],
)
def test_a_short_word_in_capitals_alone_may_be_an_abbreviation(text, expected):
    prepared = Prepared(Part(text), ("en", "de"), is_ordinary=is_ordinary)

    assert prepared.text == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Best Exit", "The best exit"),
        ("How I Exit the Best EU", "How I exit the best EU"),
        ("“Best Exit” Is The Tom Exit", "“Best exit” Is the Tom exit"),
        # Too few words; a long word in lower case; names; another language.
        ("Best Exit", "Best Exit"),
        ("The Best Exit without", "The Best Exit without"),
        ("Exit Tom Jones Best", "Exit Tom Jones Best"),
        ("Tom and the Best Exit is not in the Exit", None),
    ],
)
def test_common_words_of_english_titles_are_read_in_lower_case(text, expected):
    def is_common(word):
        return word.lower() in {"best", "exit", "the"}

    for languages in (("en", "de"), ("de", "en")):
        prepared = Prepared(Part(text), languages, is_common=is_common)
        is_read = expected if languages[0] == "en" else text
        assert prepared.text == (is_read or text)


@pytest.mark.parametrize(
    ("source", "words", "expected"),
    [
        ("Is it red?", ["Er", "ist", "rot."], ["Er", "ist", "rot?"]),
        ("It is red.", ["Ist", "er", "rot?"], ["Ist", "er", "rot."]),
        ("It is red!", ["Er", "ist", "rot."], ["Er", "ist", "rot."]),
        ("It is red", ["Er", "ist", "rot."], ["Er", "ist", "rot"]),
        ("It is red.", ["Er", "ist", "rot"], ["Er", "ist", "rot."]),
        ('Is it "red"?', ["Ist", "er", '"rot".'], ["Ist", "er", '"rot"?']),
    ],
)
def test_a_translation_has_the_final_mark_of_its_source(source, words, expected):
    prepared = Prepared(
        Part(source), ("en", "de"), has_symbols=True, is_word=WORDS.__contains__
    )

    assert prepared.match_form(words) == expected


@pytest.mark.parametrize(
    ("pair", "text", "expected"), json.loads(CASES.read_text("utf-8"))
)
def test_what_must_survive_survives_in_the_form_of_the_target(pair, text, expected):
    assert echoed(pair, text) == expected


@pytest.mark.browser
def test_the_static_page_has_the_same_rules(tmp_path):
    patterns = json.loads((SOURCE / "src/library/spans.json").read_text("utf-8"))
    for language in (None, "en", "de"):
        pattern, kinds = spans.pattern_of(language)
        assert patterns[language or ""] == [pattern, kinds]
    script = """
        import { readFileSync } from "node:fs";
        import { Layout, Prepared } from "SOURCE/parts";
        import { clean } from "SOURCE/text";
        const words = new Set(WORDS);
        const found = JSON.parse(readFileSync(0, "utf8")).map(([pair, text]) => {
            const languages = pair.split("-");
            const layout = new Layout(text, languages[0], true, true, languages[1]);
            return layout.joined(layout.parts.map((part) => {
                const isWord = (x) => words.has(x);
                const isOrdinary = (x) => words.has(x.toLowerCase());
                const known = [isWord, isOrdinary, isOrdinary];
                const one = new Prepared(part, languages, true, ...known);
                const read = clean(one.text).split(" ").filter((x) => x);
                return one.fillSymbols(one.matchForm(read)).words.join(" ");
            }));
        });
        console.log(JSON.stringify(found));
        """
    cases = json.loads(CASES.read_text("utf-8"))
    script = script.replace("WORDS", json.dumps(sorted(WORDS)))
    texts = run_typescript(script, cases, tmp_path)

    for (pair, text, expected), actual in zip(cases, texts, strict=True):
        assert actual == expected, (pair, text)


def test_ordinary_words_are_skipped_where_no_span_begins():
    rng = random.Random(7)
    pieces = [
        "the ", "May", " 5", " ", "Tom", "%s", "x.txt", "a.com", "}}", "{", "am ", "\n",
        "II", "EUR ", "foo()", "camelCase", "--x", "LH 454", "é", "ş", "3.", "'s", "`",
    ]  # fmt: skip
    texts = [text for _, text, _ in json.loads(CASES.read_text("utf-8"))]
    texts += ["".join(rng.choices(pieces, k=rng.randint(1, 20))) for _ in range(500)]
    for language in ("en", "de"):
        pattern = re.compile(spans.pattern_of(language)[0])
        for text in texts:
            expected = [x.span() for x in pattern.finditer(text) if x[0]]
            actual = [(x.begin, x.end) for x in find_spans(text, language)]
            assert actual == expected, text


@pytest.mark.parametrize("piece", ["a.", "a-", "a/", "x", "1 2 3. "])
def test_texts_take_time_in_proportion_to_their_length(piece):
    text = (piece * 10_000)[:10_000]
    begin = time.process_time()
    Layout(text, "en", split=True, has_symbols=True)
    # With the square of the length, it would be more than 10 s.
    assert time.process_time() - begin < 6


@pytest.mark.parametrize("name", ["libfoo.so", "a-1.whl", "IMG_2.heic", "list.pdf"])
def test_names_of_files_are_spans(name):
    (span,) = find_spans(f"Open {name}, please. It is so.", "en")
    assert (span.begin, span.end, span.kind) == (5, 5 + len(name), WORD)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("Take LH 454 today.", ["LH 454"]),
        ("LH 454", ["LH 454"]),
        ("HE IS 19.", []),
        ("BUS 12 IS LATE", []),
    ],
)
def test_words_before_numbers_in_capitals_are_no_codes(text, codes):
    spans = find_spans(text, "en")
    words = [text[x.begin : x.end] for x in spans if x.kind == WORD]
    assert words == codes


def test_spans_do_not_overlap_and_each_has_a_symbol_of_its_kind():
    text = "At 2:30 p.m. {x} paid $5 for 3 of 4711-882, see https://a.b/c."
    spans = find_spans(text, "en")
    kinds = [span.kind for span in spans]
    assert kinds == [TIME, WORD, NUMBER, NUMBER, WORD, WORD]

    substituted, originals = symbols.substitute(text, spans, [], ("en", "de"))

    assert [x.target for x in originals.values()] == [
        "14:30 Uhr", "{x}", "5 $", "3", "4711-882", "https://a.b/c"
    ]  # fmt: skip
    points = [ord(x) for x in originals]
    assert all(
        p in symbols.SYMBOLS[kind] for p, kind in zip(points, kinds, strict=True)
    )
    assert sum(substituted.count(x) for x in originals) == len(spans)


def test_a_hundred_spans_in_a_sentence_come_back():
    for pattern in ("{{x{}}}", "{}", "<a{}>"):
        text = "See " + " and ".join(pattern.format(i) for i in range(100)) + "."
        layout = Layout(text, "en", split=False, has_symbols=True)
        assert len(layout.parts) > 10
        assert echoed("en-de", text) == text


def test_odd_texts_come_back_as_they_were():
    rng = random.Random(3)
    pieces = [
        "{", "}", "%s", "<0>", "</0>", "\ue000", "\ue021", "\U000f0000", "12.5", "`",
        "a", "Tom", ".", "!", "👩‍👩‍👧", "**", "[x](y)", "@a", "&amp;", "3. ", "$",
    ]  # fmt: skip
    for _ in range(300):
        text = clean(" ".join(rng.choices(pieces, k=rng.randint(1, 30))))
        assert echoed("fr-it", text).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("source", "translation", "lost"),
    [
        ("He is 19.", "Er ist 190.", ["19"]),
        ("He is 19.", "Er ist 19.", []),
        ("I have 2 dogs.", "Ich habe zwei Hunde.", []),
        ("It costs $1,250.50 at 2:30 p.m.", "Es kostet 1.250,50 $ um 14:30 Uhr.", []),
        ("It costs $1,250.50.", "Es kostet 1.250,51 $.", ["$1,250.50"]),
        ("Hello %1$s!", "Hallo 1 %!", ["%1$s"]),
        (
            "Hi {name}, see a@b.org \U0001f436",
            "Hallo, siehe a@b.org",
            ["{name}", "\U0001f436"],
        ),
    ],
)
def test_a_model_without_symbols_says_what_is_lost(source, translation, lost):
    prepared = Prepared(Part(source), ("en", "de"))

    assert prepared.text == source
    assert prepared.lost_in(translation) == lost


def test_restored_words_share_the_weights_of_their_symbols():
    prepared = Prepared(Part('Come "2:30 p.m." now'), ("en", "de"), has_symbols=True)
    words = prepared.text.split(" ")
    assert len(words) == 4

    restored, shares = prepared.fill_symbols(words)

    assert restored == ["Come", '"14:30', 'Uhr"', "now"]
    np.testing.assert_allclose(shares.sum(axis=0), 1)
    np.testing.assert_allclose(shares[:, 1], [0, 1, 0, 0])
    np.testing.assert_allclose(shares[:, 2], [0, 0.5, 0.5, 0])
    source, _ = prepared.fill_symbols(words, is_source=True)
    assert source == ["Come", '"2:30', 'p.m."', "now"]
