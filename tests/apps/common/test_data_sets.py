import collections
from pathlib import Path

import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.training.data_sets import (
    Mixture,
    check_data_sets,
    combined_scores,
    formatted_scores,
    validation_summary,
)

BOTH = (Path("a"), Path("b"))


def test_an_epoch_goes_through_data_sets_by_their_weights():
    mixture, random = Mixture([3, 7, 5], [2, 0.4, 1.4]), np.random.default_rng(1)
    halves = set()
    for _ in range(9):
        counts = collections.Counter(mixture.draw(random).tolist())
        drawn = [counts[i] for i in range(15)]
        assert drawn[:3] == [2, 2, 2]
        # 2.8 and 7 examples.
        assert sorted(drawn[3:10]) == [0, 0, 0, 0, 1, 1, 1]
        assert sorted(drawn[10:]) == [1, 1, 1, 2, 2]
        assert len(mixture) == sum(drawn)
        halves.add(tuple(drawn[3:10]))
    assert len(halves) > 1
    assert len(Mixture([7], [0.01]).draw(random)) == 1


def test_equal_weights_draw_a_permutation_as_before_there_were_weights():
    for options in ([[11]], [[4, 7]], [[11], [1.0]]):
        drawn = Mixture(*options).draw(np.random.default_rng(3))
        np.testing.assert_array_equal(drawn, np.random.default_rng(3).permutation(11))


def test_all_examples_are_split_into_those_of_each_data_set():
    assert Mixture([1, 3], [1, 2]).split("abcd") == ["a", "bcd"]


@pytest.mark.parametrize(
    "data, weights, message",
    [
        ((), (), "expected a data set: --data"),
        ((*BOTH, BOTH[0]), (), "Received twice: 'a'"),
        (BOTH, (1.0,), "one number for each data set, 2. Received: 1"),
        (BOTH, (1.0, 0.0), "above 0. Received: 0.0"),
        (BOTH, (1.0, float("nan")), "above 0. Received: nan"),
    ],
)
def test_wrong_data_sets_and_weights_are_errors(data, weights, message):
    with pytest.raises(UserError, match=message):
        check_data_sets(data, weights)


def test_metrics_of_several_data_sets_and_their_mean():
    scores = {"a": {"bleu": 10.0, "cider": 50.0}, "b": {"bleu": 20.0}}

    combined = {"bleu": 15.0, "bleu a": 10.0, "cider a": 50.0, "bleu b": 20.0}
    assert combined_scores(scores) == combined
    text = "a: bleu 10.00  cider 50.00\nb: bleu 20.00\nmean: bleu 15.00"
    assert formatted_scores(scores, digits=2) == text
    assert combined_scores({"a": scores["a"]}) == scores["a"]
    assert formatted_scores({"b": scores["b"]}) == "bleu 20.0"


def test_few_validation_examples_are_named():
    assert "which is too few" in validation_summary(99, "pair")
    assert validation_summary(1100, "pair") == "1,100 pairs for validation"
