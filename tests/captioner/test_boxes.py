import numpy as np
import pytest
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.data.boxes import (
    check_boxes,
    coverage,
    pointing,
    viewed,
)


def test_coverage_by_hand():
    # Two rows and four columns; the box covers the right half and a quarter more.
    covered = coverage([(0.375, 0.5, 1.0, 1.0)], 2, 4).reshape(2, 4)

    np.testing.assert_allclose(covered, [[0, 0, 0, 0], [0, 0.5, 1, 1]])
    two = coverage([(0, 0, 0.125, 0.5), (0, 0, 0.25, 0.25)], 2, 4).reshape(2, 4)
    np.testing.assert_allclose(two[0], [0.5, 0, 0, 0])


def test_a_view_moves_boxes():
    boxes = [(0.2, 0.5, 0.4, 1.0), (0.9, 0.0, 1.0, 0.1)]
    view = (0.2, 0.0, 0.7, 1.0)

    (found,) = viewed(boxes, (view, False))
    np.testing.assert_allclose(found, (0, 0.5, 0.4, 1))
    (found,) = viewed(boxes, (view, True))
    np.testing.assert_allclose(found, (0.6, 0.5, 1, 1))


def test_a_single_box_equals_a_list_of_one():
    assert check_boxes({"dog": [0, 0, 1, 0.5]}) == {"dog": ((0, 0, 1, 0.5),)}
    two = [[0, 0, 1, 1], [0, 0, 0.5, 1]]
    assert check_boxes({"dog": two}) == {"dog": ((0, 0, 1, 1), (0, 0, 0.5, 1))}


def test_names_of_boxes_are_spelt_as_in_captions():
    one, two = (0, 0, 1, 0.5), (0, 0, 0.5, 1)
    boxes = {"Ma\u0308dchen": one, "m\u00e4dchen": two, "Red  ball": one, "\u6905": two}
    found = {"m\u00e4dchen": (one, two), "red ball": (one,), "\u6905": (two,)}
    assert check_boxes(boxes) == found


@pytest.mark.parametrize(
    "box",
    [
        [0, 0, 1],
        [1, 0, 0, 1],
        [0, 0, 2, 1],
        [0, 0, 1, float("nan")],
        [0, 0, 1, 10**400],
        "dog",
    ],
)
def test_a_wrong_box_is_refused(box):
    with pytest.raises(ValueError):
        check_boxes({"dog": box})


def test_pointing_counts_words_that_name_an_object():
    boxes = check_boxes({"Dog": (0.5, 0, 1, 1), "cat": (0, 0, 0.5, 1)})
    words = ["a", "dog", "sees", "cat", "dog"]
    weights = np.array([[[1.0, 0.0]], [[0.4, 0.6]], [[1, 0]], [[0, 1]], [[0.9, 0.1]]])
    caption = Caption(
        " ".join(words), words, 0.0, 0.0, 0.0, [1.0] * len(words), weights
    )

    assert pointing([caption], [boxes]) == (1, 3)
    assert pointing([caption], [{}]) == (0, 0)
