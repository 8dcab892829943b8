"""The classes that translate: on Keras, on LiteRT, and on CTranslate2."""

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.models import Runtimes, member_folders, read_config
from keras_attention_apps.nmt.config import PRESETS, ModelConfig
from keras_attention_apps.nmt.translations import LiteTranslator


def _on_keras():
    # Keras takes seconds to import.
    from keras_attention_apps.nmt.inference import Translator

    return Translator


def _on_ctranslate2():
    from keras_attention_apps.nmt.ctranslate2_runtime import CTranslate2Translator

    return CTranslate2Translator


def _converts(model):
    """Return whether CTranslate2 runs a model, from its configuration alone."""
    noun = LiteTranslator.noun
    try:
        first, *others = member_folders(model, presets=PRESETS, noun=noun)
        config = read_config(first, kind=ModelConfig, noun=noun)
    except UserError:
        return False
    is_known = config.norm_first is not False and config.activation in (None, "relu")
    is_transformer = config.attention == "self-attention" and not config.copy
    return not others and is_transformer and is_known


RUNTIMES = Runtimes(_on_keras, LiteTranslator, _on_ctranslate2, _converts)
