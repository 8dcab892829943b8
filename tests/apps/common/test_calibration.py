"""When a model is unsure: quantiles, the threshold, and the files that have them."""

import dataclasses
import json
import types

import pytest

from keras_attention_apps.common.calibration import fit_calibration
from keras_attention_apps.common.confidence import Described
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.models import read_sealed, update_sealed, write_sealed


def outputs(*scores):
    return [types.SimpleNamespace(mean_log_probability=x) for x in scores]


def test_without_another_domain_the_lowest_2_percent_are_unsure():
    # 101 values from -1 to 0: the quantile of 2 % is the third of them.
    inside = outputs(*(-i / 100 for i in range(101)))
    calibration = fit_calibration("data", inside)

    assert calibration.limit == pytest.approx(-0.98)
    assert calibration.threshold is calibration.auc is None
    unsure = [calibration.is_unsure(x) for x in outputs(-0.99, -0.98, -0.1)]
    assert unsure == [True, False, False]
    assert calibration.share_unsure(inside) == pytest.approx(2 / 101)


def test_a_threshold_separates_domains_but_leaves_most_of_the_validation_data():
    # Of the six pairs, four are in order, and one is equal.
    inside = outputs(-0.1, -0.2, -0.5)
    calibration = fit_calibration("a", inside, "b", outputs(-0.2, -0.4))
    assert calibration.auc == pytest.approx(3.5 / 6, abs=1e-4)

    inside = outputs(*[-0.1] * 19, -0.6)
    calibration = fit_calibration("a", inside, "b", outputs(-0.5, -0.6, -0.7, -0.05))
    # One of twenty and three of four are below the lowest of the others.
    assert calibration.threshold == calibration.limit == -0.1
    assert calibration.share_unsure(inside) == 1 / 20

    inside = outputs(*(-i / 10 for i in range(10)))
    calibration = fit_calibration("a", inside, "b", outputs(*[-0.55] * 8, -0.85))
    # -0.5 would separate nearly all, but four of ten are below it.
    assert calibration.threshold == pytest.approx(-0.8)


def test_the_description_of_a_model_is_read_as_it_was_written(tmp_path):
    model, copy = Described(), Described()
    model.purpose = "English to German, everyday sentences"
    model.calibration = fit_calibration("a", outputs(-1, -2), "b", outputs(-3))
    path = tmp_path / "config.json"
    write_sealed(path, {"model": {}, **model.description})

    copy.read_description(read_sealed(path))

    assert copy.description == model.description
    assert copy.calibration == model.calibration
    copy.read_description({"model": {}})
    assert copy.description == {}


NO_QUANTILES = {"data": "a", "count": 1, "levels": [], "quantiles": []}
POSITIVE = {**NO_QUANTILES, "levels": [1], "quantiles": [2]}


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ({"purpose": "two\nlines"}, "one line"),
        ({"purpose": "x" * 201}, "at most 200"),
        ({"purpose": 3}, "purpose must be one line of .* Received: 3"),
        ({"calibration": {"data": "a"}}, "count is missing"),
        ({"calibration": []}, "expected an object with options"),
        ({"calibration": NO_QUANTILES}, "as many quantiles as levels"),
        ({"calibration": POSITIVE}, "quantiles must be at most 0"),
    ],
)
def test_an_invalid_description_is_refused(entries, error):
    with pytest.raises(UserError, match=error):
        Described().read_description(entries)


def test_entries_of_a_sealed_file_are_replaced(tmp_path):
    (tmp_path / "weights").write_text("1")
    path = tmp_path / "config.json"
    before = write_sealed(path, {"model": {"units": 3}}, names=["weights"])
    # Another file of weights keeps its wrong digest.
    (tmp_path / "weights").write_text("2")

    update_sealed(path, {"purpose": "tests"})

    after = read_sealed(path)
    assert after["digest"] != before["digest"]
    assert after["sha256"] == before["sha256"]
    assert after["model"] == {"units": 3} and after["purpose"] == "tests"
    path.write_text(json.dumps({**after, "purpose": "others"}))
    with pytest.raises(UserError, match="differs from its digest"):
        update_sealed(path, {})


def test_outputs_are_marked_only_with_a_calibration():
    @dataclasses.dataclass
    class Output:
        mean_log_probability: float
        unsure: bool | None = None
        features: dict | None = None

    model, output = Described(), Output(-3.0)
    assert model.marked(output).unsure is None
    model.calibrate(fit_calibration("data", [Output(-1.0), output]))
    assert model.marked(output).unsure is True
    assert model.marked(Output(-1.0)).unsure is False
