"""The probability that an output is usable: the fit, its figures, and its files."""

import dataclasses
import json
import types

import numpy as np
import pytest

from keras_attention_apps.common import calibrate
from keras_attention_apps.common.calibration import (
    Figures,
    Judged,
    area_under_curve,
    fit_confidence,
)
from keras_attention_apps.common.confidence import Confidence
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.options import from_json

CONFIDENCE = Confidence(
    data=["a"],
    count=3,
    bias=1.0,
    weights={"x": 2.0, "y": -1.0},
    threshold=0.5,
    auc=0.9,
    doubtful_below=0.1,
)


def test_probability_worked_by_hand():
    # 1 + 2 * 3 - 1 * 7 = 0; a feature that is missing counts as 0.
    assert CONFIDENCE.probability({"x": 3.0, "y": 7.0}) == 0.5
    assert CONFIDENCE.probability({"x": 1.0}) == round(1 / (1 + np.exp(-3)), 4)
    # Huge features do not overflow.
    assert CONFIDENCE.probability({"x": 1e9}) == 1.0
    assert CONFIDENCE.probability({"x": -1e9}) == 0.0


def test_the_probability_is_at_most_that_of_the_domain():
    other = dataclasses.replace(
        CONFIDENCE, out_of_domain="b", domain_bias=0.0, domain_weights={"z": 1.0}
    )
    # Usable with 0.9526, of the domain with sigmoid(-2).
    assert other.probability({"x": 1.0, "z": -2.0}) == round(1 / (1 + np.exp(2)), 4)
    assert other.probability({"x": 1.0, "z": 9.0}) == CONFIDENCE.probability({"x": 1.0})
    assert other.is_unfamiliar({"z": -2.0}) and not other.is_unfamiliar({"z": 2.0})
    assert not CONFIDENCE.is_unfamiliar({"z": -2.0})


def logistic(count, seed):
    """Return outputs whose usability depends on one feature of two, by a sigmoid."""
    random = np.random.default_rng(seed)
    values = random.normal(0, 2, (count, 2))
    usable = random.random(count) < 1 / (1 + np.exp(-(1.5 * values[:, 0] - 0.5)))
    features = [{"signal": x, "noise": y, "constant": 4.0} for x, y in values.tolist()]
    return Judged(features, usable.tolist(), [[0.9, 0.5]] * count)


def test_the_fit_finds_the_weights_that_made_the_data():
    confidence, figures = fit_confidence(
        {"a": logistic(4000, 0), "b": logistic(400, 1)}
    )

    assert confidence.weights["signal"] == pytest.approx(1.5, abs=0.2)
    assert confidence.weights["noise"] == pytest.approx(0, abs=0.1)
    assert confidence.weights["constant"] == 0
    assert confidence.bias == pytest.approx(-0.5, abs=0.2)
    assert confidence.count == 4400 and confidence.data == ["a", "b"]
    # 5 % of the words of usable outputs are less probable.
    assert confidence.doubtful_below == 0.5
    # A larger threshold marks more.
    larger, more = fit_confidence({"a": logistic(400, 1)}, threshold=0.7)
    assert (confidence.threshold, larger.threshold) == (0.5, 0.7)
    assert more["a"].marked_usable > figures["b"].marked_usable
    for of_data in figures.values():
        assert of_data.auc == pytest.approx(confidence.auc, abs=0.05)
        assert of_data.marked_unusable > 0.7 > 0.4 > of_data.marked_usable


def test_the_fit_minimises_the_penalised_loss():
    # The gradient of a function that has no other minimum is zero.
    judged = logistic(300, 2)
    confidence, _ = fit_confidence({"a": judged})
    values = np.array([[x["noise"], x["signal"]] for x in judged.features])
    weights = np.array([confidence.weights["noise"], confidence.weights["signal"]])
    probabilities = 1 / (1 + np.exp(-(confidence.bias + values @ weights)))
    residual = (np.array(judged.usable) - probabilities) * 1000 / 300
    assert residual.sum() == pytest.approx(0, abs=1e-3)
    deviations = (values - values.mean(0)) / values.std(0)
    gradient = deviations.T @ residual - 3.0 * weights * values.std(0)
    np.testing.assert_allclose(gradient, 0, atol=1e-3)


