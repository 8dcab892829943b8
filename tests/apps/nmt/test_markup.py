"""Files with markup: runs of language, tags, units and encodings.

The translator of these tests writes words in capitals, in order or reversed, so that
its alignment is known.
"""

import codecs
import itertools
import json
import re
import time
import xml.dom.minidom
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from attention_testing.browser_pages import SOURCE, run_typescript
from attention_testing.repository import module_of
from keras_attention_apps.common import encoding
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt import markup
from keras_attention_apps.nmt.formats import lexical_cues, subtitles
from keras_attention_apps.nmt.formats.html import read as read_html
from keras_attention_apps.nmt.lexicon import Lexicon
from keras_attention_apps.nmt.main import main

pytestmark = pytest.mark.usefixtures("cached_models", "echoed")
DOCS = Path(__file__).parents[3] / "docs"
# Texts, their translations in order, and those with reversed words.
CASES = json.loads((Path(__file__).parent / "markup_cases.json").read_text("utf-8"))
DOCUMENTS = module_of("benchmarks/documents.py")


class Shouting:
    """Translates words into capitals, in the same order or reversed."""

    max_length = 40

    @staticmethod
    def token_count(sentence):
        return len(sentence.split()) + 1

    def __init__(self, reverse=False, unsure=()):
        self.reverse, self.unsure, self.sentences = reverse, unsure, []

    def translate(self, sentences, *, split):
        assert not split
        self.sentences += sentences
        return [self._one(sentence) for sentence in sentences]

    def _one(self, sentence):
        source = sentence.split()
        words = [re.match(r"(.*?)([.,!?]*)$", word).groups() for word in source]
        order = range(len(words))[:: -1 if self.reverse else 1]
        # The punctuation keeps its place.
        shouted = [self.word(words[i][0]) + words[j][1] for j, i in enumerate(order)]
        weights = 0.9 * np.eye(len(words))[list(order)] + 0.1 / len(words)
        return SimpleNamespace(
            text=" ".join(shouted),
            source_words=source,
            words=shouted,
            weights=weights,
            cut=False,
            unsure=any(x in sentence for x in self.unsure),
            mean_log_probability=-1.0 if "worst" in sentence else -0.1,
        )

    def word(self, word):
        return word if re.search(r"[:@/]", word) else word.upper()


class Echo(Shouting):
    """Translates every sentence to itself."""

    def word(self, word):
        return word


def html(text, reverse=False, **options):
    return markup.translate_html(Shouting(reverse), text, **options)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a dog <img src=x>. b", "a dog. b"),
        ("a dog \n <img src=x>! b", "a dog! b"),
        ("a dog <img src=x> b.", "a dog b."),
    ],
)
def test_no_space_is_read_before_a_mark_behind_an_image(text, sentence):
    translator = Shouting()

    translated = markup.translate_html(translator, f"<p>{text}</p>")

    assert translator.sentences[0] == sentence
    expected = text.replace("a dog", "A DOG").replace(" b", " B")
    assert translated == f"<p>{' '.join(expected.split())}</p>"


@pytest.mark.parametrize(("text", "expected", "reverse"), CASES)
def test_tags_enclose_the_words_that_are_aligned(text, expected, reverse):
    assert html(text) == expected
    if reverse is not None:
        assert html(text, reverse=True) == reverse
    assert markup.translate_html(Echo(), text) == text


@pytest.mark.parametrize("tag", ["div", "b"])
def test_deeply_nested_elements_keep_their_text(tag):
    text = f"<{tag}>" * 2000 + "{}" + f"</{tag}>" * 2000
    assert html(text.format("c")) == text.format("C")


@pytest.mark.parametrize(
    "text",
    [
        "<svg>{}",
        "<svg {}",
        "<svg><![CDATA[{}",
        "<!-- a -->{}<p>",
        "<p title='a{}",
        "{{{{ a{}",
        "<li><b>a<p>b{}",
    ],
)
def test_the_time_grows_with_the_size_of_a_page(text):
    # Twice the size takes twice the time, or four times if a step is quadratic.
    times = []
    for count in (2_000, 8_000):
        page = text.format(text.format("") * count)
        start = time.process_time()
        read_html(page)
        times.append(time.process_time() - start)
    assert times[1] < 10 * times[0] + 0.5


