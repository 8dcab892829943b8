"""The runtimes of a translator: Keras and LiteRT."""

from keras_attention_apps.common.runtimes import Runtimes

RUNTIMES = Runtimes(
    keras="keras_attention_apps.nmt.inference:Translator",
    litert="keras_attention_apps.nmt.litert:LiteTranslator",
    # One more line than this is read before the first is translated.
    few=1000,
)
