"""Pages and subtitles whose translation must keep every byte that is not language.

Files are mutated with a seed: tags, lines and references are removed, doubled and
moved; line ends, encodings and byte order marks change. Prints for each kind of file

- how many were translated, and how many were refused with one line,
- of how many the translation equals the file, byte for byte, if every run of language
  is translated to itself,
- and, with a model, in how many all characters outside of runs are the same, every tag
  is there as often as before, and well-formed XML stays well-formed.

    python benchmarks/documents.py --count 300 --seed 1
    python benchmarks/documents.py --count 300 --model tatoeba-multi30k-en-de
    python benchmarks/documents.py --count 300 --folder ~/my-pages

The files are those of this module, or those of a folder: .html, .xhtml, .srt, .vtt and
.ass.
"""

import argparse
import codecs
import collections
import re
import sys
import traceback
import types
from pathlib import Path

import numpy as np

PAGES = {
    "article.html": """<!DOCTYPE html>
<html lang="en-GB">
<head>
  <meta charset="utf-8">
  <title>Two dogs &amp; a cat | The Daily Paw</title>
  <meta name="description" content="A story about two dogs, and a cat that reads.">
  <link rel="stylesheet" href="a.css?x=1&amp;y=2" title="no">
  <style>b > i { content: "a < b" }</style>
  <script>if (a < b && c) { document.write("<p>no</p>"); }</script>
</head>
<body class='main wide' data-x="{&quot;a&quot;: 1}">
<nav aria-label="Main menu"><a href="/">Home</a> <a href="/dogs">All dogs</a>
<a href=/cats>Cats</a></nav>
<!-- a comment --- with <b>tags</b> -->
<main id=top>
<h1>Two dogs play in the snow</h1>
<p>A <b>red</b> dog sees <a href="bird.html" title="An old bird">the <em>old</em>
bird</a>. It runs&nbsp;home &mdash; and sleeps.<br>The cat <code>reads(book)</code>.
<p>Press <kbd>Ctrl</kbd>+<kbd>C</kbd>, then <kbd>Enter</kbd>.<wbr> See
<a href="https://example.com/a?b=1&c=2">https://example.com/a?b=1&c=2</a> or write to
<a href="mailto:dog@example.com">dog@example.com</a>.<sup><a href="#n1">[1]</a></sup>
<figure><img src="a.png" alt="A dog in the snow" width=3><figcaption>Our
dog</figcaption></figure>
<p>It costs <strong>$5.00</strong> (<s>&pound;7</s>) today&hellip; &lt;buy&gt;
<table><caption>Prices</caption><thead><tr><th>Dog<th abbr="Years">Age</thead>
<tr><td>Rex<td>3<tr><td>Big <i>Max</i><td>7</table>
<ul><li>One dog<li>Two <span translate="no">Red Dogs</span> run<ul><li>Three</ul></ul>
<pre>  keep
    this</pre>
<div><div><div><span>A deep text.</span> And more</div></div></div>
<svg viewBox="0 0 1 1"><title>A star</title><text x="1">The star <tspan>shines</tspan>
</text><path d="M0 0L1 1"/></svg>
<p>Where E = <math><mi>m</mi><mo>&InvisibleTimes;</mo><mi>c</mi></math> is small.
</main>
<footer>About us | Contact &middot; Imprint</footer>
</body>
</html>
""",
    "form.html": """<form action=/send method=post>
<fieldset><legend>Your order</legend>
<label for=n>Name</label> <input id=n name=n placeholder="Your name" required>
<label>Dog <select name=d><option value=1 selected>The red dog<option value=2>A cat
</select></label>
<textarea name=t placeholder="Write to us">keep me</textarea>
<p>You agree to <a href=/terms>our terms</a>. <output>12</output> dogs are left.
<button type=submit><b>Send</b> the order</button><button>Cancel</button>
<input type=submit value="Send now"><input type=hidden value="no words">
</fieldset></form>
<noscript><p>Please turn on <i>JavaScript</i>.</p></noscript>
<details><summary>More</summary>Nothing <data value=3>three</data> to
<my-element some-thing>see</my-element> here.</details>
<video controls><source src=a.mp4><track src=a.vtt label="English">Your browser is
old.</video><template><p>A row</p></template>
<p>Dear Sir,<br><br>thank you for your <del>letter</del> <ins>mail</ins>.<br />
Yours<br>Tom</p>
<p>Hello {{ name }}, you have {% if n > 1 %}{{ n }} dogs{% endif %}.
<?php if ($a > 1) echo "<b>"; ?> <% x < y %>
""",
    "chapter.xhtml": """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"
 xml:lang="en" lang="en"><head><title>The dog</title><script src="a.js"/>
<meta charset="utf-8"/></head>
<body><section epub:type="chapter"><h2 id="c1">Chapter 1<br/>The dog</h2>
<p>A dog <i>ran</i> home.<a epub:type="noteref" href="#n">1</a> It was
&#8220;late&#8221;.</p><hr/><p><![CDATA[A cat < a dog & a bird.]]></p><p class="x"/>
<img src="a.png" alt="A house"/><p>The end.</p></section>
<?page break?></body></html>
""",
    "mail.html": """<html><head><meta http-equiv="Content-Type" content="text/html;
charset=windows-1252"></head><body bgcolor=#ffffff><center><table border=0><tr><td>
<font size=2 color=red>Dear customer,</font><br><br>your order has been sent.<br>
It arrives on <b>Monday</b>.<br>- two books<br>- a red bag<br><br>Best wishes
<br>Caf\xe9 Paw</td></tr></table><a href="x"><img src="logo.gif" alt="Our shop"></a>
<p align=center><a href=u>Unsubscribe</a> &bull; <a href=v>View in browser</a></center>
""",
    "drawing.svg.html": """<svg xmlns="http://www.w3.org/2000/svg" width="9"><style>
<![CDATA[ a > b { } ]]></style><desc>A dog and a cat</desc><g><text>The <a href="x">red
dog</a></text><foreignObject><p>Hello</p></foreignObject></g></svg>
""",
}

