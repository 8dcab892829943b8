import re

import numpy as np
import pytest

from keras_attention import attention_overlay

pytest.importorskip("matplotlib")

# Every dimension is a different prime, so that no two axes can be confused.
ROWS, COLUMNS = 3, 5
HEIGHT, WIDTH = 31, 71
WORDS = ["a", "dog", "runs"]


@pytest.fixture
def image():
    return np.full((HEIGHT, WIDTH, 3), 200, "uint8")


def one_hot(*cells, rows=ROWS, columns=COLUMNS):
    """One map for each cell, with all the weight on it."""
    weights = np.zeros((len(cells), rows, columns))
    for number, cell in enumerate(cells):
        weights[number][cell] = 1
    return weights


def drawn(figure):
    """The panels that show something."""
    return [axis for axis in figure.axes if axis.images]


def picture(axis):
    return np.asarray(axis.images[0].get_array())


def test_returns_a_figure_and_leaves_pyplot_alone(image, monkeypatch):
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    def shown(*arguments, **options):
        raise AssertionError("a library does not open windows")

    monkeypatch.setattr(pyplot, "show", shown)
    monkeypatch.setattr(Figure, "show", shown)

    figure = attention_overlay(image, WORDS, one_hot((0, 0), (1, 2), (2, 4)))

    assert isinstance(figure, Figure)
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize(("words", "columns"), [(1, 5), (4, 5), (5, 5), (3, 2)])
def test_one_panel_for_the_image_and_one_for_each_word(image, words, columns):
    names = [f"word {number}" for number in range(words)]

    figure = attention_overlay(
        image, names, one_hot(*[(1, 1)] * words), columns=columns
    )

    panels = drawn(figure)
    assert len(panels) == words + 1
    assert [axis.get_title() for axis in panels[1:]] == names
    np.testing.assert_array_equal(picture(panels[0]), image)
    assert len({axis.get_subplotspec().colspan.start for axis in panels}) == min(
        columns, words + 1
    )


def test_brightest_place_is_where_the_weight_is(image):
    cells = [(0, 0), (2, 4), (0, 4), (1, 2)]

    figure = attention_overlay(image, ["w"] * len(cells), one_hot(*cells))

    for axis, (row, column) in zip(drawn(figure)[1:], cells, strict=True):
        brightness = picture(axis).mean(-1)
        assert brightness.shape == (HEIGHT, WIDTH)
        y, x = np.unravel_index(brightness.argmax(), brightness.shape)
        assert int(y * ROWS / HEIGHT) == row
        assert int(x * COLUMNS / WIDTH) == column
        # The far side of the picture lies in the dark.
        opposite = brightness[::-1, ::-1][y, x] if (row, column) != (1, 2) else 0
        assert opposite < 0.5 * brightness.max()


def test_more_weight_is_more_light(image):
    weights = np.zeros((1, ROWS, COLUMNS))
    weights[0, 1, 0], weights[0, 1, 4] = 0.7, 0.3

    brightness = picture(drawn(attention_overlay(image, ["w"], weights))[1]).mean(-1)

    left, middle, right = (brightness[HEIGHT // 2, x] for x in (7, WIDTH // 2, 63))
    assert left > right > middle


def test_even_weights_show_the_image_as_it_is(image):
    figure = attention_overlay(image, ["w"], np.full((1, ROWS, COLUMNS), 1 / 15))

    np.testing.assert_allclose(picture(drawn(figure)[1]), image / 255, atol=1e-6)


def test_flat_weights_are_read_row_by_row(image):
    square = one_hot((0, 2), (2, 0), rows=3, columns=3)

    flat = attention_overlay(image, ["a", "b"], square.reshape(2, 9))
    grid = attention_overlay(image, ["a", "b"], square)

    for found, expected in zip(drawn(flat), drawn(grid), strict=True):
        np.testing.assert_array_equal(picture(found), picture(expected))


def test_float_images_look_like_those_of_integers(image):
    rng = np.random.default_rng(1)
    image = rng.integers(256, size=image.shape).astype("uint8")
    weights = one_hot((1, 2))

    of_integers = attention_overlay(image, ["w"], weights)
    of_floats = attention_overlay(image / 255, ["w"], weights)

    np.testing.assert_allclose(
        picture(drawn(of_floats)[1]), picture(drawn(of_integers)[1])
    )


def test_weights_of_zero_are_dark_and_finite(image):
    figure = attention_overlay(image, ["w"], np.zeros((1, ROWS, COLUMNS)))

    brightness = picture(drawn(figure)[1])
    assert np.isfinite(brightness).all()
    assert brightness.max() < 0.5


def test_title_is_the_sentence_unless_given(image):
    weights = one_hot((0, 0), (1, 2), (2, 4))

    sentence = attention_overlay(image, WORDS, weights)
    given = attention_overlay(image, WORDS, weights, title="Caption")

    assert sentence.get_suptitle() == "a dog runs"
    assert given.get_suptitle() == "Caption"


@pytest.mark.parametrize("words", [["$", "_", "$"], ["a", "\\frac", "$x^$"]], ids=repr)
def test_any_word_can_be_drawn(image, tmp_path, words):
    figure = attention_overlay(image, words, one_hot((0, 0), (1, 2), (2, 4)))

    figure.savefig(tmp_path / "overlay.png", dpi=20)

    assert (tmp_path / "overlay.png").read_bytes().startswith(b"\x89PNG")


def test_width_is_that_of_the_figure(image):
    figure = attention_overlay(image, WORDS, one_hot(*[(0, 0)] * 3), width=7.0)

    assert figure.get_figwidth() == 7


@pytest.mark.parametrize("shape", [(31, 71), (31, 71, 4), (1, 31, 71, 3)])
def test_image_of_the_wrong_shape_is_named(shape):
    message = f"image must have the shape (height, width, 3). Received: {shape}"

    with pytest.raises(ValueError, match=re.escape(message)):
        attention_overlay(np.zeros(shape), ["w"], one_hot((0, 0)))


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5), (3,), (3, 3, 5, 1)])
def test_weights_of_the_wrong_shape_are_named(image, shape):
    message = "weights must have the shape (3, rows, columns), one map for each word."

    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        attention_overlay(image, WORDS, np.zeros(shape))

    assert str(caught.value).endswith(f"Received: {shape}")
