"""`nmt calibrate`: how sure a model is of its translations, and what it is for."""

from keras_attention_apps.common.calibration import calibrate as calibrate_model
from keras_attention_apps.nmt.data.dataset import (
    VALIDATION_NAMES,
    find_files,
    read_pairs,
)
from keras_attention_apps.nmt.runtimes import RUNTIMES


def calibrate(config):
    """Calibrate a translator as a `CalibrateConfig` describes it."""
    names = (config.split,) if config.split else VALIDATION_NAMES

    def read(path):
        return read_pairs(*find_files(path, config.pair, names)).source

    def run(translator, sentences):
        return translator.translate(sentences, batch_size=config.batch_size)

    calibrate_model(config, RUNTIMES, read=read, run=run)