SUBTITLES = {
    "film.srt": """1
00:00:01,000 --> 00:00:03,000
A <i>red</i> dog sees

2
00:00:03,100 --> 00:00:05,000
the old bird.

3
00:00:08,000 --> 00:00:09,500
- Where is it?
- I don't know.

4
00:00:10,000 --> 00:00:12,000
{\\an8}[DOOR CLOSES]

5
00:00:13,000 --> 00:00:15,000
TOM: I am tired
and I want to go home.

6
00:01:00,000 --> 00:01:02,000
\u266a La la la \u266a

7
00:01:02,500 --> 00:01:03,000
The price < the value and 5 > 4.

8
00:01:04,000 --> 00:01:06,000
I love my dog.\\NHe is big.
""",
    "dense.srt": """1
00:00:01,000 --> 00:00:01,900
A dog runs.
2
00:00:02,000 --> 00:00:02,900 X1:1 X2:2 Y1:3 Y2:4
<font color="#ff0000">A cat sleeps.</font>
3
00:00:03.000-->00:00:03.900
>> Two men sing.
>> Good!
4
00:00:04,000 --> 00:00:05,000

5
00:00:06,000 --> 00:00:08,000
(laughs) And then

the man reads.
""",
    "talk.vtt": """WEBVTT - A talk

STYLE
::cue(b) { color: red }

REGION
id:fred

NOTE This is a note
of two lines.

intro
00:01.000 --> 00:03.000 align:start line:0
<v Mary>The dog runs &amp; the cat</v>
<v Tom>Where is <b>my</b> red book?</v>

00:03.500 --> 00:05.000
is <c.loud>very</c> <00:04.000>tired.

NOTE another

00:00:06.000 --> 00:00:07.000
<i>I said: no</i>

00:00:07.100 --> 00:00:08.000
<i>and you went.</i>
""",
    "song.ass": """[Script Info]
Title: A song
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname, Fontsize
Style: Default,Arial,20

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Comment: 0,0:00:00.00,0:00:01.00,Default,,0,0,0,,no words
Dialogue: 0,0:00:01.00,0:00:02.00,Default,Ann,0,0,0,,{\\i1}A red dog{\\i0},\\Nand cat
Dialogue: 0,0:00:02.10,0:00:03.00,Default,,0,0,0,,that runs home.
""",
}

