"""Overlays of the attention: sheets, the names of their files, and open files."""

import base64
import dataclasses
import io
import os
import re
import threading
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attention_testing.repository import read
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.overlays import (
    CELL,
    DIMMED,
    GAP,
    SHADOW,
    caption_figure,
    dimming,
    draw_sheet,
    find_overlays,
    sentence,
    write_overlay,
)
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.output import plots


def caption_of(words, maps):
    probabilities = [0.5] * len(words)
    return Caption(" ".join(words), words, -1.0, -2.0, -0.7, probabilities, maps)


def pictures_of(sheet, count):
    """Return the pictures in the cells of a sheet, which are darker than the sheet."""
    dark = np.asarray(sheet.convert("L")) < 200
    left, *_ = np.flatnonzero(dark.sum(axis=0) > CELL / 2)
    starts = [x for x in range(left, sheet.width) if not (x - left) % (CELL + GAP)]
    tops = np.flatnonzero(dark[:, left + CELL // 2])
    rows = np.split(tops, np.flatnonzero(np.diff(tops) > 1) + 1)
    rows = [x for x in rows if len(x) > CELL / 2]
    pictures = [
        np.asarray(sheet)[row[0] : row[-1] + 1, x : x + CELL]
        for row in rows
        for x in starts
        if dark[row[0] + 50, x + 50 : x + 51].any()
    ]
    assert len(pictures) == count
    return pictures


def test_only_the_most_attended_place_is_not_dimmed():
    maps = np.array([[0.0, 0.0, 0.1], [0.0, 0.1, 0.8]])
    shares = dimming(maps, 90, 60)

    assert shares.shape == (60, 90)
    assert shares[-1, -1] == 0 and shares[0, 0] == 255
    assert (np.diff(shares[-1].astype(int)) <= 0).all()
    # A map with a smaller range has the same contrast, and a flat one is not dimmed.
    np.testing.assert_array_equal(dimming(0.5 + maps / 9, 90, 60), shares)
    assert not dimming(np.full((3, 3), 1 / 9), 9, 9).any()


def test_what_surrounds_a_small_peak_stays_visible():
    peaked = np.zeros((9, 9))
    peaked[4, 4] = 1.0
    shares = dimming(peaked, 90, 90)

    assert shares.min() == 0 and shares.max() == 255
    # Half a region away, a linear dimming would be about half as strong.
    linear = 255 * (1 - plots().enlarge(peaked, 90, 90))
    near = (linear > 100) & (linear < 200)
    assert near.any() and (shares[near] < 0.8 * linear[near]).all()
    # A broad map is dimmed linearly.
    broad = np.tile(np.linspace(0, 1, 9), (9, 1))
    smooth = plots().enlarge(broad, 90, 90)
    linear = 255 * (1 - smooth) / (1 - smooth.min())
    np.testing.assert_allclose(dimming(broad, 90, 90), linear, atol=1)


@pytest.mark.parametrize("colour", [(250, 120, 120), (120, 0, 0)])
def test_a_sheet_has_the_photograph_and_a_picture_of_every_word(colour):
    photograph = Image.new("RGB", (64, 64), colour)
    maps = np.zeros((3, 2, 2))
    maps[[0, 1, 2], [0, 1, 1], [0, 0, 1]] = 1.0
    sheet = draw_sheet(photograph, caption_of(["a", "red", "square"], maps))
    whole, *words = pictures_of(sheet, 4)

    assert whole.shape == (CELL, CELL, 3)
    inner = slice(20, -20)
    assert (whole[inner, inner] == colour).all()
    # What is too dark to become darker becomes blue.
    grey = np.dot(colour, (0.299, 0.587, 0.114)) * DIMMED
    dim = np.maximum(SHADOW, grey)
    for picture, bright, dark in zip(
        words, [(20, 20), (-20, 20), (-20, -20)], [(-20, -20), (20, -20), (20, 20)],
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(picture[bright], colour, atol=4)
        np.testing.assert_allclose(picture[dark], dim, atol=4)


@pytest.mark.parametrize("word", ["dog" * 60, "собака", "\u4e00\u53ea\u72d7", "\ue123"])
def test_words_of_every_length_and_script_are_drawn(word, recwarn):
    caption = caption_of([word] * 9, np.ones((9, 2, 2)) / 4)
    sheet = np.asarray(draw_sheet(Image.new("RGB", (30, 90), "white"), caption))

    # Letters reach neither the edges of the sheet nor the next word.
    edges = [sheet[:9], sheet[-9:], sheet[:, :20], sheet[:, -20:]]
    assert all((edge == 255).all() for edge in edges)
    assert (sheet < 99).any()
    assert not list(recwarn)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".pdf"])
def test_formats_of_sheets(suffix, tmp_path):
    photograph = Image.new("RGB", (64, 48), "black")
    target = tmp_path / f"maps{suffix}"
    write_overlay(photograph, caption_of(["dog"], np.ones((1, 2, 2)) / 4), target)

    start = {".png": b"\x89PNG", ".jpg": b"\xff\xd8\xff", ".pdf": b"%PDF"}[suffix]
    assert target.read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("images", "names"),
    [
        (["/photos/dog.jpg", "/cat.jpg"], ["dog", "cat"]),
        (["/p/dog.jpg", "/dog.png"], ["dog.jpg", "dog.png"]),
        (["/dog.jpg", "/p/dog.jpg", "/q/dog.png"], ["dog.jpg", "p-dog.jpg", "dog.png"]),
        (["/p/a.jpg", "/p/a.png", "/p/a.jpg.png"], ["p-a.jpg", "a.png", "a.jpg"]),
        (["/b/c.jpg", "/b-c.jpg", "/d/c.jpg"], ["b-c.jpg", "b-c", "d-c.jpg"]),
        (["/a-b/c.jpg", "/a/b/c.jpg"], ["2-c.jpg", "1-c.jpg"]),
    ],
)
def test_images_have_overlays_of_different_names_in_the_folder(tmp_path, images, names):
    paths = [Path(image) for image in images]
    overlays = find_overlays(tmp_path, paths, paths)

    assert overlays == {
        path: tmp_path / f"{name}.png" for path, name in zip(paths, names, strict=True)
    }


