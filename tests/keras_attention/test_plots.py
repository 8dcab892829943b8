import itertools
import re

import keras
import numpy as np
import pytest

from attention_testing.combinations import covering
from keras_attention import attention_heatmap, attention_overlay, attention_text

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


@pytest.mark.parametrize("draw", [attention_overlay, attention_heatmap])
def test_returns_a_figure_and_leaves_pyplot_alone(draw, image, monkeypatch):
    import matplotlib
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    # A library does not open windows.
    monkeypatch.setattr(pyplot, "show", pytest.fail)
    monkeypatch.setattr(Figure, "show", pytest.fail)
    settings = dict(matplotlib.rcParams)

    if draw is attention_overlay:
        figure = draw(image, WORDS, one_hot((0, 0), (1, 2), (2, 4)))
    else:
        figure = draw(np.eye(3), WORDS, WORDS)

    assert isinstance(figure, Figure)
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == settings


@pytest.mark.parametrize(("words", "columns"), [(1, 5), (4, 5), (5, 5), (3, 2)])
def test_one_panel_for_the_image_and_one_for_each_word(image, words, columns):
    maps = one_hot(*[(1, 1)] * words)

    # Words may be any iterable, of anything.
    figure = attention_overlay(image, iter(range(words)), maps, columns=columns)

    panels = drawn(figure)
    assert [x.get_title() for x in panels] == ["image", *map(str, range(words))]
    np.testing.assert_array_equal(picture(panels[0]), image)
    starts = {axis.get_subplotspec().colspan.start for axis in panels}
    assert len(starts) == min(columns, words + 1)


def test_brightest_place_is_where_the_weight_is(image):
    cells = [(0, 0), (2, 4), (0, 4), (1, 2)]

    figure = attention_overlay(image, ["w"] * len(cells), one_hot(*cells))

    for axis, (row, column) in zip(drawn(figure)[1:], cells, strict=True):
        brightness = picture(axis).mean(-1)
        assert brightness.shape == (HEIGHT, WIDTH)
        y, x = np.unravel_index(brightness.argmax(), brightness.shape)
        assert int(y * ROWS / HEIGHT) == row
        assert int(x * COLUMNS / WIDTH) == column
        # The side of the image without weight is dark.
        opposite = brightness[::-1, ::-1][y, x] if (row, column) != (1, 2) else 0
        assert opposite < 0.5 * brightness.max()


def test_even_weights_show_the_image_as_it_is(image):
    figure = attention_overlay(image, ["w"], np.full((1, ROWS, COLUMNS), 1 / 15))

    np.testing.assert_allclose(picture(drawn(figure)[1]), image / 255, atol=1e-6)


def test_boxes_show_the_sum_of_their_weights(image):
    boxes = [[0.0, 0.0, 0.5, 1.0], [0.25, 0.0, 1.0, 0.5], [0.9, 0.9, 1.0, 1.0]]
    weights = [[0.25, 0.7, 0.05], [0.9, 0.1, 0.0]]
    figure = attention_overlay(image, ["one", "two"], weights, boxes=boxes)

    brightness = picture(drawn(figure)[1]).mean(-1)
    # Pixels in the first and second box, the second, the first, the third, and none.
    both, second, first, third, none = (
        brightness[y, x] for y, x in ((2, 25), (2, 60), (28, 5), (30, 70), (20, 50))
    )
    assert both == pytest.approx(200 / 255)
    assert both > second > first > third > none
    outlines = [axis.patches[0].get_bbox().bounds for axis in drawn(figure)[1:]]
    expected = 0.25 * WIDTH - 0.5, -0.5, 0.75 * WIDTH, 0.5 * HEIGHT
    assert outlines[0] == pytest.approx(expected)
    assert outlines[1] == pytest.approx((-0.5, -0.5, 0.5 * WIDTH, HEIGHT))


SQUARE = one_hot((0, 2), rows=3, columns=3)
NOISE = np.random.default_rng(1).integers(256, size=(HEIGHT, WIDTH, 3)).astype("uint8")


@pytest.mark.parametrize(
    ("arguments", "same_arguments"),
    [
        ({"weights": SQUARE.reshape(1, 9)}, {"weights": SQUARE}),
        (
            {"weights": [[1.0]], "boxes": [[-0.5, 0.25, 0.5, 1.5]]},
            {"weights": [[1.0]], "boxes": [[0.0, 0.25, 0.5, 1.0]]},
        ),
        (
            {"image": NOISE / 255, "weights": SQUARE},
            {"image": NOISE, "weights": SQUARE},
        ),
    ],
    ids=["flat weights, row by row", "boxes end at the image", "image of floats"],
)
def test_overlays_look_the_same(image, arguments, same_arguments):
    actual, expected = (
        attention_overlay(**{"image": image, "words": ["w"], **chosen})
        for chosen in (arguments, same_arguments)
    )

    for axes in zip(drawn(actual)[1:], drawn(expected)[1:], strict=True):
        np.testing.assert_allclose(*map(picture, axes))


