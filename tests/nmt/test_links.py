import numpy as np
import pytest
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.data.dataset import (
    POSSIBLE,
    SURE,
    Pairs,
    link_matrix,
    parse_links,
    read_links,
    read_pairs,
    subword_weights,
)
from keras_attention_apps.nmt.text import END, clean, merge_weights
from keras_attention_apps.nmt.training.train import hold_out

SOURCE, TARGET = "a red dog", "un chien"


def test_a_line_of_links():
    links = parse_links("0-0 2?1 1p1 2-1", SOURCE, TARGET, possible=True)

    expected = [[0, 0, SURE], [2, 1, POSSIBLE], [1, 1, POSSIBLE], [2, 1, SURE]]
    assert links.tolist() == expected
    # The link 2-1 is sure, although it is also possible.
    assert link_matrix(links, (2, 3)).tolist() == [[2, 0, 0], [0, 1, 2]]
    assert parse_links("", SOURCE, TARGET).shape == (0, 3)


@pytest.mark.parametrize(
    "line, message",
    [
        ("0-0 1:1", "expected links i-j, such as 0-0 1-2. Received: '1:1'"),
        ("0", "Received: '0'"),
        ("-1-0", "Received: '-1-0'"),
        ("0-0-1", "Received: '0-0-1'"),
        ("\u0661-0", "Received: '\u0661-0'"),
        ("0?0", "Received: '0[?]0'"),
        ("3-0", "below 3, the number of words of the source .* Received: '3-0'"),
        ("0-2", "below 2, the number of words of the target .* Received: '0-2'"),
        (f"0-{'9' * 30}", "Received: '0-999"),
    ],
)
def test_wrong_links(line, message):
    with pytest.raises(UserError, match=message):
        parse_links(line, SOURCE, TARGET)


def test_files_of_links(tmp_path):
    path = tmp_path / "links"
    path.write_text("0-0\n\n1-1\n")
    first, empty, last = read_links(path, [SOURCE] * 3, [TARGET] * 3)
    assert first.tolist() == [[0, 0, SURE]] and not len(empty)
    assert last.tolist() == [[1, 1, SURE]]

    with pytest.raises(UserError, match=r"each of the 2 sentence pairs\. .* 3 lines"):
        read_links(path, [SOURCE] * 2, [TARGET] * 2)
    path.write_text("0-0\n0-0 7-0\n")
    with pytest.raises(UserError, match="links, line 2: expected words below 3"):
        read_links(path, [SOURCE] * 2, [TARGET] * 2)


def test_links_stay_with_their_pairs(tmp_path):
    count = 40
    for name, make in (
        ("source", lambda i: "" if i % 7 == 3 else f"word{i} b"),
        ("target", lambda i: f"c mot{i}"),
        ("links", lambda i: "" if i % 7 == 3 else f"0-1 {i % 2}-0"),
    ):
        text = "".join(f"{make(i)}\n" for i in range(count))
        (tmp_path / name).write_text(text)
    pairs = read_pairs(tmp_path / "source", tmp_path / "target", tmp_path / "links")
    training, validation = hold_out(pairs, seed=3)

    assert pairs.empty_count == training.empty_count == 6
    assert len(training) + len(validation) == 34 and len(validation) == 3
    for source, links in zip(training.source, training.links, strict=True):
        number = int(source.split()[0].removeprefix("word"))
        assert links.tolist() == [[0, 1, SURE], [number % 2, 0, SURE]]
    assert Pairs(["a"], ["b"]).links is None


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_weights_of_subwords_merge_to_the_links_of_words(
    subwords, dropout, rng, unspaced_subwords
):
    texts = ["the  red dog sees a cat.", "Straße\u00a0über 3,5 x", "le chien 小松菜 の"]
    for tokenizer in (subwords, unspaced_subwords):
        cleaned = list(map(clean, texts))
        ids = tokenizer.encode_all(cleaned, dropout=dropout, seed=5)
        places = list(map(tokenizer.word_places, ids))
        for text, tokens, words in zip(cleaned, ids, places, strict=True):
            # The end token belongs to no word.
            assert tokens[-1] == END and len(words) == len(tokens) - 1
            spelt = [
                tokenizer.decode(
                    [t for t, w in zip(tokens, words, strict=False) if w == i]
                )
                for i in range(words[-1] + 1)
            ]
            assert spelt == text.split(" ")
        source, target = places[0], places[1]
        shape = target[-1] + 1, source[-1] + 1
        matrix = rng.random(shape) < 0.4
        matrix[1] = False
        links = [(s, t, SURE) for t, s in zip(*np.nonzero(matrix), strict=True)]
        weights = subword_weights(np.array(links), source, target)

        assert weights.shape == (len(target), len(source))
        total = weights.sum(axis=1, keepdims=True)
        merged = merge_weights(weights / np.maximum(total, 1e-9), source, target)
        expected = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        np.testing.assert_allclose(merged, expected, atol=1e-6)
