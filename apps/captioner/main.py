"""The command line: `captioner caption`, `train`, `evaluate` and the other verbs."""

import sys

from keras_attention_apps.captioner.config import (
    SCENES,
    TRAINING,
    CaptionConfig,
    EvaluateConfig,
    ExportConfig,
    ScenesConfig,
    TrainConfig,
)
from keras_attention_apps.common.config import AverageConfig
from keras_attention_apps.common.program import Program, Verb

CAPTIONER = "keras_attention_apps.captioner"

TASK = f"{CAPTIONER}.inference:Captioner"

PROGRAM = Program(
    "captioner",
    "Captions images, and shows where the model looked for every word.",
    TASK,
    (
        Verb("caption", CaptionConfig, f"{CAPTIONER}.commands.caption:caption"),
        Verb("train", TrainConfig, f"{CAPTIONER}.training.train:train", TRAINING),
        Verb(
            "train-scenes",
            TrainConfig,
            f"{CAPTIONER}.training.train:train",
            SCENES,
            "Train a captioner on simple images, such as those of captioner scenes."
            "\n\nAs train, but the defaults are those of a small network that learns "
            "them in minutes, from random weights.",
        ),
        Verb("evaluate", EvaluateConfig, f"{CAPTIONER}.commands.evaluate:evaluate"),
        Verb("average", AverageConfig, f"{TASK}.average"),
        Verb("export", ExportConfig, f"{CAPTIONER}.commands.export:export"),
        Verb("scenes", ScenesConfig, f"{CAPTIONER}.data.scenes:scenes"),
    ),
)

main = PROGRAM.main

if __name__ == "__main__":
    sys.exit(main())