def test_weights_may_be_those_of_a_layer_that_learns(image):
    scores = keras.Variable(np.zeros((1, ROWS * COLUMNS), "float32"))
    weights = keras.ops.softmax(scores)

    grid = keras.ops.reshape(weights, (1, ROWS, COLUMNS))
    assert len(drawn(attention_overlay(image, ["w"], grid))) == 2
    words = [str(i) for i in range(ROWS * COLUMNS)]
    assert attention_heatmap(weights, words, ["w"]).axes


def test_weights_of_zero_are_dark_and_finite(image):
    figure = attention_overlay(image, ["w"], np.zeros((1, ROWS, COLUMNS)))

    brightness = picture(drawn(figure)[1])
    assert np.isfinite(brightness).all()
    assert brightness.max() < 0.5


def test_title_is_the_sentence_unless_given(image):
    weights = one_hot((0, 0), (1, 2), (2, 4))

    sentence = attention_overlay(image, WORDS, weights)
    figure = attention_overlay(image, WORDS, weights, title="Caption", width=7.0)

    assert sentence.get_suptitle() == "a dog runs"
    assert figure.get_suptitle() == "Caption"
    assert figure.get_figwidth() == 7


IMAGE_SHAPE = "image must have the shape (height, width, 3). Received: "
MAP_SHAPE = "weights must have the shape (1, rows, columns), one map for each word."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({"image": np.zeros(shape)}, f"{IMAGE_SHAPE}{shape}")
            for shape in [(31, 71), (31, 71, 4), (1, 31, 71, 3), (0, 71, 3)]
        ),
        *(
            ({"weights": np.zeros(shape)}, f"{MAP_SHAPE}*Received: {shape}")
            for shape in [(3, 5), (2, 3, 5), (3,), (3, 3, 5, 1)]
        ),
        *(
            ({"boxes": np.zeros(boxes), "weights": np.ones(weights)}, "(regions, 4)")
            for boxes, weights in [
                ((3, 4), (1, 2)),
                ((2, 3), (1, 2)),
                ((2, 4), (1, 1, 2)),
            ]
        ),
        ({"image": np.full((5, 7, 3), 255.0)}, "must not exceed 1*: float64"),
        ({"columns": 0}, "columns must be a positive integer. Received: 0"),
        ({"weights": [[[np.nan]]]}, "weights must be finite and not negative*nan"),
        ({"weights": [[[-0.5]]]}, "weights must be finite and not negative*-0.5"),
    ],
)
def test_wrong_arguments_of_an_overlay_are_named(image, changes, message):
    arguments = {"image": image, "words": ["w"], "weights": [[[1.0]]], **changes}

    with pytest.raises(ValueError, match=".*".join(map(re.escape, message.split("*")))):
        attention_overlay(**arguments)


SOURCE = ["the", "cat", "sleeps", "very", "peacefully"]
TARGET = ["le", "chat", "dort"]


@pytest.fixture
def weights():
    rng = np.random.default_rng(1)
    return rng.dirichlet(np.ones(len(SOURCE)), size=len(TARGET))


def texts(labels):
    return [label.get_text() for label in labels]


def inches(axis):
    """Left, bottom, right and top."""
    return axis.get_position().extents * np.tile(axis.figure.get_size_inches(), 2)


def test_heatmap_shows_every_weight_beside_its_words(weights):
    figure = attention_heatmap(weights, SOURCE, TARGET)

    grid, _ = figure.axes
    np.testing.assert_array_equal(picture(grid), weights)
    assert texts(grid.get_xticklabels()) == SOURCE
    assert texts(grid.get_yticklabels()) == TARGET
    np.testing.assert_array_equal(grid.get_xticks(), range(len(SOURCE)))
    np.testing.assert_array_equal(grid.get_yticks(), range(len(TARGET)))
    # The first target word is on top, and the source words are above it.
    bottom, top = grid.get_ylim()
    assert bottom > top
    assert grid.xaxis.get_ticks_position() == "top"


@pytest.mark.parametrize("largest", [0.2, 1.0])
def test_scale_of_the_heatmap_is_always_zero_to_one(weights, largest):
    figure = attention_heatmap(weights / weights.max() * largest, SOURCE, TARGET)

    grid, bar = figure.axes
    assert grid.images[0].get_clim() == (0, 1)
    assert texts(bar.get_yticklabels()) == ["0.0", "0.5", "1.0"]
    dark, light = (sum(grid.images[0].to_rgba(x)[:3]) for x in (1.0, 0.0))
    assert dark < light


