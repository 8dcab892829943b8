"""The two classes that caption: on Keras, and on LiteRT."""

from keras_attention_apps.captioner.captions import LiteCaptioner
from keras_attention_apps.common.models import Runtimes


def _on_keras():
    # Keras takes seconds to import.
    from keras_attention_apps.captioner.inference import Captioner

    return Captioner


RUNTIMES = Runtimes(_on_keras, LiteCaptioner)
