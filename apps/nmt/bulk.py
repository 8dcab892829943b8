"""Translations of large collections of sentences, batch by batch."""

from typing import ClassVar

from keras_attention_apps.common.bulk.batches import ModelBatch, details
from keras_attention_apps.nmt.runtimes import RUNTIMES
from keras_attention_apps.nmt.schema import DEFAULT_MODEL


class TranslateBatch(ModelBatch):
    """A translator as a callable for `ray.data.Dataset.map_batches`.

    The column of the inputs contains sentences: strings, or bytes in UTF-8. The result
    has the columns `translation`, `source_words`, `words`, `score`, `log_probability`,
    `cut` and `error`; with `maps`, also `alignment` and `attention`. See `Translation`
    for their meaning, `ModelBatch` for the arguments, and `translate_each` for `split`.
    """

    runtimes = RUNTIMES
    fields: ClassVar = {
        "translation": str,
        "source_words": [str],
        "words": [str],
        "score": float,
        "log_probability": float,
        "cut": bool,
    }
    map_fields: ClassVar = {"alignment": [str], "attention": [[float]]}

    def __init__(self, model=DEFAULT_MODEL, *, column="text", split=True, **options):
        super().__init__(model, column=column, **options)
        self.split = split

    def rows(self, values):
        sentences = [_sentence(value) for value in values]
        found = self.model.translate_each(
            (text for text, error in sentences if error is None),
            batch_size=self.batch_size,
            split=self.split,
            **self.search,
        )
        return [
            details(next(found)[0], self.columns) if error is None else {"error": error}
            for _, error in sentences
        ]


def _sentence(value):
    """Return the sentence and `None`, or `None` and the error message."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8"), None
        except UnicodeDecodeError as error:
            byte = value[error.start]
            return None, f"not UTF-8: byte 0x{byte:02x} at position {error.start}"
    if isinstance(value, str):
        return value, None
    return None, f"expected a string or bytes. Received: {type(value).__name__}"
