"""The names of the files to which overlays of the attention are written."""

from pathlib import Path

import pytest
from keras_attention_apps.captioner.commands.overlays import find_overlays


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
