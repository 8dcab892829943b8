"""The output of a bulk inference: parts, and the ids that they contain."""

import types
from pathlib import Path

import pytest

from keras_attention_apps.common import bulk
from keras_attention_apps.common.bulk import Parts, digests, is_missing, located
from keras_attention_apps.common.errors import UserError

from .conftest import refused

pa = pytest.importorskip("pyarrow")
fs = pytest.importorskip("pyarrow.fs")
parquet = pytest.importorskip("pyarrow.parquet")

COLUMNS = {
    "caption": str,
    "words": list[str],
    "score": float,
    "cut": bool,
    "error": str,
}


def batch(*ids, failed=()):
    """A batch of results, some of which have failed."""
    return {
        "id": list(ids),
        "caption": [None if x in failed else f"a {x}" for x in ids],
        "words": [[] if x in failed else ["a", x] for x in ids],
        "score": [float("nan") if x in failed else -0.5 for x in ids],
        "cut": [False for _ in ids],
        "error": ["broken" if x in failed else None for x in ids],
        "other": [0 for _ in ids],
    }


@pytest.fixture(params=["out.parquet", "out.jsonl"])
def parts(request, tmp_path):
    stored_parts = Parts(tmp_path / request.param, COLUMNS)
    stored_parts.begin({"model": "tiny", "maps": False})
    return stored_parts


def rows(parts):
    return pa.concat_tables(map(parts._read, parts._names())).to_pylist()


def ids(parts):
    return sorted(row["id"] for row in rows(parts))


def test_rows_are_read_as_they_were_written(parts):
    assert parts.write(batch("x", "y", failed="y")) == (2, 1)

    written, failed = rows(parts)
    expected = {"id": "x", "caption": "a x", "words": ["a", "x"], "score": -0.5}
    assert written == {**expected, "cut": False, "error": None}
    assert (failed["score"], failed["error"]) == (None, "broken")


def test_finished_ids_are_left_out_and_errors_are_not(parts):
    parts.write(batch("x", "y", failed="y"))
    parts.write(batch("z", failed="z"))

    missing = is_missing(["y", "x", "z", "new"], parts.finished())
    assert missing.tolist() == [True, False, True, True]
    assert ids(parts) == ["x"]
    for _ in range(2):
        # A part that is written again replaces itself.
        parts.write(batch("z"))
        assert ids(parts) == ["x", "z"]


def test_temporary_file_of_a_killed_process_is_no_part(parts, tmp_path):
    parts.write(batch("x"))
    (name,) = [x for x in tmp_path.glob("out.*/part-*")]
    name.with_name(f".killed-{name.name}").write_bytes(name.read_bytes()[:20])

    assert len(parts.finished()) == 1
    assert ids(parts) == ["x"]


def test_no_part_appears_if_writing_fails(parts, tmp_path):
    class NoRenaming(type(parts.filesystem)):
        def move(self, *_):
            raise OSError("no space")

    parts.filesystem = NoRenaming()
    with pytest.raises(OSError, match="no space"):
        parts.write(batch("x"))

    assert [x.name for x in tmp_path.glob("out.*/*")] == ["_options.json"]


def test_a_second_job_is_refused(parts):
    with parts.locked():
        parts.write(batch("x"))
        refused(parts.locked(), "no other process")
        assert ids(parts) == ["x"]
    with parts.locked():
        assert len(parts.finished()) == 1


def test_options_are_replaced_while_there_are_no_parts_and_then_pinned(parts):
    parts.begin({"model": "large", "maps": False})
    parts.write(batch("x"))
    parts.begin({"model": "large", "maps": False})
    with pytest.raises(UserError, match="model='large' instead of 'tiny'"):
        parts.begin({"model": "tiny", "maps": False})