@pytest.mark.parametrize(
    ("shape", "title"),
    covering(
        [(1, 1), (60, 60), (3, 5), (40, 7)],
        ["A title that is longer than three words", None],
        strength=1,
    ),
)
def test_everything_fits_and_cells_are_square(shape, title):
    rows, columns = shape
    source = [f"{'extra' * (n % 3)}ordinary{n}" for n in range(columns)]
    target = [f"außer{'gewöhnlich' * (n % 3)}{n}" for n in range(rows)]

    figure = attention_heatmap(np.zeros((rows, columns)), source, target, title=title)

    grid, bar = figure.axes
    left, bottom, right, top = inches(grid)
    cell = (right - left) / columns
    assert cell == pytest.approx((top - bottom) / rows)
    assert cell > 0.15
    assert min(x.get_fontsize() for x in grid.get_xticklabels()) >= 7
    drawn = figure.get_tightbbox()
    assert min(drawn.x0, drawn.y0) > 0
    assert drawn.x1 < figure.get_figwidth()
    assert drawn.y1 < figure.get_figheight()
    # Neighbouring labels do not touch, and the bar is as high as the grid.
    for labels in (grid.get_xticklabels(), grid.get_yticklabels()):
        boxes = [label.get_window_extent() for label in labels]
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))
    np.testing.assert_allclose(inches(bar)[[1, 3]], [bottom, top])
    assert right < inches(bar)[0] < inches(bar)[2] < right + 0.5
    assert grid.get_title() == (title or "")


@pytest.mark.parametrize(
    ("source", "angle"), [(["a", "b", "c"], 0), (["a", "very", "long"], 90)]
)
def test_source_words_are_turned_where_they_are_long(source, angle):
    figure = attention_heatmap(np.zeros((2, 3)), source, ["extraordinary", "word"])

    grid = figure.axes[0]
    assert {label.get_rotation() for label in grid.get_xticklabels()} == {angle}
    assert {label.get_rotation() for label in grid.get_yticklabels()} == {0}


def characters(file):
    from matplotlib import font_manager

    return set(font_manager.get_font(font_manager.findfont(file)).get_charmap())


def test_words_of_any_script_can_be_drawn(tmp_path):
    # Of the fonts that come with matplotlib, another one than the default has them.
    lacking = sorted(characters("STIXGeneral") - characters("DejaVu Sans"))
    rare = [chr(c) for c in lacking if chr(c).isprintable()][:2]
    source = ["мама", "γάτα", "שלום", "مرحبا", rare[0]]
    target = ["$", "\\frac", "$x^$", rare[1]]

    figures = [
        attention_heatmap(np.zeros((4, 5)), source, target, title="$^"),
        attention_overlay(np.zeros((9, 9, 3)), rare, np.zeros((2, 4)), title=rare[0]),
    ]

    for figure in figures:
        figure.savefig(tmp_path / "figure.pdf")
    label = figures[0].axes[0].get_xticklabels()[-1]
    families = label.get_fontfamily()
    assert any(ord(rare[0]) in characters(x) for x in families[1:])
    assert not any("Last Resort" in family for family in families)


def test_words_of_the_default_font_do_not_look_for_another(weights):
    import matplotlib

    figure = attention_heatmap(weights, SOURCE, TARGET)

    families = figure.axes[0].get_xticklabels()[0].get_fontfamily()
    assert families == matplotlib.rcParams["font.family"]


@pytest.mark.parametrize(
    ("weights", "words", "message"),
    [
        *(
            (np.zeros(shape), [SOURCE, TARGET], f"the shape (3, 5)*Received: {shape}")
            for shape in [(5, 3), (3, 4), (2, 5), (15,), (1, 3, 5)]
        ),
        (np.zeros((0, 5)), [SOURCE, []], "at least one*(0, 5)"),
        (np.zeros((3, 5)), [SOURCE], "weights (3, 5)"),
        *(
            ([[x, 0.0]], [["a", "b"], ["c"]], f"between 0 and 1*Received: *{x}")
            for x in (-0.1, 1.1, np.nan, np.inf)
        ),
    ],
)
def test_weights_that_do_not_fit_a_heatmap_are_named(weights, words, message):
    with pytest.raises(ValueError, match=".*".join(map(re.escape, message.split("*")))):
        attention_heatmap(weights, *words)


def test_rounding_errors_of_weights_are_drawn():
    attention_heatmap([[-1e-9, 1 + 1e-9]], [1, 2], ["b"])


def test_a_very_tall_image_makes_no_endless_figure():
    figure = attention_overlay(np.zeros((960, 2, 3), "uint8"), ["w"], one_hot((1, 1)))

    width, height = figure.get_size_inches()
    assert height < width
    assert len(drawn(figure)) == 2


def colours(figure):
    """The smallest and the largest weight of the colour scale."""
    return figure.axes[0].images[0].get_clim()


