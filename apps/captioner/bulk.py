"""Captions of large collections of images, batch by batch."""

from typing import ClassVar

from keras_attention_apps.captioner.images.reading import ImageError
from keras_attention_apps.captioner.runtimes import RUNTIMES
from keras_attention_apps.captioner.schema import DEFAULT_MODEL
from keras_attention_apps.common.bulk.batches import Failure, ModelBatch, details


class CaptionBatch(ModelBatch):
    """A captioner as a callable for `ray.data.Dataset.map_batches`.

    The column of the inputs contains encoded images (bytes), or paths and URIs. The
    result has the columns `caption`, `words`, `score`, `log_probability`,
    `mean_log_probability`, `probabilities` and `error`; with `maps`, also `attention`
    and `sentinel`. See `Caption` for their meaning, and `ModelBatch` for the arguments.

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
    fields: ClassVar = {
        "caption": str,
        "words": [str],
        "score": float,
        "log_probability": float,
        "mean_log_probability": float,
        "probabilities": [float],
    }
    map_fields: ClassVar = {"attention": [[[float]]], "sentinel": [float]}

    def __init__(self, model=DEFAULT_MODEL, *, column="bytes", **options):
        super().__init__(model, column=column, **options)

    def rows(self, values):
        values = self.contents(values)
        images = [value for value in values if not isinstance(value, Failure)]
        found = self.model.caption_each(
            images, batch_size=self.batch_size, **self.search
        )
        return [
            {"error": value.reason}
            if isinstance(value, Failure)
            else self._row(next(found)[1])
            for value in values
        ]

    def _row(self, captions):
        if isinstance(captions, ImageError):
            return {"error": str(captions)}
        return details(captions[0], self.columns)
