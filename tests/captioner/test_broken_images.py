"""Files that are no image, or a broken or too large one, get one clear error."""

import io
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from keras_attention_apps.captioner import images as limits
from keras_attention_apps.captioner.images import ImageError, read_array, read_image
from PIL import Image

from .image_files import HEIGHT, LOSSLESS, WIDTH, encode, fails, lazy_image, noise, png

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


class TestUnopenableSources:
    def test_missing(self, tmp_path):
        path = tmp_path / "none.jpg"

        fails(path, str(path), ": No such file or directory")
        fails("", "''", ": No such file or directory")

    def test_folder(self, tmp_path):
        fails(tmp_path, str(tmp_path), "expected an image file", "got a folder")

    def test_no_permission(self, tmp_path, monkeypatch):
        # Simulated, because the superuser may read every file.
        def deny(path, _):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("builtins.open", deny)
        (tmp_path / "a.png").touch()

        fails(tmp_path / "a.png", "a.png", ": Permission denied")

    def test_impossible_paths(self):
        fails("a\0b.png", "'a\\x00b.png'", "null byte")
        fails("a\nb.png", "'a\\nb.png'", ": No such file")

    def test_empty(self, tmp_path):
        path = tmp_path / "empty.png"
        path.touch()

        fails(path, str(path), "expected an image", "got no data (0 bytes)")
        fails(b"", "the given bytes", "got no data (0 bytes)")

    def test_text_named_jpg(self, tmp_path):
        path = tmp_path / "page.jpg"
        path.write_text("<html>404")

        fails(path, str(path), "JPEG", "got 9 bytes that begin with b'<html>404'")

    @pytest.mark.parametrize(
        ("brands", "found"),
        [
            (b"heic\0\0\0\0mif1heic", "a HEIC image; save it as JPEG"),
            (b"mif1\0\0\0\0mif1heix", "a HEIC image; save it as JPEG"),
            (b"avif\0\0\0\0mif1avif", "an AVIF image that is damaged, or"),
        ],
    )
    def test_heic_and_avif_named_jpg(self, tmp_path, brands, found):
        path = tmp_path / "phone.jpg"
        path.write_bytes(b"\0\0\0\x18ftyp" + brands + bytes(100))

        fails(path, "expected an image of", f"got {found}")

    def test_text_files(self, tmp_path):
        path = tmp_path / "a.png"
        path.write_bytes(encode(noise()))

        fails(io.StringIO("text"), "the given StringIO", "(TypeError: ", "str")
        with path.open(encoding="utf-8") as file:
            fails(file, "the given TextIOWrapper", "(UnicodeDecodeError: ")

    def test_closed(self):
        stream, image = io.BytesIO(encode(noise())), Image.fromarray(noise())
        stream.close()
        image.close()

        fails(stream, "the given BytesIO", "closed file")
        fails(image, "the given Image", "closed image")

    def test_programs_are_not_run(self):
        data = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 3\n%%EndComments\n"

        fails(data, "JPEG", "%!PS-Adobe")