def test_darkest_colour_of_the_heatmap_can_be_chosen(weights):
    largest = weights.max()

    assert colours(attention_heatmap(weights, SOURCE, TARGET, vmax=0.25)) == (0, 0.25)
    figure = attention_heatmap(weights, SOURCE, TARGET, vmax="auto")
    assert colours(figure) == (0, largest)
    assert list(figure.axes[1].get_yticks()) == [0, largest / 2, largest]
    blank = attention_heatmap(np.zeros((1, 2)), ["a", "b"], ["c"], vmax="auto")
    assert colours(blank) == (0, 1)


@pytest.mark.parametrize("vmax", [0, -1.0, np.nan, np.inf, "largest"])
def test_scale_that_is_no_positive_number_is_named(vmax):
    with pytest.raises(ValueError, match=f'or "auto". Received: {vmax!r}'):
        attention_heatmap([0.5, 0.5], ["a", "b"], vmax=vmax)


def test_weights_of_one_text_are_one_row():
    figure = attention_heatmap([0.75, 0.25], ["good", "film"])

    np.testing.assert_array_equal(picture(figure.axes[0]), [[0.75, 0.25]])
    assert texts(figure.axes[0].get_yticklabels()) == [""]
    named = attention_heatmap([0.75, 0.25], ["good", "film"], ["review"])
    assert texts(named.axes[0].get_yticklabels()) == ["review"]


def spans(text):
    """The words of highlighted text: background, letters, weight and word."""
    return re.findall(
        r'<span style="[^"]*;background:rgb\(([\d,]+)\);color:(\w+)"'
        r' title="(.*?)">(.*?)</span>',
        text,
    )


def test_words_are_the_darker_the_larger_their_weights():
    page = attention_text(["a", "great", "film"], [0.0, 0.8, 0.2])
    text = attention_text(["so", "bad"], [0.5, 0.5], vmax=1.0)

    # Background: from white to rgb(8, 81, 156), here a quarter of the way.
    assert '<span style="padding:0.1em 0.2em" title="0.00">a</span>' in page
    assert spans(page) == [
        ("8,81,156", "white", "0.80", "great"),
        ("193,212,230", "black", "0.20", "film"),
    ]
    # With `vmax`, the scale can be that of others.
    assert {background for background, *_ in spans(text)} == {"132,168,206"}


def luminance(colour):
    values = [int(value) / 255 for value in colour.split(",")]
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values
    ]
    return np.dot(linear, [0.2126, 0.7152, 0.0722])


def test_letters_are_legible_on_every_background():
    """A contrast of 4.5, as WCAG 2.1 asks for."""
    words = spans(attention_text(["w"] * 101, np.linspace(0, 1, 101)))
    assert len(words) == 99

    for background, letters, *_ in words:
        lightness = luminance(background) + 0.05
        contrast = 1.05 / lightness if letters == "white" else lightness / 0.05
        assert contrast >= 4.5, background


def test_several_texts_may_be_padded():
    texts = [["good"], ["very", "bad"]]
    weights = keras.ops.convert_to_tensor([[1.0, 0.0], [0.25, 0.75]])

    page = attention_text(texts, weights, titles=["one", "two"])

    first, second = page.split("\n")
    assert [word for *_, word in spans(first)] == ["good"]
    assert [word for *_, word in spans(second)] == ["very", "bad"]
    assert "<strong>one</strong>" in first and "<strong>two</strong>" in second
    # Notebooks call this method.
    assert page._repr_html_() == page


def test_words_and_titles_are_escaped():
    page = attention_text(["<b>", "&"], [0.5, 0.5], titles="a < b")

    assert [word for *_, word in spans(page)] == ["&lt;b&gt;", "&amp;"]
    assert "<strong>a &lt; b</strong>" in page


def test_chosen_words_are_underlined():
    page = attention_text(["a", "b"], [0.5, 0.5], underlined=[False, True])

    assert re.findall(r"<(u|span) [^>]*>(\w)</\1>", page) == [("span", "a"), ("u", "b")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [0.5]}, "each of the 2 words, at least one. Received: (1,)"),
        ({"weights": [[0.5, 0.5]]}, "each of the 2 words, at least one. Received: (1"),
        ({"words": [], "weights": []}, "each of the 0 words"),
        ({"weights": [0.5, 1.5]}, "Received: 0.5 to 1.5"),
        ({"underlined": [True]}, "underlined must have 2 entries"),
        ({"words": [["a"], ["b"]], "weights": [[1.0]]}, "2 texts, weights of 1"),
        ({"vmax": "max"}, "Received: 'max'"),
    ],
)
def test_text_and_weights_that_do_not_fit_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        attention_text(**{"words": ["a", "b"], "weights": [0.5, 0.5], **arguments})
