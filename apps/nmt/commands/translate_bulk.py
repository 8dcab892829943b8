"""`nmt translate --engine ray`: translations of large collections of sentences."""

import functools

from keras_attention_apps.common.bulk import inputs
from keras_attention_apps.common.bulk.command import check_options, run_command
from keras_attention_apps.common.bulk.locations import located
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.nmt.bulk import TranslateBatch


def translate_bulk(config):
    """Translate sentences with Ray Data as a `TranslateConfig` describes it.

    Returns:
        The exit code: 2 if a sentence could not be read.
    """
    if config.sentences:
        raise UserError(
            "sentences as arguments cannot be used with --engine ray: give --input"
        )
    check_options(
        config,
        (
            *("min_score", "n_best", "alignments", "plot"),
            *("json", "jit_compile", "glossary"),
        ),
    )
    if config.input is None:
        raise UserError(
            "--engine ray needs --input, a text file or Parquet. Received: none"
        )
    filesystem, path = located(config.input)
    read = functools.partial(_inputs, config, filesystem, path)
    digest = None
    if not _is_parquet(config):
        digest = functools.partial(inputs.text_digest, filesystem, path)
    return run_command(
        "nmt",
        read,
        TranslateBatch,
        config,
        filesystem,
        digest,
        split=config.split_sentences,
    )


def _is_parquet(config):
    return config.input.suffix.lower() == ".parquet"


def _inputs(config, filesystem, path, finished):
    """Return the dataset of the sentences, from Parquet or a text file."""
    if not _is_parquet(config):
        return inputs.from_lines(filesystem, path, finished)
    bulk = config.bulk
    column = bulk.column or "text"
    return inputs.from_parquet(filesystem, [path], column, bulk.id_column, finished)