def test_a_character_that_unicode_decomposes_is_one_place():
    # U+0958 has no composed form: clean text has two characters in its place.
    assert html("<p>a \u0958</p>") == "<p>A \u0915\u093c</p>"


def test_weights_of_a_name_fall_with_its_distance():
    cues = lexical_cues.lexical_cues(["Anna", "x", "y"], ["z", "w", "Anna"])
    # The last of three words is two words behind the first.
    expected = np.zeros((3, 3))
    expected[2, 0] = np.exp(-0.9 * 2)
    np.testing.assert_allclose(cues.weights, expected)


@pytest.mark.browser
def test_the_page_without_a_server_translates_markup_alike(tmp_path):
    cases = [(text, is_reversed) for text, *_ in CASES for is_reversed in (False, True)]
    names = DOCUMENTS.mutated_files(np.random.default_rng(3), DOCUMENTS.PAGES)
    texts = (encoding.decoded(content, "page")[0] for _, _, content in names)
    mutated = (x for x in texts if not re.search("[\ud800-\udfff]", x))
    cases += [(x, bool(i % 2)) for i, x in enumerate(itertools.islice(mutated, 60))]
    script = """
        import { readFileSync } from "node:fs";
        import { translateHtml } from "SOURCE/markup";
        const words = (text) => text.split(/\\s+/).filter((x) => x);
        const capital = (word) => (/[:@/]/.test(word) ? word : word.toUpperCase());
        const translator = (isReversed) => ({
            maxLength: 40,
            hasSymbols: false,
            tokenCount: (text) => words(text).length + 1,
            async translateSentence(text) {
                const sourceWords = words(text);
                const parts = sourceWords.map((x) => /^([^]*?)([.,!?]*)$/.exec(x));
                const order = parts.map((_, i) => i);
                if (isReversed) order.reverse();
                const found = order.map((i, j) => capital(parts[i][1]) + parts[j][2]);
                const weights = order.map((i) =>
                    parts.map((_, k) => 0.9 * Number(k === i) + 0.1 / parts.length),
                );
                return { text: found.join(" "), sourceWords, words: found, weights };
            },
        });
        const found = [];
        for (const [text, isReversed] of JSON.parse(readFileSync(0, "utf8"))) {
            const model = translator(isReversed);
            found.push((await translateHtml(model, text, { language: "de" })).text);
        }
        console.log(JSON.stringify(found));
    """
    written = run_typescript(script, cases, tmp_path)
    for (text, is_reversed), page in zip(cases, written, strict=True):
        assert page == html(text, is_reversed, language="de")


@pytest.mark.browser
def test_the_page_without_a_server_knows_the_function_words():
    source = SOURCE / "src" / "library" / "formats" / "function_words.json"
    words = json.loads(source.read_text("utf-8"))
    pairs = {tuple(x) for x in words["pairs"]}
    assert pairs | {(y, x) for x, y in pairs} == lexical_cues.function_word_pairs()
    assert words["unpaired"] == lexical_cues.UNPAIRED.split()


class Scripted(Shouting):
    """Translates every sentence to the same words, with the same attention."""

    def __init__(self, words, weights, lexicon):
        super().__init__()
        self._result = {"words": words.split(), "weights": np.array(weights)}
        self.lexicon = lexicon and Lexicon(lexicon)

    def _one(self, sentence):
        text, source = " ".join(self._result["words"]), sentence.split()
        return SimpleNamespace(
            text=text, source_words=source, cut=False, **self._result
        )


def test_the_lexicon_is_evidence_of_an_alignment():
    lexicon = {"dog": (1, ["hund"]), "cat": (1, ["katze"])}
    weights = np.full((3, 3), 0.3)
    for source, expected in (
        (lexicon, "Katze jagt <b>Hund</b>"),
        (None, "<b>Katze</b> jagt Hund"),
    ):
        translator = Scripted("Katze jagt Hund", weights, source)
        assert markup.translate_html(translator, "<b>dog</b> chases cat") == expected


def test_function_words_that_translate_no_word_of_a_tag_are_outside():
    # Both "von" and "Hunden" attend to "dogs".
    weights = np.eye(3)[[0, 1, 2, 2]] * 0.7 + 0.1
    lexicon = {"dogs": (1, ["hunden"])}
    translator = Scripted("Ein Bild von Hunden", weights, lexicon)
    translated = markup.translate_html(translator, "a picture <b>dogs</b>")
    assert translated == "Ein Bild von <b>Hunden</b>"


