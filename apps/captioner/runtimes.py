"""The runtimes of a captioner: Keras and LiteRT."""

from keras_attention_apps.common.runtimes import Runtimes

RUNTIMES = Runtimes(
    keras="keras_attention_apps.captioner.inference:Captioner",
    litert="keras_attention_apps.captioner.litert:LiteCaptioner",
    few=10_000,
)
