"""Translations without Keras: a LiteRT file that holds network and beam search."""

import dataclasses
import functools

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.litert import LiteTask
from keras_attention_apps.common.models import loading
from keras_attention_apps.common.options import Length, LengthRatio, Natural
from keras_attention_apps.nmt.config import TranslationBeamConfig
from keras_attention_apps.nmt.text import pad
from keras_attention_apps.nmt.translations import BaseTranslator


@dataclasses.dataclass(frozen=True)
class Metadata:
    """The metadata of a file; see the attributes of `BaseTranslator`.

    Attributes:
        lengths: Lengths of sources that have a signature, from the shortest on.
    """

    lengths: list[Length]
    max_length: Length
    length_ratio: LengthRatio | None
    attends: bool
    extra_ids: Natural = 0


class LiteTranslator(LiteTask, BaseTranslator):
    """Translates sentences with a LiteRT file, without Keras or TensorFlow.

    It starts in a fraction of a second. The options of the search are those with which
    the file was exported. `translate` and `translate_each` are those of `Translator`.
    Several sentences are translated in parallel, each in a thread.
    A sentence is padded to the next length for which the file has a signature.

    Args:
        path: Name of an exported file.
        threads: Number of threads; by default one per processor.
    """

    search_type = TranslationBeamConfig
    metadata_type = Metadata

    def _phrases(self, targets):
        raise UserError(
            "a LiteRT file has no input for the phrases of a glossary: translate with "
            f"Keras. Received: {self.path}"
        )

    def _search(self, token_ids, batch_size, n_best, search, phrases=(), sampling=None):
        if sampling:
            raise UserError(
                "a LiteRT file contains the beam search alone: sample with Keras. "
                f"Received: {self.path}"
            )
        if len(token_ids) == 1:
            return [self._search_one(self.runtime, n_best, token_ids[0])]
        search_one = functools.partial(
            self._search_one, self.runtime.in_parallel, n_best
        )
        return [found for _, found in self.in_parallel(search_one, token_ids)]

    def _search_one(self, run, n_best, token_ids):
        """Return the best hypotheses of a sentence, best first."""
        with loading(self.path, self.noun):
            columns = min(x for x in self.lengths if x >= len(token_ids))
            source = pad([token_ids], columns=columns)
            return self._run_search(run, f"length_{columns}", n_best, source=source)
