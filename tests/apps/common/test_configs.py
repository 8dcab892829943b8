"""Values of any kind in the `config.json` of a model are refused with one line."""

import json

import pytest

from keras_attention_apps.common import models
from keras_attention_apps.common.confidence import Described
from keras_attention_apps.common.errors import UserError

CALIBRATION = {"data": "x", "count": 1, "levels": [0.5], "quantiles": [-1.0]}
CONFIDENCE = {"data": ["x"], "count": 1, "bias": 0.0, "weights": {"length": 1.0}}
CONFIDENCE |= dict.fromkeys(("threshold", "auc", "doubtful_below"), 0.5)


def read(folder, content):
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "config.json").write_text(text)
    with models.loading(folder, "model"):
        Described().read_description(models.read_sealed(folder / "config.json"))


@pytest.mark.parametrize("depth", [900, 990, 100_000])
def test_deeply_nested_values_are_refused_or_ignored(tmp_path, depth):
    nested = "[" * depth + "]" * depth
    try:
        read(tmp_path, f'{{"other": {nested}}}')
    except UserError as error:
        assert "nested too deeply" in str(error)
    with pytest.raises(UserError):
        read(tmp_path, f'{{"purpose": {nested}}}')


@pytest.mark.parametrize(
    "value", [None, True, -1, 10**400, "0.5", [], {}, float("nan"), float("inf")]
)
@pytest.mark.parametrize("name", ["bias", "threshold", "count"])
def test_numbers_of_a_confidence_are_checked(tmp_path, name, value):
    if name == "count" and value == 10**400:
        return
    if name == "bias" and value == -1:
        return
    with pytest.raises(UserError, match="is not a complete model: "):
        read(tmp_path, {"confidence": {**CONFIDENCE, name: value}})


def test_errors_show_the_beginning_of_a_long_value(tmp_path):
    for name, value in (("levels", "x" * 10**6), ("data", [0] * 10**6)):
        with pytest.raises(UserError) as error:
            read(tmp_path, {"calibration": {**CALIBRATION, name: value}})
        assert len(str(error.value)) < 400 and "\n" not in str(error.value)


def test_a_file_of_options_has_a_greatest_size(tmp_path):
    with pytest.raises(UserError, match=r"config\.json has more than 32,000,000"):
        read(tmp_path, " " * 32_000_001)


def test_a_model_is_usable_when_an_update_of_it_is_killed(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    (tmp_path / "lexicon").write_bytes(b"old")
    models.write_sealed(path, {"purpose": "x"}, ["lexicon"])
    write_json = models.files.write_json
    for calls in (0, 1):
        written = []

        def fails(path, value, written=written, calls=calls):
            if len(written) == calls:
                raise KeyboardInterrupt
            written.append(value)
            write_json(path, value)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(models.files, "write_json", fails)
            models.update_sealed(path, {"count": 2}, {"lexicon": b"new"})
        content = models.read_sealed(path)
        listed = models.read_listed(tmp_path, content, "lexicon")
        assert listed == (b"old" if calls == 0 else None)

    models.update_sealed(path, {"count": 2}, {"lexicon": b"new"})
    content = models.read_sealed(path)
    assert models.read_listed(tmp_path, content, "lexicon") == b"new"
    assert (content["purpose"], content["count"]) == ("x", 2)
