"""The command line: `nmt translate`, `train`, `evaluate` and the other commands."""

import sys

from keras_attention_apps.common.cli import Program
from keras_attention_apps.nmt.config import (
    TRAINING,
    CalibrateConfig,
    EvaluateConfig,
    ExportConfig,
    TranslateConfig,
    WebConfig,
)

PROGRAM = Program(
    "nmt",
    "Translate, and show word alignments.",
    package="keras_attention_apps.nmt",
    task="inference:Translator",
    commands=(
        TranslateConfig,
        EvaluateConfig,
        CalibrateConfig,
        ExportConfig,
        WebConfig,
    ),
    training={"train": TRAINING},
)

main = PROGRAM.main

if __name__ == "__main__":
    sys.exit(main())