_PIECES = re.compile(r"(<[^<>]*>|\r?\n|&\w+;|\s+)")
_INSERTED = (
    *("<", ">", "&", "</p>", "</b>", "<b>", "<p>", "<!--", "-->", "]]>", "<br/>"),
    *("<x:y z>", "<b " * 50, "<div>" * 300, "</body>", "<svg><b>", "&#0;", "&#xd800;"),
    *("<![CDATA[", "<title>", "<script>", "<textarea>", "\0", "\x01", "\ufeff", "\xad"),
    *(
        "\u2028",
        "\x85",
        "\r",
        "{{",
        "}}",
        "<?",
        "|",
        "--> ",
        "00:00:01,000 --> ",
        "1\n",
    ),
    *(
        "<pre>",
        "<select>",
        "</select>",
        "<td>",
        "\u4e00\u4e8c\u3002",
        "\ud83d",
        "e\u0301",
    ),
    *("NOTE ", "\n\n", "- ", "[", "\\N", "{\\i1}", "WEBVTT", "</v>", "<v Ann>", "\t"),
    *("<p translate=no>", "<i class=notranslate>", "<![CDATA[x]]>", "<a title='b c>"),
)
_ENCODINGS = ("utf-8",) * 6 + ("utf-8-sig", "utf-16", "utf-16-be", "windows-1252")


def mutated(random, text, times):
    """Return a text after some mutations, and a description of the last one."""
    how, piece = "none", ""
    for _ in range(times):
        pieces = _PIECES.split(text)
        index = int(random.integers(len(pieces)))
        how = ("without", "twice", "moved", "inserted", "cut", "joined")[
            int(random.integers(6))
        ]
        piece = pieces[index]
        if how in ("without", "moved"):
            pieces[index] = ""
        if how in ("twice", "moved"):
            pieces.insert(int(random.integers(len(pieces))), piece)
        if how == "inserted":
            piece = _INSERTED[int(random.integers(len(_INSERTED)))]
            pieces.insert(index, piece)
        if how == "cut":
            middle = int(random.integers(len(piece) + 1))
            pieces[index] = piece[:middle]
        if how == "joined":
            pieces[index : index + 2] = ["".join(pieces[index : index + 2]).strip()]
        text = "".join(pieces)
    return text, f"{how} {piece[:20]!r}"


def mutated_files(random, files):
    """Yield names and contents of mutated files, without end."""
    names = sorted(files)
    while True:
        name = names[int(random.integers(len(names)))]
        text, how = mutated(random, files[name], int(random.integers(0, 5)))
        newline = ("\n", "\n", "\r\n", "\r")[int(random.integers(4))]
        text = text.replace("\r\n", "\n").replace("\n", newline)
        encoding = _ENCODINGS[int(random.integers(len(_ENCODINGS)))]
        if encoding == "utf-16-be":
            content = codecs.BOM_UTF16_BE + text.encode(encoding, "surrogatepass")
        else:
            errors = "replace" if encoding == "windows-1252" else "surrogatepass"
            content = text.encode(encoding, errors)
        if random.random() < 0.1:
            position = int(random.integers(len(content) + 1))
            if not encoding.startswith("utf-16"):
                content = content[:position] + b"\xff\xc3" + content[position:]
        yield f"{name}, {encoding}, {how}", name, content


