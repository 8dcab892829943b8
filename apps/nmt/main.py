"""The command line: `nmt translate`, `train`, `evaluate`, `average` and `export`."""

import sys

from keras_attention_apps.common.config import AverageConfig
from keras_attention_apps.common.program import Program, Verb
from keras_attention_apps.nmt.config import (
    TRAINING,
    EvaluateConfig,
    ExportConfig,
    TrainConfig,
    TranslateConfig,
)

NMT = "keras_attention_apps.nmt"

TASK = f"{NMT}.inference:Translator"

PROGRAM = Program(
    "nmt",
    "Translates, and shows which words each word came from.",
    TASK,
    (
        Verb("translate", TranslateConfig, f"{NMT}.commands.translate:translate"),
        Verb("train", TrainConfig, f"{NMT}.training.train:train", TRAINING),
        Verb("evaluate", EvaluateConfig, f"{NMT}.commands.evaluate:evaluate"),
        Verb("average", AverageConfig, f"{TASK}.average"),
        Verb("export", ExportConfig, f"{NMT}.commands.export:export"),
    ),
)

main = PROGRAM.main

if __name__ == "__main__":
    sys.exit(main())
