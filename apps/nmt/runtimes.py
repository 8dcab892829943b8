"""What runs a translator."""

from keras_attention_apps.common.runtimes import Runtimes

RUNTIMES = Runtimes(
    keras="keras_attention_apps.nmt.inference:Translator",
    litert="keras_attention_apps.nmt.litert:LiteTranslator",
    few=300,
)
