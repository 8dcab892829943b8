import zipfile

import pytest

from keras_attention_apps.common import litert
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import at_most
from keras_attention_apps.common.litert import read_model_file, write_model_file

MODEL = b"\x1c\x00\x00\x00TFL3" + bytes(range(256))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "my.tflite"
    write(path)
    return path


def write(path, kind="captioner", **metadata):
    files = {"words.json": b"[1]"}
    write_model_file(path, MODEL, kind=kind, metadata=metadata, files=files)


def test_what_is_written_is_read_as_a_model_and_as_an_archive(path):
    write(path, grid=(9, 9), name="é")
    metadata, files = read_model_file(path, "captioner")
    assert (metadata["grid"], metadata["name"]) == ([9, 9], "é")
    assert files == {"words.json": b"[1]"}
    before = path.read_bytes()
    assert before.startswith(MODEL)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == ["metadata.json", "words.json"]
    write(path, grid=(9, 9), name="é")
    assert path.read_bytes() == before


def refused(path, match, kind="captioner"):
    with pytest.raises(UserError, match=match) as caught:
        read_model_file(path, kind)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: b"A text, and no model.", "a LiteRT model.*bytes are b'A text, '"),
        (lambda x: MODEL, "without the metadata of a captioner"),
        *(
            (lambda x, end=end: x[:end], "the metadata of a captioner: it is truncated")
            for end in (len(MODEL) - 10, len(MODEL) + 20, -1)
        ),
        (lambda x: x[:20] + bytes([x[20] ^ 1]) + x[21:], "is damaged"),
    ],
)
def test_other_and_damaged_files_are_refused(path, change, message):
    path.write_bytes(change(path.read_bytes()))
    refused(path, message)


@pytest.mark.parametrize(
    "metadata", [{"version": "one"}, {"model_bytes": "9"}, {"model_bytes": -1}]
)
def test_invalid_metadata(path, metadata):
    write(path, **metadata)
    refused(path, "without the metadata of a captioner")


def test_contents_that_expand_beyond_the_limit(path):
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(100_000))
    assert path.stat().st_size < 2000
    with at_most(50_000):
        refused(path, "my.tflite has more than 50,000 bytes")
    read_model_file(path, "captioner")


def test_another_kind_a_later_version_and_no_file(path, monkeypatch):
    refused(path, "expected a translator.*a captioner", kind="translator")
    later = litert.VERSION + 1
    with monkeypatch.context() as patch:
        patch.setattr(litert, "VERSION", later)
        write(path)
    refused(path, rf"metadata of version {later}.*up to version {later - 1}")
    path.unlink()
    refused(path, r"no LiteRT file .*my\.tflite")
