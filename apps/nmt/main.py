"""The command line: `nmt translate`, `train`, `evaluate`, `average` and `export`."""

import sys

import tyro
from keras_attention_apps.common.config import AverageConfig
from keras_attention_apps.common.program import Program, Verb
from keras_attention_apps.nmt.config import (
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
        Verb(
            "train", TrainConfig, f"{NMT}.train:train", TrainConfig(output=tyro.MISSING)
        ),
        Verb("evaluate", EvaluateConfig, f"{NMT}.evaluate:evaluate"),
        Verb("average", AverageConfig, f"{TASK}.average"),
        Verb("export", ExportConfig, f"{NMT}.export:export"),
    ),
)

main = PROGRAM.main

if __name__ == "__main__":
    sys.exit(main())
