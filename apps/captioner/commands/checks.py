"""Checks of the options that several commands have."""

from keras_attention_apps.captioner.runtimes import member_configs
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.presets import is_litert


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