def test_an_image_that_is_named_twice_has_one_overlay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [Path("dog.jpg"), Path.cwd() / "dog.jpg", Path("cat.jpg")]
    overlays = find_overlays(tmp_path / "maps", paths, paths)

    assert [path.name for path in overlays.values()] == [
        "dog.png",
        "dog.png",
        "cat.png",
    ]


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
        assert image.width > 300


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


def test_figures_of_the_same_title_are_chosen_from_separately():
    maps = np.full((2, 3, 3), 1 / 9)
    caption = Caption("a dog", ["a", "dog"], -1.0, -2.0, -0.7, [0.5, 0.3], maps)
    photo = types.SimpleNamespace(preview=b"", width=4, height=3)

    figures = [caption_figure(photo, caption, "model", number) for number in (0, 1)]
    first, second = (set(re.findall('name="(.*?)"', x)) for x in figures)

    assert len(first) == len(second) == 1 and first != second
    assert "Unsure" not in figures[0]
    unsure = caption_figure(photo, dataclasses.replace(caption, unsure=True), "", 0)
    assert "Unsure: " in unsure


def test_the_caption_is_the_headline_and_the_alternative_text():
    maps = np.full((2, 3, 3), 1 / 9)
    caption = Caption('a "dog"', ["a", "dog"], -1.0, -2.0, -0.7, [0.5, 0.3], maps)
    photo = types.SimpleNamespace(preview=b"", width=4, height=3)
    figure = caption_figure(photo, caption, "model", 0)

    text = "A &quot;dog&quot;"
    assert f'role="img" aria-label="{text}"' in figure
    assert f'data-announce="Caption: {text}">{text}<' in figure
    assert f'data-copy="{text}"' in figure
    # No word is chosen, so that the photograph is not dimmed.
    assert re.findall('value="(.)" checked', figure) == ["0"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a dog", "A dog."),
        ("a dog.", "A dog."),
        ("\u4e00\u53ea\u72d7\u3002", "\u4e00\u53ea\u72d7\u3002"),
        ("", ""),
    ],
)
def test_sentences_of_captions(text, expected):
    assert sentence(text) == expected


def test_a_notebook_shows_the_photograph_and_the_words(tmp_path):
    maps = np.arange(18.0).reshape(2, 3, 3)
    caption = Caption("a dog", ["a", "dog"], -1.0, -2.0, -0.7, [0.5, 0.3], maps)
    path = tmp_path / "photo.png"
    Image.new("RGB", (900, 300), "red").save(path)

    markup = dataclasses.replace(caption, image=path)._repr_html_()
    assert markup.count('class="ka-layer"') == 2 and "A dog" in markup
    data = re.search(r"--photo:url\(data:image/jpeg;base64,(.*?)\)", markup)[1]
    with Image.open(io.BytesIO(base64.b64decode(data))) as photo:
        assert photo.size == (640, 213) and photo.getpixel((9, 9))[0] > 250
    names = [
        set(re.findall('name="(.*?)"', x)) for x in (markup, caption._repr_html_())
    ]
    assert len(names[0] | names[1]) == 2
    # The style of the page has no effect outside of the output.
    assert markup.startswith("<div><style>@scope {")

    path.unlink()
    without = dataclasses.replace(caption, image=path)._repr_html_()
    assert without.count('class="ka-layer"') == 2 and "--ratio:1.0000" in without
    assert "image" not in repr(caption)


def test_captions_remember_their_images_for_notebooks(captioner):
    images = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    assert captioner.caption(images[0]).image is images[0]
    assert [x.image for x in captioner.caption(images)] == images
    assert next(captioner.caption_each(images))[1][0].image is None


def test_all_style_sheets_dim_as_sheets_do():
    rule = "rgb({} {} {})".format(*SHADOW)
    for sheet in (
        "apps/keras_attention_apps/common/web/page.css",
        "apps/keras_attention_apps/common/training/report.css",
        "apps/browser/src/page/style.css",
    ):
        assert f"brightness({DIMMED})" in read(sheet) and rule in read(sheet)
