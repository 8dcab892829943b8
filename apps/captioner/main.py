"""The command line: `captioner caption`, `train`, `evaluate` and the other commands."""

import sys

from keras_attention_apps.captioner.config import (
    SCENES,
    TRAINING,
    CalibrateConfig,
    CaptionConfig,
    EvaluateConfig,
    ExportConfig,
    ScenesConfig,
    WebConfig,
)
from keras_attention_apps.common.cli import Program

PROGRAM = Program(
    "captioner",
    "Caption images, and show where the model looked for every word.",
    package="keras_attention_apps.captioner",
    task="inference:Captioner",
    commands=(
        CaptionConfig,
        EvaluateConfig,
        CalibrateConfig,
        ExportConfig,
        ScenesConfig,
        WebConfig,
    ),
    training={"train": TRAINING, "train-scenes": SCENES},
    descriptions={
        "train-scenes": "Train a captioner on simple images, such as those of "
        "captioner scenes.\n\nLike train, with the defaults of a small network that "
        "learns such images in minutes, from random weights."
    },
)

main = PROGRAM.main

if __name__ == "__main__":
    sys.exit(main())