def test_sentences_do_not_run_into_each_other():
    translator = Shouting()
    text = (
        "<p>a b<br>C d | e</p><p>f<br>g <data>h</data> <!-- x -->i</p>"
        "<p>Dear Sir,<br><br>j</p><nav><a>K l</a> <a>M</a></nav>"
        '<p>n <img alt="o p"> q</p>'
    )
    markup.translate_html(translator, text)
    expected = [
        "a b",
        "C d",
        "e",
        "f g h i",
        "Dear Sir%",
        "j",
        "K l",
        "M",
        "o p",
        "n q",
    ]
    assert sorted(translator.sentences) == sorted(x.replace("%", ",") for x in expected)


def test_units_whose_text_does_not_survive_are_hidden_from_the_translator():
    class Forgetful(Shouting):
        def word(self, word):
            return "500" if word == "5" else super().word(word)

    translator = Forgetful()
    translated = markup.translate_html(translator, "<p>it costs <b>5</b> today</p>")
    assert translated == "<p>IT COSTS <b>5</b> TODAY</p>"
    assert translator.sentences == ["it costs 5 today", "it costs today"]


def test_placeholders_stand_for_units_in_models_with_symbols():
    translator = Shouting(reverse=True)
    translator.has_symbols = True
    text = "<p>call <code>a</code> or {{ b }} c</p>"
    translated = markup.translate_html(translator, text)
    assert translator.sentences == ["call {0} or {1} c"]
    assert translated == "<p>C {{ b }} OR <code>a</code> CALL</p>"


def test_function_words_are_aligned_though_attention_passes_over_them():
    class Passing(Shouting):
        def _one(self, sentence):
            words = ["Eine", "Gruppe", "von", "Hunden"]
            source = sentence.split()
            # "von" attends to "dogs", as "Hunden" does.
            weights = np.eye(4)[[0, 1, 3, 3]] * 0.9 + 0.02
            return SimpleNamespace(
                text=" ".join(words),
                source_words=source,
                words=words,
                weights=weights,
                cut=False,
            )

    translated = markup.translate_html(Passing(), "a group <b>of</b> dogs")
    assert translated == "Eine Gruppe <b>von</b> Hunden"


