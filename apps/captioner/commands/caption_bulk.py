"""`captioner caption --engine ray`: captions of large collections of images."""

import functools
from pathlib import PurePath

from keras_attention_apps.captioner.bulk import CaptionBatch
from keras_attention_apps.captioner.images.reading import image_suffixes
from keras_attention_apps.common.bulk import inputs
from keras_attention_apps.common.bulk.command import check_options, run_command
from keras_attention_apps.common.bulk.locations import located_all
from keras_attention_apps.common.cli import UserError


def caption_bulk(config):
    """Caption images with Ray Data as a `CaptionConfig` describes it.

    Returns:
        The exit code: 2 if an image could not be read.
    """
    check_options(
        config,
        ("regions", "overlay", "min_score", "n_best", "json", "jit_compile"),
    )
    filesystem, paths = located_all(config.images)
    read = functools.partial(_inputs, config, filesystem, paths)
    return run_command("captioner", read, CaptionBatch, config, filesystem)


def _inputs(config, filesystem, paths, finished):
    """Return the dataset of the images; the suffixes of the paths tell the format."""
    suffixes = {PurePath(path).suffix.lower() for path in paths}
    bulk = config.bulk
    if suffixes == {".parquet"}:
        column = bulk.column or "bytes"
        return inputs.from_parquet(filesystem, paths, column, bulk.id_column, finished)
    if suffixes & {".parquet", ".tar"} and len(suffixes) > 1:
        raise UserError(
            "expected images and folders, or Parquet files, or WebDataset shards "
            "(.tar), without a mixture of these. Received: "
            f"{', '.join(map(str, config.images))}"
        )
    if suffixes == {".tar"}:
        return inputs.from_shards(filesystem, paths, image_suffixes(), finished)
    found = inputs.found_files(filesystem, paths, image_suffixes())
    return inputs.from_names(found, found, finished)
