from pathlib import Path

import pytest
from keras_attention_apps.captioner.inference import PRESETS, Captioner

NAMES = sorted(folder.name for folder in PRESETS.iterdir() if folder.is_dir())
ROOT = Path(__file__).parents[2]


def test_there_is_one_of_each_kind():
    kinds = {Captioner.from_preset(name).config.attention for name in NAMES}

    assert kinds == {"hard", "soft"}


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_captions_the_sample_photograph(name):
    caption = Captioner.from_preset(name).caption(ROOT / "docs" / "photographer.jpg")

    assert {"man", "camera"} <= set(caption.words)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_small_and_tells_about_itself(name):
    files = list((PRESETS / name).iterdir())

    assert sum(file.stat().st_size for file in files) < 20e6
    card = (PRESETS / name / "README.md").read_text(encoding="utf-8")
    for heading in ("Scores", "Recipe", "Data and terms", "Limits"):
        assert f"\n## {heading}\n" in card


def test_all_that_is_installed_is_small():
    packages = ROOT / "keras_attention", ROOT / "apps"
    files = [file for package in packages for file in package.rglob("*.*")]
    files = [file for file in files if "__pycache__" not in file.parts]

    assert sum(file.stat().st_size for file in files if file.is_file()) < 40e6
