"""Translations of large collections of sentences, batch by batch."""

import functools

from keras_attention_apps.common import bulk
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.config import DEFAULT_MODEL
from keras_attention_apps.nmt.runtimes import RUNTIMES
from keras_attention_apps.nmt.translations import Translation


class TranslateBatch(bulk.ModelBatch):
    """A translator as a callable for `ray.data.Dataset.map_batches`.

    The column of the inputs contains sentences: strings, or bytes in UTF-8. The result
    has the columns `translation`, `source_words`, `words`, `score`, `log_probability`,
    `mean_log_probability`, `cut`, `confidence`, `unsure`, `reason` and `error`; with
    `maps`, also `alignment` and `attention`. See `Translation` for their meaning,
    `ModelBatch` for the arguments, and `translate_each` for `split`.
    """

    runtimes = RUNTIMES
    output = Translation
    fields = (
        *("translation", "source_words", "words", "score", "log_probability"),
        *("mean_log_probability", "cut", "confidence", "unsure", "reason"),
    )
    map_fields = ("alignment", "attention")

    def __init__(
        self,
        model=DEFAULT_MODEL,
        *,
        column="text",
        split=True,
        target_language=None,
        **options,
    ):
        super().__init__(model, column=column, **options)
        self.split = split
        self.target_language = target_language

    def rows(self, values):
        sentences = list(map(_sentence, values))
        translations = self.model.translate_each(
            (x for x in sentences if isinstance(x, str)),
            batch_size=self.batch_size,
            split=self.split,
            target_language=self.target_language,
            **self.search,
        )
        return [
            bulk.details(next(translations)[0], self.columns)
            if isinstance(x, str)
            else {"error": str(x)}
            for x in sentences
        ]


def _sentence(value):
    """Return the sentence, or the `UserError` of a value that is none."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"byte 0x{value[error.start]:02x} at position {error.start}"
            return UserError(f"not UTF-8: {byte}")
    if isinstance(value, str):
        return value
    return UserError(f"expected a string or bytes. Received: {type(value).__name__}")


def translate_bulk(config):
    """Translate sentences with Ray Data; the exit code is 2 if one cannot be read."""
    if config.sentences:
        raise UserError(
            "sentences as arguments cannot be used with --engine ray: give --input"
        )
    excluded = ("min_score", "n_best", "alignments", "plot", "json", "jit_compile")
    bulk.check_options(config, (*excluded, "glossary"))
    if config.input is None:
        raise UserError(
            "--engine ray needs --input, a text file or Parquet. Received: none"
        )
    filesystem, path = bulk.located(config.input)
    language = config.target_language
    read = functools.partial(_inputs, config, filesystem, path)
    digest = functools.partial(bulk.text_digest, filesystem, path)
    return bulk.run_command(
        *("nmt", read, TranslateBatch, config, filesystem),
        dict if _is_parquet(config) else digest,
        split=config.split_sentences,
        # A job of an earlier version, without this option, can be resumed.
        **({"target_language": language} if language else {}),
    )


def _is_parquet(config):
    return config.input.suffix.lower() == ".parquet"


def _inputs(config, filesystem, path, finished):
    """Return the dataset of the sentences, from Parquet or a text file."""
    if not _is_parquet(config):
        return bulk.from_lines(filesystem, path, finished)
    columns = config.bulk.column or "text", config.bulk.id_column
    return bulk.from_parquet(filesystem, [path], *columns, finished)
