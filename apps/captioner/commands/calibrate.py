"""`captioner calibrate`: how sure a model is of its captions, and what it is for."""

from keras_attention_apps.captioner.data.dataset import read_dataset, readable
from keras_attention_apps.captioner.runtimes import RUNTIMES
from keras_attention_apps.common.calibration import calibrate as calibrate_model


def calibrate(config):
    """Calibrate a captioner as a `CalibrateConfig` describes it."""

    def read(path):
        images = readable(read_dataset(path, config.split), config.max_unreadable)
        return [image.path for image in images]

    def run(captioner, images):
        return captioner.caption(images, batch_size=config.batch_size)

    calibrate_model(config, RUNTIMES, read=read, run=run)