@pytest.mark.parametrize("content", [b"", b"PAR1", b'{"id": "x', b"[]\n", b"\xff\n"])
def test_a_damaged_part_is_named(parts, tmp_path, content):
    if parts.suffix == ".jsonl" and not content:
        pytest.skip("a file without lines has no rows")
    parts.write(batch("x"))
    (part,) = tmp_path.glob("*/part-*")
    part.write_bytes(content)
    with pytest.raises(UserError, match=f"cannot read '.*{part.name}'"):
        parts.finished()


def test_a_part_of_another_program_is_named(tmp_path):
    parts = Parts(tmp_path / "out.parquet", COLUMNS)
    parts.begin({})
    table = pa.table({"id": ["x"], "price": [3]})
    parquet.write_table(table, tmp_path / "out.parquet" / "part-1.parquet")
    with pytest.raises(UserError, match=r"cannot read '.*part-1\.parquet'"):
        parts.finished()


@pytest.mark.parametrize("content", ["{", "[]"])
def test_damaged_options_are_named(parts, tmp_path, content):
    (options,) = tmp_path.glob("*/_options.json")
    options.write_text(content)
    with pytest.raises(UserError, match=r"_options\.json' is damaged"):
        parts.begin({"model": "tiny", "maps": False})


def test_parts_of_something_else_are_not_continued(tmp_path):
    (tmp_path / "out.parquet").mkdir()
    (tmp_path / "out.parquet" / "part-0.parquet").write_text("")
    with pytest.raises(UserError, match="choose another output"):
        Parts(tmp_path / "out.parquet", COLUMNS).begin({"model": "tiny"})


def test_output_must_be_a_folder_of_a_known_format(tmp_path):
    with pytest.raises(UserError, match=r"must end in .parquet or .jsonl.*out.csv"):
        Parts(tmp_path / "out.csv", COLUMNS)
    (tmp_path / "out.jsonl").write_text("")
    with pytest.raises(UserError, match="Received a file"):
        Parts(tmp_path / "out.jsonl", COLUMNS)


def test_digests_are_sorted_for_many_ids():
    names = [f"{i}.jpg" for i in range(1009)]
    finished = digests(names[::3])
    finished.sort()

    assert is_missing(names, finished).tolist() == [i % 3 != 0 for i in range(1009)]
    assert is_missing([], finished).tolist() == []
    assert is_missing(["x"], digests([])).tolist() == [True]