XHTML = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html [<!ENTITY x "y">]>
<?style a > b?>
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en"><head><title/>
<script src="a.js"/></head><body><p>a dog<br/>&x; &#169; b</p><p/>
<p><![CDATA[a < b]]></p><hr/></body></html>
"""


def test_xhtml_stays_well_formed():
    actual = html(XHTML)
    xml.dom.minidom.parseString(actual.encode())
    changed = {"a dog": "A DOG", " b</p>": " B</p>", "[a < b]": "[A < B]"}
    expected = XHTML
    for before, after in changed.items():
        expected = expected.replace(before, after)
    assert actual == expected
    # It is HTML if it is not well-formed.
    assert html("<html xmlns='x'><p>a<hr>b") == "<html xmlns='x'><p>A<hr>B"
    assert html("<?xml?><title/><p>a<b>") == "<?xml?><title/><p>a<b>"


def test_character_data_cannot_end_early():
    class Closing(Shouting):
        def word(self, word):
            return "]]>"

    translated = markup.translate_html(Closing(), XHTML)
    assert "<![CDATA[]]]]><![CDATA[> ]]]]><![CDATA[> ]]]]><![CDATA[>]]>" in translated
    xml.dom.minidom.parseString(translated.encode())


def test_a_page_keeps_all_but_its_language_and_text():
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<title>My page</title><style>p { color: red }</style></head>"
        '<body class="x"><h1 id="top">A <i lang=en-GB>head</i> <q lang=fr>x</q></h1>'
    )
    actual = html(page, language="de")
    expected = page.replace('lang="en"', 'lang="de"').replace("=en-GB", "=de")
    for word in ("My page", "A <", "head<", "x</q"):
        expected = expected.replace(word, word.upper().replace("/Q", "/q"))
    assert actual == expected
    assert html(page).replace('"en"', '"de"').replace("en-GB", "de") == expected
    assert html("<html><p>a", language="de") == '<html lang="de"><p>A'


def test_sentences_are_split_and_long_ones_divided():
    translator = Shouting()
    long = " ".join(f"w{i}" for i in range(100))
    translated = markup.translate_html(translator, f"<p>One two. Three {long}.</p>")

    assert translated == f"<p>One two. Three {long}.</p>".upper().replace("P>", "p>")
    assert "One two." in translator.sentences
    assert all(len(x.split()) < translator.max_length for x in translator.sentences)
    assert len(translator.sentences) == 1 + 4


def test_models_without_attention_keep_the_order():
    class Blind(Shouting):
        def _one(self, sentence):
            result = super()._one(sentence)
            result.weights[:] = 0
            return result

    assert markup.translate_html(Blind(), "a <b>b</b> c") == "A <b>B</b> C"


def test_unsure_runs_are_listed_and_marked():
    text = '<p>a b</p>\n<p id=x>c <b>worst</b> d</p>\n<img alt="b e">'
    translator = Shouting(unsure=["b"])
    translated = markup.translate_file(translator, text, "html", marks_unsure=True)
    reason = "unsure of the translation"
    assert translated.text == (
        f'<p data-unsure="{reason}">A B</p>\n<p id=x>C <b>WORST</b> D</p>\n'
        f'<img data-unsure="{reason}" alt="B E">'
    )
    assert [(x.place, x.text) for x in translated.doubts] == [
        ("line 1", "a b"),
        ("line 3", "b e"),
    ]
    filtered = markup.translate_file(Shouting(), text, "html", min_score=-0.5)
    assert filtered.text == text.replace("a b", "A B").replace("b e", "B E")
    assert filtered.doubts[0].reason == "mean log-probability below -0.5"


def srt(*texts, gap=0.1):
    """Return subtitles of two seconds with a gap between them."""
    lines = []
    for i, text in enumerate(texts):
        begin = i * (2 + gap)
        times = f"00:00:{begin:06.3f} --> 00:00:{begin + 2:06.3f}".replace(".", ",")
        lines.append(f"{i + 1}\n{times}\n{text}\n")
    return "\n".join(lines)


SUBTITLES = """1
00:00:01,000 --> 00:00:02,000
This is <i>the first</i> part of a sentence
that goes

2
00:00:02,000 --> 00:00:04,500 align:start
{\\an8}on here.

NOTE a b

3
00:01.000 --> 00:02.000
- One two.
- <b>Three</b> four?
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_subtitles_keep_all_but_their_text(newline):
    text = SUBTITLES.replace("\n", newline)
    translator = Shouting()
    actual = markup.translate_subtitles(translator, text).replace(newline, "\n")

    assert sorted(translator.sentences) == [
        "One two.",
        "This is the first part of a sentence that goes on here.",
        "Three four?",
    ]
    expected = SUBTITLES
    for line in (
        "This is <i>the first</i> part of a sentence\nthat goes",
        "on here.",
        "One two.",
        "<b>Three</b> four?",
    ):
        shouted = re.sub("<.*?>", lambda x: x[0].lower(), line.upper())
        expected = expected.replace(line, shouted)
    even = "THIS IS <i>THE FIRST</i> PART\nOF A SENTENCE THAT GOES"
    before = "THIS IS <i>THE FIRST</i> PART OF A SENTENCE\nTHAT GOES"
    assert actual == expected.replace(before, even)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("one two", ["one two"]),
        ("x" * 50, ["x" * 50]),
        ("one two " * 2 + "\nthree", ["one two one two three"]),
        ("abcd " * 8 + "\nabcd abcd", [" ".join(["abcd"] * 5)] * 2),
        # As many lines as the source, and as long.
        ("abcd " * 8 + "\n" + "abcd " * 8 + "\nabcd abcd", ["abcd " * 5 + "abcd"] * 3),
        ("abcd " * 9 + "abcd", [" ".join(["abcd"] * 10)]),
        # A line break between two sentences stays.
        ("one two.\nThree four.", ["one two.", "three four."]),
    ],
)
def test_lines_are_even(words, expected):
    text = f"00:01.000 --> 00:02.000\n{words}\n"
    actual = markup.translate_subtitles(Shouting(), text)
    assert actual.lower().splitlines()[1:] == expected


