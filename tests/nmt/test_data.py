from pathlib import Path

import numpy as np
import pytest
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.models import find_preset
from keras_attention_apps.nmt.data.dataset import (
    POSSIBLE,
    SURE,
    Pairs,
    find_files,
    link_matrix,
    parse_links,
    read_lines,
    read_links,
    read_pairs,
    read_parallel,
    subword_weights,
)
from keras_attention_apps.nmt.text import END, clean, merge_weights
from keras_attention_apps.nmt.training.train import hold_out


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_end_with_line_feeds_only(tmp_path):
    content = "\ufeffone\r\n two\u2028half \n\nfour\x0b\x0c!"
    path = write(tmp_path / "text", content)

    assert read_lines(path) == ["one", "two half", "", "four !"]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "text is empty"),
        (b" \n\n", "text is empty"),
        (b"good\nb\xe4d\n", "text, line 2, is not UTF-8: byte 0xe4 at position 1"),
    ],
)
def test_files_that_cannot_be_read(content, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read_lines(write(tmp_path / "text", content))


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(UserError, match="expected a regular file"):
        read_lines(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_lines(tmp_path / "nowhere")


def test_files_of_different_length(tmp_path):
    source, target = write(tmp_path / "a", "1\n2\n3"), write(tmp_path / "b", "1\n2\n")
    with pytest.raises(UserError, match=r"a with 3, .*b with 2"):
        read_parallel(source, target)


@pytest.mark.parametrize("name", ["a", "link", "./a"])
def test_one_file_is_no_pair(tmp_path, name):
    source = write(tmp_path / "a", "one\ntwo\n")
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(
        UserError, match=r"expected two files\. Received: .*/a as source"
    ):
        read_parallel(source, f"{tmp_path}/{name}")


@pytest.mark.parametrize("place", [0, 1])
def test_a_table_is_no_text(tmp_path, place):
    table = write(tmp_path / "table", "one\tun\ntwo\tdeux\nthree\n")
    text = write(tmp_path / "text", "1\n2 \t\n3\n")
    files = [table, text] if place else [text, table]
    with pytest.raises(UserError, match=r"Received: a table with tabs, .*/table"):
        read_parallel(*files)
    assert read_parallel(text, write(tmp_path / "b", "1\n2\n3\n"))[0] == ["1", "2", "3"]


def test_an_address_is_no_path():
    for address in ("https://example.org/data", "hf:/them/theirs", "S3://bucket/a"):
        expected = r"nothing is downloaded. Received an address: '\w+://[a-z]+"
        with pytest.raises(UserError, match=expected):
            read_lines(address)
        with pytest.raises(UserError, match=expected):
            find_files(Path(address), "en-de", ("dev",))
        with pytest.raises(UserError, match=expected):
            find_preset(address, Path("presets"))


def test_pairs_with_an_empty_side_are_left_out(tmp_path):
    source = write(tmp_path / "a", "one\n\nthree\nfour\n")
    target = write(tmp_path / "b", "un\ndeux\n \nquatre\n")
    pairs = read_pairs(source, target)

    assert (pairs.source, pairs.target) == (["one", "four"], ["un", "quatre"])
    assert (len(pairs), pairs.empty_count) == (2, 2)


def test_no_pair_with_text_on_both_sides_is_an_error(tmp_path):
    source, target = write(tmp_path / "a", "one\n\n"), write(tmp_path / "b", "\ntwo\n")
    with pytest.raises(UserError, match="no line with text on both sides"):
        read_pairs(source, target)


def test_files_of_a_folder(tmp_path):
    for name in ("dev.en", "dev.de", "val.en"):
        write(tmp_path / name, "x")
    found = find_files(tmp_path, "en-de", ("val", "dev"))

    assert [path.name for path in found] == ["dev.en", "dev.de"]
    (tmp_path / "dev.en").rename(tmp_path / "dev.en.gz")
    assert find_files(tmp_path, "en-de", ("dev",))[0].name == "dev.en.gz"
    with pytest.raises(UserError, match=r"expected the files test\.en and test\.de"):
        find_files(tmp_path, "en-de", ("test",))
    for pair in ("en", "", "-de", "en-de-fr"):
        with pytest.raises(UserError, match="Received: '"):
            find_files(tmp_path, pair, ("dev",))


def test_no_pair_that_is_held_out_has_a_copy_in_the_training():
    source = [f"{i % 50}" for i in range(200)] + ["7", "8"]
    pairs = Pairs(source, [f"{x} fois" for x in source[:-1]] + ["autre"], empty_count=3)

    learned, validation = hold_out(pairs, seed=4)

    assert len(validation) == len(set(validation.source)) == 5
    held_out = set(zip(validation.source, validation.target, strict=True))
    left = list(zip(learned.source, learned.target, strict=True))
    texts = list(zip(pairs.source, pairs.target, strict=True))
    assert left == [text for text in texts if text not in held_out]
    assert learned.empty_count == 3
    assert hold_out(pairs, seed=5)[1].source != validation.source
    with pytest.raises(UserError, match=r"10 different pairs .* Received: 9"):
        hold_out(Pairs(source[:9] * 20, source[:9] * 20), seed=4)


# Word alignments.
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
