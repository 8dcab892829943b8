"""The runtimes of a captioner: Keras and LiteRT."""

from keras_attention_apps.captioner.captions import PRESETS
from keras_attention_apps.captioner.config import ModelConfig
from keras_attention_apps.common.presets import member_names, read_config
from keras_attention_apps.common.runtimes import Runtimes

RUNTIMES = Runtimes(
    keras="keras_attention_apps.captioner.inference:Captioner",
    litert="keras_attention_apps.captioner.litert:LiteCaptioner",
    max_litert_inputs=10_000,
)


def member_configs(model):
    """Return the `ModelConfig` of a captioner, or those of an ensemble, without Keras.

    Args:
        model: Name of a preset or folder, or several joined by `+`.

    Raises:
        UserError: If there is no such captioner.
    """
    where = {"presets": PRESETS, "noun": "captioner"}
    members = member_names(model, **where)
    return [read_config(name, kind=ModelConfig, **where) for name in members]
