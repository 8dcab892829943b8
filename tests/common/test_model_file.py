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
    write_model_file(
        path, MODEL, kind=kind, metadata=metadata, files={"words.json": b"[1]"}
    )


def test_what_is_written_is_read(path):
    write(path, grid=(9, 9), name="é")
    found = read_model_file(path, "captioner")
    assert (found.metadata["grid"], found.metadata["name"]) == ([9, 9], "é")
    assert found.files == {"words.json": b"[1]"}


def test_the_model_comes_first_and_zip_programs_open_the_file(path):
    assert path.read_bytes().startswith(MODEL)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == ["metadata.json", "words.json"]


def test_equal_models_are_equal_files(path):
    before = path.read_bytes()
    write(path)
    assert path.read_bytes() == before


def refused(path, match, kind="captioner"):
    with pytest.raises(UserError, match=match) as caught:
        read_model_file(path, kind)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    refused(tmp_path / "no.tflite", r"no LiteRT file .*no\.tflite")


def test_another_file(tmp_path):
    path = tmp_path / "text.tflite"
    path.write_text("A text, and no model.")
    refused(path, r"expected a LiteRT model.*first bytes are b'A text, '")


def test_a_litert_model_without_metadata(tmp_path):
    path = tmp_path / "other.tflite"
    path.write_bytes(MODEL)
    refused(path, "without the metadata of a captioner")


@pytest.mark.parametrize("kept", [len(MODEL) - 10, len(MODEL) + 20, -1])
def test_a_truncated_file(path, kept):
    path.write_bytes(path.read_bytes()[:kept])
    refused(path, "without the metadata of a captioner: it is truncated")


def test_a_damaged_model(path):
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    refused(path, "is damaged")


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


def test_another_kind(path):
    refused(path, "expected a translator.*a captioner", kind="translator")


def test_a_later_version(path, monkeypatch):
    later = litert.VERSION + 1
    with monkeypatch.context() as patch:
        patch.setattr(litert, "VERSION", later)
        write(path)
    refused(path, rf"metadata of version {later}.*up to version {later - 1}")
