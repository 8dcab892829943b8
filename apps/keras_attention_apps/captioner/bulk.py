"""Captions of large collections of images, batch by batch and with Ray Data."""

import functools
from pathlib import PurePath

from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.config import DEFAULT_MODEL
from keras_attention_apps.captioner.images import image_suffixes
from keras_attention_apps.captioner.runtimes import RUNTIMES
from keras_attention_apps.common import bulk
from keras_attention_apps.common.errors import UserError


class CaptionBatch(bulk.ModelBatch):
    """A captioner as a callable for `ray.data.Dataset.map_batches`.

    The column of the inputs contains encoded images (bytes), or paths and URIs. The
    result has the columns `caption`, `words`, `score`, `log_probability`,
    `mean_log_probability`, `probabilities`, `confidence`, `unsure`, `reason` and
    `error`; with `maps`, also `attention`. See `Caption` for their meaning, and
    `ModelBatch` for the arguments.

    For example, with Ray:

        photos = ray.data.read_parquet("photos.parquet")
        captions = photos.map_batches(
            CaptionBatch,
            fn_constructor_args=("flickr8k-coco-ensemble",),
            fn_constructor_kwargs={"column": "bytes"},
            batch_size=64,
            concurrency=(1, 8),
            num_cpus=1,
        )
    """

    runtimes = RUNTIMES
    output = Caption
    fields = (
        *("caption", "words", "score", "log_probability", "mean_log_probability"),
        *("probabilities", "confidence", "unsure", "reason"),
    )
    map_fields = ("attention",)

    def __init__(self, model=DEFAULT_MODEL, *, column="bytes", **options):
        super().__init__(model, column=column, **options)

    def rows(self, values):
        values = self.contents(values)
        images = [value for value in values if not isinstance(value, UserError)]
        captions = self.model.caption_each(
            images, batch_size=self.batch_size, **self.search
        )
        results = [x if isinstance(x, UserError) else next(captions)[1] for x in values]
        return [
            # The error of a file, or an `ImageError`.
            {"error": str(result)}
            if isinstance(result, UserError)
            else bulk.details(result[0], self.columns)
            for result in results
        ]


def caption_bulk(config):
    """Caption images with Ray Data; the exit code is 2 if one could not be read."""
    excluded = ("overlay", "xmp", "min_score", "n_best", "json", "jit_compile")
    bulk.check_options(config, excluded)
    filesystem, paths = bulk.located_all(config.images)
    read = functools.partial(_inputs, config, filesystem, paths)
    return bulk.run_command("captioner", read, CaptionBatch, config, filesystem)


def _inputs(config, filesystem, paths, finished):
    """Return the dataset of the images; the suffixes of the paths tell the format."""
    suffixes = {PurePath(path).suffix.lower() for path in paths}
    if suffixes == {".parquet"}:
        columns = config.bulk.column or "bytes", config.bulk.id_column
        return bulk.from_parquet(filesystem, paths, *columns, finished)
    if ".parquet" in suffixes:
        raise UserError(
            "expected images and folders, or Parquet files alone. Received: "
            f"{', '.join(map(str, config.images))}"
        )
    names = bulk.find_files(filesystem, paths, image_suffixes())
    return bulk.from_names(names, finished)
