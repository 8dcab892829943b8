"""Presets whose CNN is stored once."""

import numpy as np
import pytest

from keras_attention_apps.captioner.captions import LiteCaptioner
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.runtimes import RUNTIMES
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.models import CONFIG, WEIGHTS, update_sealed


@pytest.fixture(scope="module")
def folder(captioner, hard_captioner, tmp_path_factory):
    """A folder of presets: `hard` has the CNN of `soft`."""
    folder = tmp_path_factory.mktemp("presets")
    backbone = hard_captioner.network.backbone
    backbone.set_weights(captioner.network.backbone.get_weights())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Captioner, "presets", folder)
        captioner.save(folder / "soft")
        hard_captioner.save(folder / "hard", backbone_of="soft")
    hard_captioner.save(folder / "whole")
    return folder


@pytest.fixture(autouse=True)
def presets(folder, monkeypatch):
    for kind in (Captioner, LiteCaptioner):
        monkeypatch.setattr(kind, "presets", folder)


def test_a_preset_takes_its_cnn_from_another_one(folder):
    names = ("hard", "whole")
    weights = [Captioner.from_preset(name).network.get_weights() for name in names]

    for actual, expected in zip(*weights, strict=True):
        np.testing.assert_array_equal(actual, expected)
    sizes = [(folder / name / WEIGHTS).stat().st_size for name in names]
    assert sizes[0] < sizes[1]


def test_what_is_saved_again_has_its_own_cnn(tmp_path):
    Captioner.from_preset("hard").save(tmp_path / "again")

    assert "backbone_of" not in (tmp_path / "again" / CONFIG).read_text()
    Captioner.from_preset(tmp_path / "again")


def test_models_with_one_cnn_are_an_ensemble():
    assert Captioner.from_preset("soft+hard").is_ensemble


def test_the_file_of_the_cnn_is_one_of_the_model(folder):
    assert folder / "soft" / WEIGHTS in RUNTIMES.files("hard")


def test_only_an_equal_cnn_is_shared(tmp_path):
    other = Captioner.from_preset("whole")
    backbone = other.network.backbone
    backbone.set_weights([x + 1 for x in backbone.get_weights()])

    with pytest.raises(UserError, match="the CNN of the preset 'soft'"):
        other.save(tmp_path / "model", backbone_of="soft")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "its CNN is that of the preset 'gone', which is missing"),
        ("../soft", "is not the name of a preset: '../soft'"),
        (7, "is not the name of a preset: 7"),
        ("whole/", "is not the name of a preset: 'whole/'"),
        ("hard", "the preset 'hard' does not contain its own CNN"),
    ],
)
def test_a_wrong_name_is_an_error(tmp_path, name, message):
    Captioner.from_preset("hard").save(tmp_path / "model")
    update_sealed(tmp_path / "model" / CONFIG, {"backbone_of": name})

    with pytest.raises(UserError, match=message):
        Captioner.from_preset(tmp_path / "model")


def test_a_damaged_cnn_is_an_error(captioner, folder, tmp_path, monkeypatch):
    captioner.save(tmp_path / "soft")
    weights = tmp_path / "soft" / WEIGHTS
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    monkeypatch.setattr(Captioner, "presets", tmp_path)

    with pytest.raises(UserError, match=r"is not a complete captioner: .* is damaged"):
        Captioner.from_preset(folder / "hard")