# Beginnings of files, pieces that files repeat, and their length in characters.
HEADS = {
    "html": "<p>",
    "srt": "1\n00:00:01,000 --> 00:00:02,000\n",
    "vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n",
    "ass": "[Events]\nFormat: Start, End, Text\nDialogue: 0:00:01.00,0:00:02.00,",
    "markdown": "# A\n",
    "po": 'msgid "a"\nmsgstr ""\n\n',
}
PIECES = (
    *(
        "a ",
        "a. ",
        "a.",
        "a\n",
        "\n",
        "\n\n",
        "- a\n",
        "A: ",
        "1 2 3. ",
        "a.b-",
        "\u00e9",
    ),
    *(
        "<b>",
        "</b>",
        "<b>a</b> ",
        "<i></i>",
        "<p>a",
        "<div>",
        "<svg>",
        "<math>",
        "<br>",
    ),
    *(
        "<td>a",
        "<table>",
        "<li>",
        "<script>",
        "<template>",
        "<a href='",
        "<a b=c ",
        "<",
    ),
    *(
        "<!--",
        "<!-- a -->",
        "<![CDATA[",
        "<svg><![CDATA[a]]></svg>",
        "<?php ",
        "<%",
        "&",
    ),
    *(
        "&amp;",
        "&#1",
        "{{",
        "{{a}} ",
        "{\\b1}",
        "{\\i0}",
        "\\N",
        "<v A>",
        "<00:01.500>",
    ),
    *(
        "*",
        "**",
        "_",
        "[",
        "[a](",
        "[a](b) ",
        "![",
        "`",
        "```\n",
        "> ",
        "|a|",
        "$",
        "~~",
    ),
    *(
        'msgid "a"\nmsgstr ""\n\n',
        "# a\n",
        '"\n"',
        "( ",
        "[a] ",
        "\u266a",
        "--> ",
        "1\n",
    ),
    "00:00:01,000 --> 00:00:02,000\na\n\n",
)
REPEATED = 20_000


def kind_of(name):
    suffix = Path(name).suffix.lower().lstrip(".")
    return suffix if suffix in ("srt", "vtt", "ass") else "html"


def runs_of(text, kind):
    """Return the runs of a text."""
    from keras_attention_apps.nmt.formats import html, subtitles

    document = html.read(text) if kind == "html" else subtitles.read(text)
    return document.runs


def own_format(text, kind):
    """Return the format in which a mutated file is read."""
    from keras_attention_apps.nmt.formats import subtitles

    return kind if kind == "html" else subtitles.format_of(text)


class Echo:
    """Translates every sentence to itself, or its words in another order.

    With a seed, the words are in any order, and the alignment is random.
    """

    max_length = 40

    def __init__(self, seed=None):
        self.random = None if seed is None else np.random.default_rng(seed)

    def token_count(self, text):
        return len(text.split()) + 1

    def translate(self, sentences, *, split):
        return [self._one(sentence) for sentence in sentences]

    def _one(self, sentence):
        words = shuffled = sentence.split()
        weights = np.eye(len(words))
        if self.random is not None:
            shuffled = [words[i] for i in self.random.permutation(len(words))]
            weights = self.random.dirichlet([0.1] * len(words), len(words))
        result = types.SimpleNamespace(text=" ".join(shuffled), words=shuffled)
        result.source_words, result.weights = words, weights
        result.cut, result.unsure, result.mean_log_probability = False, False, 0.0
        return result


class Remembering:
    """A model that translates every sentence once, since mutated files repeat them."""

    def __init__(self, model):
        self._model, self._translations = model, {}
        self.token_count, self.max_length = model.token_count, model.max_length

    def translate(self, sentences, *, split):
        missing = [x for x in dict.fromkeys(sentences) if x not in self._translations]
        if missing:
            translations = self._model.translate(missing, split=split)
            self._translations.update(zip(missing, translations, strict=True))
        return [self._translations[x] for x in sentences]


def is_identical(content, kind):
    """Return whether a file whose runs are translated to themselves stays as it is."""
    from keras_attention_apps.common.encoding import decoded, encoded
    from keras_attention_apps.nmt import markup

    text, encoding = decoded(content, "file")
    kind = own_format(text, kind)
    translated = markup.translate_file(Echo(), text, kind).text
    return encoded(translated, encoding, references=kind == "html") == content


def failures(content, kind, translator):
    """Return which properties the translation of a file does not have."""
    from keras_attention_apps.common.encoding import decoded, encoded
    from keras_attention_apps.common.html_tokens import is_xml
    from keras_attention_apps.nmt import markup

    text, encoding = decoded(content, "file")
    kind = own_format(text, kind)
    translated = markup.translate_file(translator, text, kind).text
    encoded(translated, encoding, references=kind == "html")
    wrong = []
    if not _keeps_the_rest(text, translated, kind):
        wrong.append("characters outside of runs")
    if _tags(text, kind) != _tags(translated, kind):
        wrong.append("tags")
    if kind == "html" and is_xml(text) and not is_xml(translated):
        wrong.append("well-formed XML")
    return wrong


