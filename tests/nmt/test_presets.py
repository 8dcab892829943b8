import pytest
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.translations import PRESETS

NAMES = sorted(folder.name for folder in PRESETS.iterdir() if folder.is_dir())
pytestmark = pytest.mark.usefixtures("loaded_once", "eager")


def test_there_is_one_of_each_kind():
    kinds = {Translator.from_preset(name).config.attention for name in NAMES}

    assert kinds == {"bahdanau", "luong", "self-attention"}


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_translates_and_aligns(name):
    translator = Translator.from_preset(name)

    translation = translator.translate("Two dogs are playing in the snow.")

    assert translation.text == "Zwei Hunde spielen im Schnee."
    for pair in [("dogs", "Hunde"), ("snow.", "Schnee.")]:
        source, target = translation.source_words, translation.words
        assert (source.index(pair[0]), target.index(pair[1])) in translation.alignment
