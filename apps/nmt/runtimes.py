"""The runtimes of a translator: Keras and LiteRT."""

from keras_attention_apps.common.models import Runtimes

RUNTIMES = Runtimes(
    keras="keras_attention_apps.nmt.inference:Translator",
    litert="keras_attention_apps.nmt.litert:LiteTranslator",
    # To count them, nmt translate reads up to this many lines, and one more, before it
    # translates the first.
    max_litert_inputs=1000,
)