def _keeps_the_rest(text, translated, kind):
    """Return whether a translation has the stretches between the runs, in order."""
    position, end = 0, 0
    for run in sorted(runs_of(text, kind), key=lambda x: (x.start, -x.end)):
        if run.start < end:
            # It is inside of a unit.
            continue
        stretch = text[end : run.start]
        begin = translated.find(stretch, position) if end else 0
        if begin < 0 or translated[begin : begin + len(stretch)] != stretch:
            return False
        position, end = begin + len(stretch), run.end
    return translated.endswith(text[end:])


def _tags(text, kind):
    """Return how often each tag is in a text.

    Of a tag whose attributes may be translated, only their names count.
    """
    from keras_attention_apps.common.html_tokens import tokens_of
    from keras_attention_apps.nmt.formats import subtitles

    if kind != "html":
        times = (x[0] for x in map(subtitles.TIMES.match, text.splitlines()) if x)
        return collections.Counter(
            [*(x[0] for x in subtitles.TAG.finditer(text)), *times]
        )
    tags = []
    for token in tokens_of(text):
        if token.kind in ("open", "close"):
            source = text[token.start : token.end]
            tags.append((token.kind, token.name, _names(source)))
    return collections.Counter(tags)


def _names(tag):
    values = r"=\s*(?:\"[^\"]*\"|'[^']*'|[^\s>]*)"
    return tuple(sorted(re.sub(values, "", tag).lower().strip("</> ").split()))


def _files(folder):
    """Return the texts of the pages and of the subtitles of a folder."""
    texts = ({}, {})
    for path in sorted(Path(folder).rglob("*")):
        suffix = path.suffix.lower()
        is_page = suffix in (".html", ".htm", ".xhtml")
        if path.is_file() and (is_page or suffix in (".srt", ".vtt", ".ass")):
            text = path.read_text("utf-8", "surrogateescape")
            texts[not is_page][str(path)] = text
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    text = "Number of pages, and of subtitles."
    parser.add_argument("--count", type=int, default=300, help=text)
    parser.add_argument("--seed", type=int, default=1, help="Seed of the mutations.")
    text = "Preset, folder or LiteRT file; by default, words are shuffled."
    parser.add_argument("--model", help=text)
    text = "Folder of pages and subtitles that are mutated in place of our own."
    parser.add_argument("--folder", type=Path, help=text)
    documents(**vars(parser.parse_args()))


def documents(count, seed, model, folder):
    """Print how many mutated files keep what is not language."""
    from keras_attention_apps.common.errors import UserError

    translator = None
    if model:
        from keras_attention_apps.nmt import LiteTranslator

        translator = Remembering(LiteTranslator.from_preset(model))
    groups = _files(folder) if folder else (PAGES, SUBTITLES)
    print("| files | translated | refused | identical | kept with a model |")
    print("|---|---:|---:|---:|---:|")
    for group, files in zip(("pages", "subtitles"), groups, strict=True):
        if not files:
            continue
        random = np.random.default_rng(seed)
        counts = collections.Counter()
        names = mutated_files(random, files)
        for number in range(count):
            how, name, content = next(names)
            try:
                identical = is_identical(content, kind_of(name))
                wrong = failures(content, kind_of(name), translator or Echo(number))
            except UserError:
                counts["refused"] += 1
                continue
            except Exception:
                traceback.print_exc()
                wrong, identical = ["traceback"], False
            counts["translated"] += 1
            counts["identical"] += identical
            counts["kept"] += not wrong
            if wrong or not identical:
                wrong = ", ".join([*wrong, *["bytes"] * (not identical)])
                print(f"{group} {number}: {wrong}: {how}", file=sys.stderr)
        columns = ("translated", "refused", "identical", "kept")
        print(
            f"| {group} | {' | '.join(str(counts[x]) for x in columns)} |", flush=True
        )


if __name__ == "__main__":
    main()