def test_folders_inside_folders_are_searched(tmp_path):
    for name in ("b.jpg", "inside/a.JPG", "inside/.hidden.jpg", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    filesystem, paths = bulk.located_all([tmp_path, tmp_path / "missing.jpg"])

    listed = bulk.find_files(filesystem, paths, {".jpg"})

    names = ["b.jpg", "inside/a.JPG", "missing.jpg"]
    assert listed == [(tmp_path / name).as_posix() for name in names]
    with pytest.raises(UserError, match=r"expected files .png in .*Received: 4 other"):
        bulk.find_files(filesystem, paths, {".png"})


def test_a_uri_is_restored_from_a_path(tmp_path):
    _, path = located(f"file:{tmp_path}")

    assert path == located(f"file://{tmp_path}")[1] == str(tmp_path)
    assert bulk.as_text(Path("s3://bucket/a")) == "s3://bucket/a"
    assert bulk.as_text(Path("a/b")) == str(Path("a/b"))
    with pytest.raises(UserError, match="cannot open 'nothing://x'"):
        located("nothing:/x")


def test_lines_are_read_from_their_offsets(tmp_path, monkeypatch):
    monkeypatch.setattr(bulk, "BLOCK", 3)
    text = tmp_path / "text.txt"
    text.write_bytes(b"\xef\xbb\xbfone\ntwo\r\n\nfour\xff\nfive\nsix\nseven")
    filesystem, path = located(text)

    starts = list(bulk._starts(filesystem, path))
    options = {"filesystem": filesystem, "path": path, "finished": digests(["6"])}
    table = pa.concat_tables(bulk._lines(**row, **options) for row in starts)

    assert [row["number"] for row in starts] == [1, 4, 7]
    assert table["id"].to_pylist() == list("123457")
    lines = [b"one", b"two", b"", b"four\xff", b"five", b"seven"]
    assert table["value"].to_pylist() == lines


def test_an_edited_text_has_another_digest(tmp_path):
    text = tmp_path / "text.txt"
    digests = []
    for content in (b"one\ntwo\n", b"one\nTwo\n", b"one\ntwo\nthree\n", b"one\ntwo\n"):
        text.write_bytes(content)
        digests.append(bulk.text_digest(*located(text)))

    assert [x["input_size"] for x in digests] == [8, 8, 14, 8]
    assert len({x["input_digest"] for x in digests}) == 3 and digests[-1] == digests[0]
    with pytest.raises(FileNotFoundError):
        bulk.text_digest(*located(tmp_path / "missing"))


def test_parquet_without_the_column_is_named(tmp_path):
    path = tmp_path / "images.parquet"
    parquet.write_table(pa.table({"id": ["a"], "photo": [b"x"]}), path)
    with pytest.raises(UserError, match=r"a column 'image' in .*Received: id, photo"):
        bulk.from_parquet(fs.LocalFileSystem(), [str(path)], "image", "id", ())


def rows_of(path):
    """The rows of a file as pairs of an id and a value, or an id and an error."""
    options = {"filesystem": fs.LocalFileSystem(), "finished": digests(["3"])}
    columns = {"column": "text", "id_column": "number"}
    return [
        (row["id"], row["error"] or row["value"])
        for table in bulk._rows_of_file(str(path), **columns, **options)
        for row in table.to_pylist()
    ]


def test_a_damaged_parquet_file_is_a_row_with_its_error(tmp_path):
    path = tmp_path / "text.parquet"
    table = pa.table({"number": [1, 2, 3, 4], "text": ["one", "two", "three", "four"]})
    parquet.write_table(table, path, row_group_size=2, compression="snappy")
    content = bytearray(path.read_bytes())
    assert rows_of(path) == [("1", "one"), ("2", "two"), ("4", "four")]

    group = parquet.ParquetFile(path).metadata.row_group(1).column(1)
    begin, size = group.dictionary_page_offset, group.total_compressed_size
    content[begin : begin + size] = b"x" * size
    path.write_bytes(content)
    *intact, (damaged, error) = rows_of(path)
    assert intact == [("1", "one"), ("2", "two")]
    assert damaged == str(path) and error.startswith(f"Cannot read {str(path)!r}: ")

    path.write_bytes(content[:-20])
    assert [name for name, _ in rows_of(path)] == [str(path)]


@pytest.mark.parametrize(
    ("available", "threads", "actors", "expected"),
    [
        # Two tasks that read and write need a tenth of a processor each.
        ({"CPU": 4.0}, None, None, ({"num_cpus": 0.8}, 4)),
        ({"CPU": 7.0}, 2, None, ({"num_cpus": 2}, 3)),
        ({"CPU": 1.0}, 4, None, ({"num_cpus": 4}, 1)),
        ({"CPU": 7.0}, 2, 5, ({"num_cpus": 2}, 5)),
        ({"CPU": 8.0, "GPU": 2.0}, 3, None, ({"num_gpus": 1, "num_cpus": 3}, 2)),
    ],
)
def test_actors_reserve_the_processors_of_their_threads(
    available, threads, actors, expected
):
    cluster = types.SimpleNamespace(cluster_resources=lambda: available)
    config = types.SimpleNamespace(actors=actors)
    arguments = {"model": "folder", "runtime": None, "threads": threads}

    resources, arguments, count = bulk._resources(cluster, config, arguments)

    assert (resources, count) == expected
    assert arguments["threads"] == (threads or 1)
    assert arguments["runtime"] == ("keras" if "GPU" in available else None)
