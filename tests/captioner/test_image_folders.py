"""Resizing images to arrays, and finding those of a folder."""

import os
import pathlib

import numpy as np
import pytest
from keras_attention_apps.captioner.images import (
    ImageError,
    find_images,
    find_unsupported,
    image_to_array,
)
from PIL import Image

from .image_files import RED, noise

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


class TestImageToArray:
    def test_image_of_that_size_is_unchanged(self):
        array = image_to_array(Image.fromarray(noise(7, 7)), 7)

        np.testing.assert_array_equal(array, noise(7, 7))
        assert array.dtype == np.uint8
        assert array.flags.writeable

    @pytest.mark.parametrize(("width", "height"), [(5, 7), (2, 3), (13, 3), (3, 17)])
    def test_shape(self, width, height):
        array = image_to_array(Image.fromarray(noise(width, height)), 3)

        assert array.shape == (3, 3, 3)
        assert array.dtype == np.uint8

    @pytest.mark.parametrize("axis", [0, 1])
    def test_value_worked_by_hand(self, axis):
        # Shrunk from 7 to 1, the triangle weighs the pixels 4 5 6 7 6 5 4 out of 37:
        # without antialiasing, or cropped, the outermost pixel would not be seen.
        line = np.zeros((7, 3), "uint8")
        line[0] = 255
        picture = np.expand_dims(line, axis)

        array = image_to_array(Image.fromarray(picture), 1)

        assert array.ravel().tolist() == [28] * 3
        assert round(255 * 4 / 37) == 28

    def test_aspect_ratio_is_not_kept(self):
        # Twice as wide as high; the mean of two columns and one row.
        picture = Image.new("RGB", (2, 1), RED)
        picture.putpixel((1, 0), (55, 100, 0))

        assert image_to_array(picture, 1).ravel().tolist() == [155, 50, 0]

    def test_only_the_box_is_kept(self):
        picture = noise(7, 5)

        array = image_to_array(Image.fromarray(picture), 3, box=(2, 1, 5, 4))

        np.testing.assert_array_equal(array, picture[1:4, 2:5])

    @pytest.mark.parametrize("box", [None, (3.5, 2, 30, 20.5)])
    def test_the_longer_side_comes_first(self, box):
        turned = box and (*box[1::-1], *box[:1:-1])

        array = image_to_array(Image.fromarray(noise(41, 27)), 13, box)
        picture = Image.fromarray(noise(41, 27).swapaxes(0, 1))

        expected = image_to_array(picture, 13, turned).swapaxes(0, 1)
        np.testing.assert_array_equal(array, expected)

    def test_errors_name_the_mode_and_the_size(self):
        with pytest.raises(ValueError, match=r"mode RGB.*got mode L and size 3"):
            image_to_array(Image.new("L", (3, 3)), 3)
        with pytest.raises(ValueError, match=r"positive size.*mode RGB and size 0"):
            image_to_array(Image.new("RGB", (3, 3)), 0)


class TestFindImages:
    def test_folders_are_replaced(self, tmp_path):
        folder = tmp_path / "folder"
        (folder / "c.png").mkdir(parents=True)
        names = ["b.JPG", "a.png", "d.jpeg", "e.WebP", "f.tiff", "g.gif", "h.mpo"]
        for name in [*names, ".hidden.jpg", "notes.txt", "jpg"]:
            (folder / name).touch()
        (folder / "c.png" / "deeper.png").touch()
        missing = tmp_path / "missing.jpg"
        (folder / "link.png").symlink_to(missing)
        (folder / "round.png").symlink_to("round.png")

        found = find_images([str(missing), folder, tmp_path / "notes.txt"])

        inside = [folder / name for name in sorted([*names, "link.png", "round.png"])]
        assert found == [missing, *inside, tmp_path / "notes.txt"]
        assert all(isinstance(path, pathlib.Path) for path in found)

    def test_no_paths(self):
        assert find_images([]) == []

    def test_folder_without_images(self, tmp_path):
        (tmp_path / "notes.txt").touch()
        (tmp_path / ".a.png").touch()

        with pytest.raises(ImageError) as caught:
            find_images([tmp_path])

        assert str(tmp_path) in str(caught.value)
        assert "expected files of AVIF" in str(caught.value)
        assert "got 2 others" in str(caught.value)

    def test_folder_that_cannot_be_listed(self, tmp_path, monkeypatch):
        def iterdir(self):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(pathlib.Path, "iterdir", iterdir)

        with pytest.raises(ImageError, match=": Permission denied") as caught:
            find_images([tmp_path])
        assert str(tmp_path) in str(caught.value)

    def test_folder_that_cannot_be_entered(self, tmp_path, monkeypatch):
        (tmp_path / "a.jpg").touch()
        stat = os.stat

        def denied(path, *args, **kwargs):
            if str(path) != str(tmp_path):
                raise PermissionError(13, "Permission denied")
            return stat(path, *args, **kwargs)

        monkeypatch.setattr(os, "stat", denied)

        assert find_images([tmp_path]) == [tmp_path / "a.jpg"]


class TestFindUnsupported:
    def test_images_of_other_formats(self, tmp_path):
        for name in ("b.HEIC", "a.heic", ".c.heic", "d.jpg"):
            (tmp_path / name).touch()

        found = find_unsupported(str(tmp_path))

        assert found == [tmp_path / "a.heic", tmp_path / "b.HEIC"]

    def test_path_that_is_no_folder(self, tmp_path):
        assert find_unsupported(tmp_path / "missing") == []
        assert find_unsupported("a" * 300) == []
