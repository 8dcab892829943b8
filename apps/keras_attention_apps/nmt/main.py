"""The command line: `nmt translate`, `train`, `evaluate` and the other commands."""

import sys

from keras_attention_apps import nmt
from keras_attention_apps.common import cli
from keras_attention_apps.nmt import config

COMMANDS = {
    "translate": config.TranslateConfig,
    "align": config.AlignConfig,
    "evaluate": config.EvaluateConfig,
    "calibrate": config.CalibrateConfig,
    "export": config.ExportConfig,
    "import": config.ImportConfig,
    "web": config.WebConfig,
    "serve": config.ServeConfig,
    "train": config.TRAINING,
}


def main(argv=None):
    """Run the program with these arguments, and return the exit code."""
    return cli.main(
        "nmt",
        "Translate, and show word alignments.",
        COMMANDS,
        call,
        presets=config.PRESETS,
        load_task=lambda: nmt.Translator,
        argv=argv,
    )


def call(options):
    """Run the command with these options; each imports only what it needs."""
    match options:
        case config.TranslateConfig():
            from keras_attention_apps.nmt.commands.translate import translate as run
        case config.AlignConfig():
            from keras_attention_apps.nmt.commands.align import align as run
        case config.EvaluateConfig():
            from keras_attention_apps.nmt.commands.evaluate import evaluate as run
        case config.CalibrateConfig():
            from keras_attention_apps.nmt.commands.evaluate import calibrate as run
        case config.ExportConfig():
            from keras_attention_apps.nmt.commands.export import export as run
        case config.ImportConfig():
            from keras_attention_apps.nmt.commands.import_model import (
                import_model as run,
            )
        case config.WebConfig():
            with cli.needing("web"):
                from keras_attention_apps.nmt.web import serve_page as run
        case config.ServeConfig():
            with cli.needing("serve"):
                from keras_attention_apps.nmt.serve import serve as run
        case config.TrainConfig():
            from keras_attention_apps.nmt.training.train import train as run
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
