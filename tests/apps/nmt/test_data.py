from pathlib import Path

import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.models import find_preset
from keras_attention_apps.nmt.data.dataset import (
    Pairs,
    find_files,
    read_lines,
    read_pairs,
    read_parallel,
)
from keras_attention_apps.nmt.training.train import hold_out


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_end_with_line_feeds_only(tmp_path):
    path = write(tmp_path / "text", "\ufeffone\r\n two\u2028half \n\nfour\x0b\x0c!")
    assert read_lines(path) == ["one\r", " two\u2028half ", "", "four\x0b\x0c!"]


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


def test_files_of_different_length(tmp_path):
    source, target = write(tmp_path / "a", "1\n2\n3"), write(tmp_path / "b", "1\n2\n")
    with pytest.raises(UserError, match=r"a with 3, .*b with 2"):
        read_parallel(source, target)


@pytest.mark.parametrize("name", ["a", "link", "./a"])
def test_one_file_is_no_pair(tmp_path, name):
    source = write(tmp_path / "a", "one\ntwo\n")
    (tmp_path / "link").symlink_to(source)
    message = r"expected two files\. Received: .*/a as source"
    with pytest.raises(UserError, match=message):
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
    paths = find_files(tmp_path, "en-de", ("val", "dev"))

    assert [path.name for path in paths] == ["dev.en", "dev.de"]
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