@pytest.mark.parametrize(
    ("first", "second", "is_joined"),
    [
        ("The dog", "runs home.", True),
        ("Good morning", "I am tired", False),
        ("I saw the", "Queen.", True),
        ("Stop!", "he said", False),
        ("[DOOR CLOSES]", "and goes", False),
        ("MY HOUSE", "is big", False),
        ("It was 5", "or more", False),
        ("and then", "2 men came", False),
        ("\u266a la la", "la la", False),
        ("the dog", "- and you?", False),
        ("the dog", "TOM: and you?", False),
        ("the dog", "<v Tom>and you?", False),
    ],
)
def test_cues_are_joined_if_the_sentence_goes_on(first, second, is_joined):
    translator = Shouting(reverse=True)
    translated = markup.translate_subtitles(translator, srt(first, second))
    assert any("\n" not in x and len(x) > len(first) for x in translator.sentences) or (
        not is_joined
    )
    joined = " ".join((first, second))
    assert (joined in translator.sentences) == is_joined
    # No cue becomes empty, and those that are far from each other are separate.
    assert all(x.split("\n")[2].strip() for x in translated.strip().split("\n\n"))
    assert translated.count("-->") == 2
    apart = Shouting()
    markup.translate_subtitles(apart, srt(first, second, gap=2.5))
    assert joined not in apart.sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TOM: I am", "TOM: I AM"),
        (">> I am", ">> I AM"),
        ("-I am\n-you", "-I AM\n-YOU"),
        ("[a door]\nI am", "[A DOOR]\nI AM"),
        ("I am (laughs) \u266a la \u266a", "I AM (LAUGHS) \u266a LA \u266a"),
        ("I am.\\NHe is\\Nbig", "I AM.\\NHE IS\\NBIG"),
        ("a < b and c > d", "A < B AND C > D"),
        ("a\n\nb", "A\n\nB"),
        ("<font color=red>a</font> <i>b", "<font color=red>A</font> <i>B"),
        ("12", "12"),
        ("", ""),
    ],
)
def test_kinds_of_subtitles(text, expected):
    source = srt(text, "z.")
    actual = markup.translate_subtitles(Shouting(), source)
    assert actual == srt(expected, "Z.")
    assert markup.translate_subtitles(Echo(), source) == source
    # Players need no blank line.
    if text and "\n\n" not in text:
        dense = source.replace("\n\n", "\n")
        actual = markup.translate_subtitles(Shouting(), dense)
        assert actual == srt(expected, "Z.").replace("\n\n", "\n")


def test_sounds_that_are_unsure_stay():
    source = srt("[a door] b")
    translated = markup.translate_subtitles(Shouting(unsure=["door"]), source)
    assert translated == source.replace("] b", "] B")


VTT = """WEBVTT - a title

STYLE
::cue { color: red }

NOTE a note
of two lines

intro
00:01.000 --> 00:03.000 line:0
<v Mary>the dog &amp; runs.</v>
<v Tom>where <00:02.000>is it?</v>

NOTE b

00:04.000 --> 00:05.000
c
"""


def test_webvtt_keeps_voices_notes_and_references():
    actual = markup.translate_subtitles(Shouting(), VTT)
    expected = VTT.replace("the dog &amp; runs", "THE DOG &amp; RUNS")
    expected = expected.replace("where <00:02.000>is it", "WHERE <00:02.000>IS IT")
    assert actual == expected[:-2] + "C\n"


ASS = """[Script Info]
Title: a title

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Comment: 0,0:00:00.00,0:00:01.00,Default,,0,0,0,,a b
Dialogue: 0,0:00:01.00,0:00:02.00,Default,Ann,0,0,0,,{\\an8}a {\\i1}red{\\i0} dog,\\Nbig
"""


def test_substation_keeps_all_but_its_dialogue():
    translated = markup.translate_subtitles(Shouting(), ASS)
    assert translated == ASS.replace(
        "a {\\i1}red{\\i0} dog,\\Nbig", "A {\\i1}RED{\\i0} DOG,\\NBIG"
    )


