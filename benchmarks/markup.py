"""Places of tags in translations of both directions, against an independent aligner.

Every sentence gets one tag around one to three of its words, drawn at random. The
reference for the tag in the translation is IBM model 2 with the diagonal prior of
fast_align (Dyer et al., 2013). It is trained in both directions on the training text
and the translations. A tag counts only if both directions align the words in it with
the same target words, which stand in a row. Prints for each preset the share of tags
that enclose exactly these words, and that of tags that differ by one word.

    python benchmarks/markup.py multi30k
    python benchmarks/markup.py tatoeba --count 1000 --model tatoeba-multi30k-de-en
"""

import argparse
import html
import random
import re
from pathlib import Path

import numpy as np

from keras_attention_apps.common.options import RuntimeConfig
from keras_attention_apps.nmt.config import PRESETS
from keras_attention_apps.nmt.markup import language_of, translate_html
from keras_attention_apps.nmt.runtimes import RUNTIMES

ITERATIONS = 5
# The sharpness of the diagonal prior, and the probability of no source word.
SHARPNESS, EMPTY = 4.0, 0.08
_WORD = re.compile(r"\w+(?:[-'\u2019]\w+)*")
_PARAGRAPH = re.compile("<p>(.*)</p>")
_TAG = re.compile("</?b>")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    text = "Folder with train.en, train.de and further files such as val.en."
    parser.add_argument("data", type=Path, help=text)
    text = "Preset, folder or LiteRT file (repeatable); by default all presets."
    parser.add_argument("--model", action="append", default=[], help=text)
    text = "The name of the file of the sentences."
    parser.add_argument("--split", default="val", help=text)
    parser.add_argument("--count", type=int, default=200, help="Number of tags.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the tags.")
    markup(**vars(parser.parse_args()))


def markup(data, model, split, count, seed):
    """Print the share of tags in the right places."""
    for name in model or sorted(path.name for path in PRESETS.glob("*-??-??*")):
        target = language_of(name) or "de"
        languages = ("de", "en") if target == "en" else ("en", "de")
        training = [_lines(data / f"train.{x}") for x in languages]
        sentences = _lines(data / f"{split}.{languages[0]}")
        rng = random.Random(seed)
        rng.shuffle(sentences)
        # On about half of the places, both directions agree.
        tagged = [x for x in (_tagged(rng, sentence) for sentence in sentences) if x]
        tagged = tagged[: 3 * count]
        translator = RUNTIMES.load(name, RuntimeConfig(), search={})
        page = "".join(f"<p>{text}</p>\n" for text, _ in tagged)
        paragraphs = _PARAGRAPH.findall(translate_html(translator, page))
        score(name, training, tagged, list(map(_enclosed, paragraphs)), count)


def _lines(path):
    return path.read_text("utf-8").splitlines()


def score(name, training, tagged, enclosed, count):
    """Print the shares of one model.

    Args:
        name: The model.
        training: Pair of lists of sentences.
        tagged: Pairs of a sentence in HTML and the indices of the words in its tag.
        found: Pairs of a translation and the indices of the words in its tag.
        count: Number of tags.
    """
    plain = [html.unescape(_TAG.sub("", text)) for text, _ in tagged]
    translations = [text for text, _ in enclosed]
    source = [_words(x) for x in (*training[0], *plain)]
    target = [_words(x) for x in (*training[1], *translations)]
    forward = align(source, target)[-len(plain) :]
    backward = align(target, source)[-len(plain) :]
    exact, close, total = 0, 0, 0
    for (_, tagged_words), (_, enclosed_words), there, back in zip(
        tagged, enclosed, forward, backward, strict=True
    ):
        right = {j for j, i in enumerate(there) if i in tagged_words}
        others = {j for i, j in enumerate(back) if i in tagged_words and j >= 0}
        if not right or right != others or max(right) - min(right) >= len(right):
            continue
        exact += enclosed_words == right
        close += len(enclosed_words ^ right) <= 1
        total += 1
        if total == count:
            break
    print(
        f"{name:28} {100 * exact / total:5.1f} % of {total} tags enclose exactly the "
        f"right words, {100 * close / total:5.1f} % differ by one word at most"
    )


def align(source, target):
    """Return for each target word the source word that translates it, -1 for none.

    Args:
        source, target: Lists of the lists of words of each sentence.
    """
    sources, targets = _numbered(source), _numbered(target)
    parts = [[], [], [], []]
    owner = 0
    for ours, theirs in zip(sources, targets, strict=True):
        n, m = len(ours), len(theirs)
        here = np.arange(n) / max(n, 1)
        distance = np.abs(here[None] - (np.arange(m) / max(m, 1))[:, None])
        prior = np.exp(-SHARPNESS * distance)
        prior *= (1 - EMPTY) / np.maximum(prior.sum(axis=1, keepdims=True), 1e-9)
        prior = np.column_stack([np.full(m, EMPTY), prior])
        # Number 0 is no word.
        pairs = np.broadcast_to(np.append(0, ours), (m, n + 1))
        parts[0].append(pairs.ravel())
        parts[1].append(np.repeat(theirs, n + 1))
        parts[2].append(prior.ravel())
        parts[3].append(np.repeat(owner + np.arange(m), n + 1))
        owner += m
    ours, theirs, prior, owners = map(np.concatenate, parts)
    keys, inverse = np.unique(ours * (theirs.max() + 1) + theirs, return_inverse=True)
    of_keys = keys // (theirs.max() + 1)
    table = np.ones(len(keys))
    for _ in range(ITERATIONS):
        posterior = prior * table[inverse]
        posterior /= np.bincount(owners, posterior)[owners]
        counts = np.bincount(inverse, posterior, len(keys))
        table = counts / np.bincount(of_keys, counts)[of_keys]
    posterior = prior * table[inverse]
    aligned, begin = [], 0
    for ours, theirs in zip(sources, targets, strict=True):
        end = begin + len(theirs) * (len(ours) + 1)
        weights = posterior[begin:end].reshape(len(theirs), len(ours) + 1)
        aligned.append((weights.argmax(axis=1) - 1).tolist())
        begin = end
    return aligned


def _numbered(sentences):
    """Return the words of sentences as numbers from 1."""
    numbers = {}
    return [
        np.array([numbers.setdefault(x, len(numbers) + 1) for x in words], "int64")
        for words in sentences
    ]


def _words(text):
    return [match[0].lower() for match in _WORD.finditer(text)]


def _tagged(rng, sentence):
    """Return a sentence in HTML with a tag, and the words in the tag."""
    matches = list(_WORD.finditer(sentence))
    size = rng.randint(1, 3)
    if len(matches) < size + 2:
        return None
    first = rng.randrange(len(matches) - size + 1)
    begin, end = matches[first].start(), matches[first + size - 1].end()
    texts = sentence[:begin], sentence[begin:end], sentence[end:]
    before, inside, after = map(html.escape, texts)
    return f"{before}<b>{inside}</b>{after}", set(range(first, first + size))


def _enclosed(text):
    """Return the text of HTML with one tag, and the indices of the words in it."""
    before, inside, after = map(html.unescape, _TAG.split(text))
    begin, end = len(before), len(before + inside)
    text = before + inside + after
    matches = enumerate(_WORD.finditer(text))
    return text, {i for i, x in matches if begin <= x.start() and x.end() <= end}


if __name__ == "__main__":
    main()
