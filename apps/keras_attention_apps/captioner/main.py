"""The command line: `captioner caption`, `alt`, `train` and the other commands."""

import sys

from keras_attention_apps.captioner import config
from keras_attention_apps.common import cli

COMMANDS = {
    "caption": config.CaptionConfig,
    "alt": config.AltConfig,
    "evaluate": config.EvaluateConfig,
    "calibrate": config.CalibrateConfig,
    "export": config.ExportConfig,
    "scenes": config.ScenesConfig,
    "web": config.WebConfig,
    "serve": config.ServeConfig,
    "train": config.TRAINING,
    "train-scenes": config.SCENES,
}
TEXTS = {
    "train-scenes": "Train a captioner on simple images, such as those of captioner "
    "scenes.\n\nLike train, with the defaults of a small network that learns such "
    "images in minutes, from random weights."
}


def main(argv=None):
    """Run the program with these arguments, and return the exit code."""
    return cli.main(
        "captioner",
        "Caption images, and show where the model looked for every word.",
        COMMANDS,
        call,
        presets=config.PRESETS,
        load_task=_load_task,
        argv=argv,
        texts=TEXTS,
    )


def call(options):
    """Run the command with these options; each imports only what it needs."""
    match options:
        case config.CaptionConfig():
            from keras_attention_apps.captioner.commands.caption import caption as run
        case config.AltConfig():
            from keras_attention_apps.captioner.commands.alt import alt as run
        case config.EvaluateConfig():
            from keras_attention_apps.captioner.commands.evaluate import evaluate as run
        case config.CalibrateConfig():
            from keras_attention_apps.captioner.commands import evaluate

            run = evaluate.calibrate
        case config.ExportConfig():
            from keras_attention_apps.captioner.commands.export import export as run
        case config.ScenesConfig():
            from keras_attention_apps.captioner.commands.scenes import scenes as run
        case config.WebConfig():
            with cli.needing("web"):
                from keras_attention_apps.captioner.web import serve_page as run
        case config.ServeConfig():
            with cli.needing("serve"):
                from keras_attention_apps.captioner.serve import serve as run
        case config.TrainConfig():
            from keras_attention_apps.captioner.training.train import train as run
    return run(options)


def _load_task():
    from keras_attention_apps.captioner.inference import Captioner

    return Captioner


if __name__ == "__main__":
    sys.exit(main())