@pytest.mark.parametrize("source", [SUBTITLES, VTT, ASS])
def test_subtitles_are_converted(source):
    source_format = subtitles.format_of(source)
    for kind in ("srt", "vtt", "ass"):
        translated = markup.translate_file(Echo(), source, kind).text
        assert subtitles.format_of(translated) == kind
        assert translated.count("-->" if kind != "ass" else "Dialogue:") == (
            3 if source_format == "srt" else 2 if source_format == "vtt" else 1
        )
        assert (translated == source) == (kind == source_format)
        assert "NOTE" not in translated or kind == source_format
    vtt = markup.translate_file(Echo(), srt("a & b < c <b>d</b> {\\an8}"), "vtt").text
    assert vtt.splitlines()[4].strip() == "a &amp; b &lt; c <b>d</b>"
    assert vtt.splitlines()[3] == "00:00:00.000 --> 00:00:02.000"


def test_a_file_without_subtitles_is_an_error():
    with pytest.raises(UserError, match="expected subtitles"):
        markup.translate_subtitles(Shouting(), "Two dogs.\nA man.\n")


def test_doubts_name_the_subtitle():
    translated = markup.translate_file(
        Shouting(unsure=["b"]), srt("a.", "b.", gap=60), "srt"
    )
    assert [x.place for x in translated.doubts] == ["subtitle 2 (00:00:62)"] or [
        x.place for x in translated.doubts
    ] == ["subtitle 2 (00:01:02)"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# A *red* dog", "# A *RED* DOG"),
        ("> one **two\n> three** four", "> ONE **TWO THREE** FOUR"),
        ("- a b\n  c\n- [ ] d\n\n1. e\n", "- A B C\n- [ ] D\n\n1. E\n"),
        ("| a | b |\n|---|---|\n| c \\| d | `e` |", None),
        ("a `b` <b>c</b> \\* d &amp; e", "A `b` <b>C</b> \\* D &amp; E"),
        ("see <http://a.b> [c][r].\n\n[r]: u", "SEE <http://a.b> [C][r].\n\n[r]: u"),
        ('![a *b*](u) [c](u "t")', '![A *B*](u) [C](u "t")'),
        ("a b  \nc", "A B  \nC"),
        ("```\na b\n```\n\n    c d\n", "```\na b\n```\n\n    c d\n"),
        ("---\ntitle: a\n---\n\n$$a^b$$", "---\ntitle: a\n---\n\n$$a^b$$"),
        ('<p id="a">b <i>c</i></p>', '<p id="a">B <i>C</i></p>'),
        ("snake_case", "SNAKE_CASE"),
        ("\u4e00 \U0001f600 *a* b", "\u4e00 \U0001f600 *A* B"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_kinds_of_markdown(text, expected, newline):
    if expected is None:
        expected = re.sub(r"\b[acd]\b|(?<= )b\b", lambda x: x[0].upper(), text)
    text, expected = (x.replace("\n", newline) for x in (text, expected))
    assert markup.translate_file(Shouting(), text, "markdown").text == expected
    assert markup.translate_file(Echo(), text, "markdown").text == text


def test_translations_are_no_markup_in_markdown():
    class Marking(Shouting):
        word = staticmethod({"one": "1.", "a": "*a", "b": "<b>", "c": "#"}.get)

    def translated(text):
        return markup.translate_file(Marking(), text, "markdown").text

    assert translated("one a b") == "1\\. \\*a \\<b\\>"
    assert translated("c a\n\nb") == "\\# \\*a\n\n\\<b\\>"


PO = """msgid ""
msgstr ""
"Language: \\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

#. a comment
#: a.c:1
#, python-format
msgid "a dog %s"
msgstr ""

#~ msgid "old"
#~ msgstr "alt"

msgctxt "menu"
msgid ""
"one <b>two</b> & \\"three\\"\\n"
msgstr ""
#, fuzzy
msgid "a"
msgid_plural "b"
msgstr[0] ""
msgstr[1] ""

msgid "done"
msgstr "fertig"

msgid "&Open"
msgstr ""
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_messages_get_the_translations_that_they_lack(newline):
    expected = PO.replace('e: \\n"', 'e: de\\n"')
    for before, after in (
        ('dog %s"\nmsgstr ""', 'dog %s"\nmsgstr "A DOG %s"'),
        ('\\n"\nmsgstr ""\n#,', '\\n"\nmsgstr "ONE <b>TWO</b> & \\"THREE\\"\\n"\n#,'),
        ('[0] ""', '[0] "A"'),
        ('[1] ""', '[1] "B"'),
        ('Open"\nmsgstr ""', 'Open"\nmsgstr "&OPEN"'),
    ):
        assert before in expected
        expected = expected.replace(before, after)

    class Formatting(Shouting):
        def word(self, word):
            return word if word == "%s" else super().word(word)

    source = PO.replace("\n", newline)
    actual = markup.translate_file(Formatting(), source, "po", language="de")
    assert actual.text.replace(newline, "\n") == expected
    again = markup.translate_file(Formatting(), actual.text, "po", language="de")
    assert again.text == actual.text and again.runs == 0


def test_unsure_messages_are_fuzzy():
    translator = Shouting(unsure=["one"])
    translated = markup.translate_file(translator, PO, "po")
    # The toy translator changes "%s".
    assert "#, fuzzy, python-format" in translated.text
    assert '#, fuzzy\nmsgctxt "menu"' in translated.text
    assert translated.text.count("fuzzy") == 3
    assert [x.place for x in translated.doubts] == ["line 15"]
    three = PO.replace("nplurals=2", "nplurals=3").replace(
        'msgstr[1] ""', 'msgstr[1] ""\nmsgstr[2] ""'
    )
    three = three.replace('#, fuzzy\nmsgid "a"', 'msgid "a"')
    translated = markup.translate_file(Shouting(), three, "po")
    assert '#, fuzzy\nmsgid "a"\nmsgid_plural' in translated.text


@pytest.mark.parametrize("text", ["", "no messages", 'msgid "a'])
def test_a_file_without_messages_is_an_error(text):
    with pytest.raises(UserError, match=r"\.po file"):
        markup.translate_file(Shouting(), text, "po")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("<p>\u00e4".encode(), ("<p>\u00e4", "utf-8")),
        (codecs.BOM_UTF8 + b"a", ("\ufeffa", "utf-8")),
        ("\u00e4".encode("utf-16"), ("\ufeff\u00e4", "utf-16-le")),
        (codecs.BOM_UTF16_BE + "\u00e4".encode("utf-16-be"), (None, "utf-16-be")),
        (b"<meta charset='iso-8859-2'>\xb1", (None, "iso8859-2")),
        (b"<?xml version='1.0' encoding='iso-8859-2'?>\xb1", (None, "iso8859-2")),
        (b"<meta charset=iso-8859-1>\x84", ("<meta charset=iso-8859-1>\u201e", None)),
        (b"<meta charset=nonsense>\xe4", (None, "windows-1252")),
        (b"<meta charset=idna>\xe4", (None, "windows-1252")),
        (b"\xe4\x81", ("\u00e4\udc81", "windows-1252")),
        # UTF-8 with a damaged character.
        ("\u00e4\u00f6\u00fc\u00e9".encode() + b"\xff", (None, "utf-8")),
    ],
)
def test_encodings_are_kept(data, expected):
    text, name = encoding.decoded(data, "file")
    assert expected[0] in (None, text)
    assert expected[1] in (None, name)
    assert encoding.encoded(text, name) == data
    other = encoding.encoded(text + "\u4e00", name, references=True)
    assert other.decode(name, "surrogateescape")[len(text) :] in ("\u4e00", "&#19968;")
    if not name.startswith("utf") and "\udc81" not in text:
        assert encoding.encoded("\u4e00\u00e4", name).decode() == "\u4e00\u00e4"


def test_a_wrong_byte_order_mark_is_an_error():
    with pytest.raises(UserError, match="byte order mark of UTF-16"):
        encoding.decoded(codecs.BOM_UTF16_LE + b"a", "file")


def test_the_command_translates_a_page(model_folder, tmp_path, capsys):
    page, out = tmp_path / "page.html", tmp_path / "out.html"
    page.write_text("<p>the <b>red</b> dog</p>", encoding="utf-8")
    model = ["--model", str(model_folder)]
    arguments = ["translate", "--format", "html", str(page), *model]
    assert main([*arguments, "--output", str(out)]) == 0
    for file in (out, page):
        assert file.read_text(encoding="utf-8") == "<p>the <b>red</b> dog</p>"

    for extra, message in (
        (["--output", str(page)], "page.html"),
        (["--n-best", "2"], "Received: --n-best"),
        (["--no-split-sentences"], "Received: --no-split-sentences"),
        (["--engine", "ray"], "Received: html"),
    ):
        assert main([*arguments, *extra]) == 2
        assert message in capsys.readouterr().err
    assert main([*arguments[:4], str(page), *model]) == 2
    assert "takes one file. Received: 2" in capsys.readouterr().err
    subtitles = tmp_path / "a.srt"
    subtitles.write_text("1\n00:00:01,000 --> 00:00:02,000\nthe dog\n")
    assert main(["translate", "--format", "srt", str(subtitles), *model]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["1", "00:00:01,000 --> 00:00:02,000"] and len(lines) >= 3
    assert main(["translate", "--format", "vtt", str(subtitles), *model]) == 0
    assert capsys.readouterr().out.startswith("WEBVTT\n")
    assert main(["translate", "--format", "srt", str(page), *model]) == 2
    assert "expected subtitles" in capsys.readouterr().err


def test_an_interrupted_command_leaves_the_old_output(
    model_folder, tmp_path, monkeypatch
):
    page, out = tmp_path / "page.html", tmp_path / "out.html"
    page.write_text("<p>the dog</p>")
    out.write_text("old")

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(markup, "translate_runs", interrupted)
    options = ["--model", str(model_folder), "--output", str(out)]
    assert main(["translate", "--format", "html", str(page), *options]) == 130
    assert out.read_text() == "old"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["out.html", "page.html"]


def test_improbable_sentences_stay_with_min_score(model_folder, tmp_path, capsys):
    page = tmp_path / "page.html"
    page.write_text("<p>the dog</p>")
    arguments = ["translate", "--format", "html", str(page), "--min-score=-0.001"]
    assert main([*arguments, "--model", str(model_folder)]) == 0
    captured = capsys.readouterr()
    reason = "mean log-probability below -0.001"
    assert captured.out == f'<p data-unsure="{reason}">the dog</p>'
    assert f"page.html, line 1: {reason}: the dog" in captured.err
    assert "1 of 1 text" in captured.err


def test_an_interrupted_command_leaves_the_older_output(
    model_folder, tmp_path, monkeypatch, capsys
):
    page, out = tmp_path / "page.html", tmp_path / "out.html"
    # Sentences of several batches.
    page.write_text("".join(f"<p>the dog {i}" for i in range(200)), encoding="utf-8")
    out.write_text("older", encoding="utf-8")
    counts = []

    def report(bar):
        counts.append((bar.n, bar.total))
        if len(counts) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("tqdm.std.tqdm.refresh", report)
    command = ["translate", "--format", "html", str(page), "--output", str(out)]
    assert main([*command, "--model", str(model_folder)]) == 130
    assert counts[-1][0] < counts[-1][1] == 200
    assert "interrupted" in capsys.readouterr().err
    assert out.read_text("utf-8") == "older"
    assert sorted(tmp_path.iterdir()) == sorted([out, page])


def test_the_commands_of_the_manual_run(model_folder, tmp_path, monkeypatch):
    text = (DOCS / "markup.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    files = re.findall(r"^`(\S+)`:\n\n```\w*\n(.*?)```", text, re.M | re.S)
    for name, content in files:
        (tmp_path / name).write_text(content, encoding="utf-8")
    commands = re.findall(r"^nmt (.*)$", text, re.M)
    assert len(commands) >= 3
    for command in commands:
        assert main([*command.split(), "--model", str(model_folder)]) == 0
    assert (tmp_path / "seite.html").exists() and (tmp_path / "film.de.srt").exists()


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_html, "<!-- a -->" * 60 + "<p>a dog</p>"),
        (read_html, "<p>" + "<svg>" * 20_000),
        (subtitles.read, "1\n00:00:01,000 --> 00:00:02,000\na" + "\n" * 60_000),
        (
            subtitles.read,
            "1\n00:00:01,000 --> 00:00:02,000\n" + "<00:01.500>" * 6000 + "a\n",
        ),
        (
            subtitles.read,
            "1\n00:00:01,000 --> 00:00:02,000\n"
            + "<i>" * 6000
            + "a"
            + "</i>" * 6000
            + "\n",
        ),
    ],
    ids=["comments", "svg", "lines", "times", "tags"],
)
def test_repeated_markup_takes_time_in_proportion_to_its_number(read, text):
    begin = time.process_time()
    list(read(text).runs)
    # The square of the number would be more than 15 s.
    assert time.process_time() - begin < 8