class TestBrokenImages:
    @pytest.mark.parametrize("format", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF"])
    def test_truncated(self, tmp_path, format):
        path = tmp_path / "a.jpg"
        data = encode(noise(23, 29), format)
        path.write_bytes(data[: len(data) * 2 // 3])

        fails(path, str(path), "the image cannot be decoded (", "Error: ", "truncated")

    def test_truncated_webp(self):
        data = encode(noise(23, 29), "WEBP")

        fails(data[: len(data) // 2], "the given bytes")

    @pytest.mark.parametrize("format", [*LOSSLESS, "JPEG"])
    def test_a_damaged_image_is_read_or_gives_an_image_error(self, format, monkeypatch):
        monkeypatch.setattr(limits, "MAX_PIXELS", 10_007)
        # Pillow warns about some damaged files that it reads.
        warnings.simplefilter("ignore")
        data = encode(noise(), format)
        damaged = [data[:length] for length in range(0, len(data), 3)]
        for position in range(min(len(data), 199)):
            for value in (b"\0", b"\xff"):
                damaged.append(data[:position] + value + data[position + 1 :])

        outcomes = set()
        for source in damaged:
            try:
                outcomes.add(read_image(source).mode)
            except ImageError as error:
                assert "\n" not in str(error)
                outcomes.add("error")

        assert outcomes == {"RGB", "error"}

    @pytest.mark.parametrize(
        "error",
        [
            OSError("bad\nheader"),
            SyntaxError("bad header"),
            ValueError("bad header"),
            struct.error("bad header"),
            ZeroDivisionError("bad header"),
            OverflowError("bad header"),
            KeyError("bad header"),
            EOFError("bad header"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_any_exception_of_pillow_is_an_image_error(self, monkeypatch, error):
        def load(self):
            raise error

        data = encode(noise())
        monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", load)

        fails(data, f"the image cannot be decoded ({type(error).__name__}: ")
        fails(data, "the given bytes", "bad header")


class TestErrorsOfTheProgram:
    @pytest.mark.parametrize("place", ["_reduce", "_to_rgb"])
    def test_bugs_keep_their_type(self, monkeypatch, place):
        def fail(*_):
            raise AttributeError("no such attribute")

        monkeypatch.setattr(f"{read_image.__module__}.{place}", fail)

        with pytest.raises(AttributeError, match="no such attribute"):
            read_image(encode(noise()))

    def test_a_wrong_size_is_no_broken_image(self):
        with pytest.raises(ValueError, match="positive size") as caught:
            read_array(encode(noise()), 0)
        assert not isinstance(caught.value, ImageError)


class TestLimit:
    @pytest.mark.parametrize("of_process", [1, 89_478_485, 10**12, None])
    @pytest.mark.parametrize("action", ["error", "always", "ignore"])
    def test_header_that_claims_too_much(self, monkeypatch, of_process, action):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", of_process)

        with warnings.catch_warnings(record=True) as leaked:
            warnings.simplefilter(action)
            # 30011 x 30011 = 900 660 121; 13399 x 13357 is above by a little.
            fails(png(30011, 30011, 8, 2), "at most 178956970", "900660121 pixels")
            fails(png(13399, 13357, 8, 2), "at most 178956970", "178970443 pixels")

        assert not leaked
        assert of_process == Image.MAX_IMAGE_PIXELS

    @pytest.mark.parametrize("of_process", [1, 34, 10**12, None])
    @pytest.mark.parametrize(("format", "options"), LOSSLESS.items(), ids=LOSSLESS)
    def test_exact_border(self, monkeypatch, format, options, of_process):
        data = encode(noise(), format, **options)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", of_process)

        monkeypatch.setattr(limits, "MAX_PIXELS", WIDTH * HEIGHT)
        np.testing.assert_array_equal(read_image(data), noise())
        monkeypatch.setattr(limits, "MAX_PIXELS", WIDTH * HEIGHT - 1)
        fails(data, "expected at most 34 pixels", "35 pixels")

        assert of_process == Image.MAX_IMAGE_PIXELS

    def test_given_pillow_image(self, monkeypatch):
        monkeypatch.setattr(limits, "MAX_PIXELS", 34)

        fails(lazy_image(encode(noise())), "at most 34 pixels, got 5 x 7")

    def test_reader_inside_a_reader(self, monkeypatch):
        data = encode(noise(), "TIFF")
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)

        class File:
            def read(self):
                read_image(data)
                return data

        np.testing.assert_array_equal(read_image(File()), noise())
        assert Image.MAX_IMAGE_PIXELS == 1

    def test_threads(self, monkeypatch):
        sources = [encode(noise(), format) for format in ("TIFF", "PNG")] * 101
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)

        with ThreadPoolExecutor(7) as pool:
            for image in pool.map(read_image, sources):
                np.testing.assert_array_equal(image, noise())

        assert Image.MAX_IMAGE_PIXELS == 1
