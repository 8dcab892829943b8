"""The files to which overlays of the attention are written, and inputs from pipes."""

import io
import os
import threading
import types
from pathlib import Path

import pytest
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.overlays import find_overlays
from keras_attention_apps.common.cli import UserError
from PIL import Image


@pytest.mark.parametrize(
    ("images", "names"),
    [
        (["/photos/dog.jpg", "/cat.jpg"], ["dog", "cat"]),
        (["/dog.jpg", "/photos/dog.jpg"], ["dog", "photos-dog"]),
        (
            ["/photos/dog.jpg", "/backup/photos/dog.jpg"],
            ["photos-dog", "backup-photos-dog"],
        ),
        (["/p/a.jpg", "/p/a.png", "/p/a.jpg.png"], ["a.jpg", "a.png", "a.jpg.png"]),
        (["/b/c.jpg", "/b-c.jpg", "/d/c.jpg"], ["b-c", "b-c-2", "d-c"]),
        (["/a/../p/dog.jpg", "/q/dog.jpg"], ["p-dog", "q-dog"]),
    ],
)
def test_images_have_overlays_of_different_names_in_the_folder(tmp_path, images, names):
    paths = [Path(image) for image in images]
    found = find_overlays(tmp_path, paths, paths)

    assert found == {
        path: tmp_path / f"{name}.png" for path, name in zip(paths, names, strict=True)
    }


def test_an_image_that_is_named_twice_has_one_overlay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [Path("dog.jpg"), Path.cwd() / "dog.jpg", Path("cat.jpg")]
    found = find_overlays(tmp_path / "maps", paths, paths)

    assert [path.name for path in found.values()] == ["dog.png", "dog.png", "cat.png"]


@pytest.mark.parametrize("names", [["a.jpg"], ["a.jpg", "b.jpg"]])
def test_overlays_are_not_written_to_the_folder_of_the_images(
    tmp_path, monkeypatch, names
):
    monkeypatch.chdir(tmp_path)
    paths = [Path(name) for name in names]

    with pytest.raises(UserError, match=r"other than that of the images. .*: '\.'"):
        find_overlays(Path("."), paths, paths)
    # The working folder is not that of the standard input.
    assert find_overlays(Path("."), [Path("-")], [Path("-")])
    beside = Path("a-attention.png")
    assert find_overlays(beside, paths[:1], paths[:1]) == {paths[0]: beside}


@pytest.mark.parametrize("given", ["-", "descriptor"])
def test_an_image_from_a_pipe_has_a_caption_and_an_overlay(
    cached_models, photographs, model_folder, capsys, monkeypatch, request, given
):
    content = (photographs / "red-0.png").read_bytes()
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(content)))
    if given == "descriptor":
        if not os.path.isdir("/dev/fd"):
            pytest.skip("no files of descriptors here")
        reading, writing = os.pipe()
        writer = threading.Thread(target=_write, args=(writing, content))
        writer.start()
        request.addfinalizer(writer.join)
        request.addfinalizer(lambda: os.close(reading))
        given = f"/dev/fd/{reading}"
    target = photographs / "overlay.png"
    command = ["caption", given, given, "--model", str(model_folder)]

    assert main([*command, "--overlay", str(target.parent / "maps")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [given] * 2
    (overlay,) = (target.parent / "maps").iterdir()
    with Image.open(overlay) as image:
        assert image.width > 1000


def test_an_unreadable_image_from_a_pipe_has_its_name(
    cached_models, model_folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(b"text")))
    command = ["caption", "-", "--model", str(model_folder)]

    assert main([*command, "--overlay", str(tmp_path / "overlay.png")]) == 2
    assert "error: Cannot read '-': expected an image" in capsys.readouterr().err
    assert not (tmp_path / "overlay.png").exists()


def _write(descriptor, content):
    with open(descriptor, "wb") as file:
        file.write(content)
