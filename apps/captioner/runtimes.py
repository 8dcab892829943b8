"""The runtimes of a captioner: Keras and LiteRT."""

from keras_attention_apps.captioner.config import PRESETS, ModelConfig
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import is_litert
from keras_attention_apps.common.models import Runtimes, member_names, read_config


def _on_keras():
    from keras_attention_apps.captioner.inference import Captioner

    return Captioner


def _on_litert():
    from keras_attention_apps.captioner.litert import LiteCaptioner

    return LiteCaptioner


RUNTIMES = Runtimes(_on_keras, _on_litert, max_litert_inputs=10_000)


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


def check_inference(chosen):
    """Raise a `UserError` if `--inference` would have no effect.

    A LiteRT file is not checked here: loading it raises the error.

    Args:
        chosen: The `ChosenModel`.
    """
    if chosen.inference is None or is_litert(chosen.name):
        return
    kinds = sorted({config.attention for config in member_configs(chosen.name)})
    if "hard" not in kinds:
        raise UserError(
            "--inference needs a model with hard attention. Received: "
            f"{chosen.name!r}, with {' and '.join(kinds)} attention"
        )