def test_data_sets_count_alike():
    # In the small one, the feature says the opposite.
    many = Judged([{"x": 1.0}, {"x": -1.0}] * 500, [True, False] * 500, [[1.0]] * 1000)
    few = Judged([{"x": -1.0}, {"x": 1.0}] * 10, [True, False] * 10, [[1.0]] * 20)
    confidence, _ = fit_confidence({"many": many, "few": few})
    assert confidence.weights["x"] == pytest.approx(0, abs=1e-6)


def test_unclear_outputs_do_not_count():
    judged = logistic(200, 3)
    more = Judged(
        [*judged.features, *[{"signal": -5.0, "noise": 0.0, "constant": 4.0}] * 50],
        [*judged.usable, *[None] * 50],
        [*judged.words, *[[0.001]] * 50],
    )
    first, _ = fit_confidence({"a": judged})
    second, figures = fit_confidence({"a": more})
    assert second.weights == pytest.approx(first.weights, abs=1e-5)
    assert second.doubtful_below == first.doubtful_below
    assert figures["a"].usable + figures["a"].unusable == 200


def test_inputs_of_other_domains_are_told_apart_by_their_own_features():
    judged = logistic(300, 4)
    inside = Judged(
        [{**x, "light": 0.2 + 0.001 * i} for i, x in enumerate(judged.features)],
        judged.usable,
        judged.words,
    )
    others = [{"signal": 3.0, "noise": 0.0, "constant": 4.0, "light": 0.9}] * 40
    confidence, _ = fit_confidence({"a": inside}, ("charts", others), ("light",))
    assert "light" not in confidence.weights
    assert set(confidence.domain_weights) == {"light"}
    assert confidence.out_of_domain == "charts"
    assert all(confidence.is_unfamiliar(x) for x in others)
    familiar = [not confidence.is_unfamiliar(x) for x in inside.features]
    assert np.mean(familiar) > 0.9


def test_the_share_of_unsure_outputs_of_another_domain_is_printed(capsys):
    judged = logistic(200, 5)
    inside = [
        types.SimpleNamespace(features=x, word_probabilities=[0.9])
        for x in judged.features
    ]
    # Three of the four are surely unusable. The fifth has no features: it was copied.
    others = [
        types.SimpleNamespace(features=x and {"signal": x, "noise": 0.0})
        for x in (-9.0, -9.0, -9.0, 9.0, None)
    ]
    program = calibrate.Program(
        read=None,
        read_others=None,
        run=lambda model, inputs: inputs,
        judge=lambda outputs, references: references,
        domain_features=("none",),
    )
    search = {"beam_size": 4, "length_penalty": 1.0}
    model = types.SimpleNamespace(search_options=lambda: search)
    data = {"a": (inside, judged.usable)}
    calibrate._fitted("tiny", model, data, ("charts", others), program)

    printed = capsys.readouterr().out
    assert "tiny on 200 inputs of a, beam 4, length penalty 1.0" in printed
    assert printed.endswith("charts  unsure of 75.0% of 4\n")


def test_figures_worked_by_hand():
    figures = Figures.measured(
        [0.9, 0.4, 0.4, 0.1, 0.8], [True, True, False, False, None], 0.5
    )
    # Of the four pairs, three are in order, and one is equal.
    assert figures.auc == 3.5 / 4
    assert (figures.marked_usable, figures.marked_unusable) == (0.5, 1.0)
    assert "AUC 0.88, unsure of 100.0% of" in str(figures)
    assert "none" in str(Figures.measured([0.9], [True], 0.5))
    assert np.isnan(area_under_curve([], [1.0]))


def test_usable_outputs_alone_are_an_error():
    judged = Judged([{"x": 1.0}] * 3, [True, None, True], [[1.0]] * 3)
    with pytest.raises(UserError, match=r"usable and unusable.* Received: 2 and 0"):
        fit_confidence({"a": judged})


def test_a_file_is_read_as_it_was_written():
    content = json.loads(json.dumps(dataclasses.asdict(CONFIDENCE)))
    assert from_json(Confidence, content) == CONFIDENCE


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ({"bias": float("nan")}, "finite weights"),
        ({"weights": {"x": "much"}}, "weights must be an object"),
        ({"threshold": 2}, "threshold must be between 0 and 1"),
        ({"domain_bias": 1.0}, "given together"),
        ({"data": "a"}, "data must be a list"),
    ],
)
def test_damaged_files_are_errors(entries, error):
    with pytest.raises(UserError, match=error):
        from_json(Confidence, {**dataclasses.asdict(CONFIDENCE), **entries})
