"""The command line: `captioner caption`, `train`, `evaluate` and the other commands."""

import sys

from keras_attention_apps.captioner import config
from keras_attention_apps.common import cli

# The options of each command, and where its function is.
COMMANDS = {
    "caption": (config.CaptionConfig, "commands.caption:caption"),
    "evaluate": (config.EvaluateConfig, "commands.evaluate:evaluate"),
    "calibrate": (config.CalibrateConfig, "commands.evaluate:calibrate"),
    "export": (config.ExportConfig, "commands.export:export"),
    "scenes": (config.ScenesConfig, "commands.scenes:scenes"),
    "web": (config.WebConfig, "web:serve_page"),
    "serve": (config.ServeConfig, "serve:serve"),
    "train": (config.TRAINING, "training.train:train"),
    "train-scenes": (config.SCENES, "training.train:train"),
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
        presets=config.PRESETS,
        task="inference:Captioner",
        argv=argv,
        texts=TEXTS,
    )


if __name__ == "__main__":
    sys.exit(main())
