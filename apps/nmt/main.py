"""The command line: `nmt translate`, `train`, `evaluate` and the other commands."""

import sys

from keras_attention_apps.common import cli
from keras_attention_apps.nmt import config

# The options of each command, and where its function is.
COMMANDS = {
    "translate": (config.TranslateConfig, "commands.translate:translate"),
    "evaluate": (config.EvaluateConfig, "commands.evaluate:evaluate"),
    "calibrate": (config.CalibrateConfig, "commands.evaluate:calibrate"),
    "export": (config.ExportConfig, "commands.export:export"),
    "web": (config.WebConfig, "web:serve_page"),
    "serve": (config.ServeConfig, "serve:serve"),
    "train": (config.TRAINING, "training.train:train"),
}


def main(argv=None):
    """Run the program with these arguments, and return the exit code."""
    return cli.main(
        "nmt",
        "Translate, and show word alignments.",
        COMMANDS,
        presets=config.PRESETS,
        task="inference:Translator",
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
