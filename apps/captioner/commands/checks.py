"""Checks of the options that several commands have."""

from keras_attention_apps.captioner.captions import PRESETS
from keras_attention_apps.captioner.config import ModelConfig
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.presets import is_litert, member_names, read_config


def check_inference(chosen):
    """Raise a `UserError` if `--inference` would have no effect.

    Of a LiteRT file all options are fixed, so that loading it refuses the option.

    Args:
        chosen: The `ChosenModel`.
    """
    if chosen.inference is None or is_litert(chosen.model):
        return
    where = {"presets": PRESETS, "noun": "captioner"}
    members = member_names(chosen.model, **where)
    configs = [read_config(name, kind=ModelConfig, **where) for name in members]
    kinds = sorted({config.attention for config in configs})
    if "hard" not in kinds:
        raise UserError(
            "--inference needs a model with hard attention. Received: "
            f"{chosen.model!r}, with {' and '.join(kinds)} attention"
        )
