"""A translator whose beam search runs in CTranslate2.

CTranslate2 has no constraints such as ours, and returns no probabilities of subwords.
So our network reads each translation once more, by forced decoding, and what breaks a
constraint is searched again.
"""

import functools
import itertools
import math
import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.inference import Hypothesis
from keras_attention_apps.common.litert import processors
from keras_attention_apps.common.models import changes_in
from keras_attention_apps.common.tokenizer import END
from keras_attention_apps.nmt import ctranslate2_models
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.translations import LOOP, chunks, longest_loop

# Hypotheses that the network reads at the same time, to bound the memory.
FORCED_ROWS = 64


class CTranslate2Translator(Translator):
    """Translates sentences with the beam search of CTranslate2, on CPUs.

    The search computes with matrices in eight bits; scores, probabilities and attention
    are those of the network on Keras. Hypotheses that break a constraint of
    `Translator` are left out: a symbol is missing or repeated, there is a loop, or they
    are too short or too long. If the best one does, the sentence is searched again by
    `Translator`. So are sentences with phrases of a glossary.

    Args:
        threads: Number of threads; by default one per processor.
        **options: As for `Translator`.
    """

    def __init__(self, *arguments: Any, threads: int | None = None, **options: Any):
        super().__init__(*arguments, **options)
        ctranslate2_models.check_convertible(self)
        self.threads = threads or processors()

    @classmethod
    def from_preset(
        cls,
        name_or_path: str | os.PathLike,
        *,
        threads: int | None = None,
        **options: Any,
    ) -> Self:
        """Load a preset or the model in a folder; see `Translator.from_preset`."""
        changes = changes_in(options)
        for name in ("precision", "jit_compile"):
            if name in changes:
                raise UserError(
                    f"{name} needs the runtime keras. Received: {changes[name]}"
                )
        translator = super().from_preset(name_or_path, **options)
        translator.threads = threads or processors()
        return translator

    @functools.cached_property
    def _engine(self):
        return ctranslate2_models.load_engine(
            self, compute_type="int8", inter_threads=self.threads, intra_threads=1
        )

    @functools.cached_property
    def _tokens(self) -> list[str]:
        return ctranslate2_models.tokens(self.tokenizer.pieces)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self._tokens)}

    def max_search_length(self, columns, search, phrases=(), step=None):
        """Return the maximum length of the model.

        Few sentences are searched on Keras. Another length would save less time than
        the trace of its search takes.
        """
        return self.max_length

    def _hypotheses(self, sources, batch_size, n_best, search):
        hypotheses = [
            [] if source.phrases else ranked
            for source, ranked in zip(
                sources, self._fast_search(sources, search), strict=True
            )
        ]
        self._replace_by_forced(sources, hypotheses, n_best, search["length_penalty"])
        again = [i for i, ranked in enumerate(hypotheses) if not ranked]
        if again:
            rest = [sources[i] for i in again]
            searched = super()._hypotheses(rest, batch_size, n_best, search)
            for i, ranked in zip(again, searched, strict=True):
                hypotheses[i] = ranked
        return hypotheses

    def _replace_by_forced(self, sources, hypotheses, n_best, length_penalty):
        """Replace the best hypotheses of each source by those of forced decoding."""
        indices = [
            (row, rank)
            for row, ranked in enumerate(hypotheses)
            for rank in range(min(n_best, len(ranked)))
        ]
        for batch in chunks(indices, FORCED_ROWS):
            forced = self.forced_hypotheses(
                [sources[row].token_ids for row, _ in batch],
                [hypotheses[row][rank].token_ids.tolist() for row, rank in batch],
                length_penalty,
            )
            for (row, rank), hypothesis in zip(batch, forced, strict=True):
                hypotheses[row][rank] = hypothesis

    def _fast_search(self, sources, search):
        """Return the valid hypotheses of CTranslate2 for each source, best first.

        A source has none if its best hypothesis is not valid. Their log-probabilities
        and attention are missing.
        """
        if search["beam_groups"] != 1:
            return [[] for _ in sources]
        ratios = search["min_length_ratio"], search["max_length_ratio"]
        limits = [self._limits(len(source.token_ids), *ratios) for source in sources]
        results = self._engine.translate_batch(
            [self._spelled(source.token_ids) for source in sources],
            max_batch_size=max(math.ceil(len(sources) / self.threads), 1),
            beam_size=search["beam_size"],
            num_hypotheses=search["beam_size"],
            length_penalty=search["length_penalty"],
            max_decoding_length=max(longest for _, longest in limits),
            suppress_sequences=[[self._tokens[i]] for i in self.tokenizer.banned],
            return_scores=True,
            return_end_token=True,
        )
        hypotheses = []
        for source, result, limit in zip(sources, results, limits, strict=True):
            ids = [[self._ids[word] for word in words] for words in result.hypotheses]
            valid = [self._is_valid(source.token_ids, x, limit) for x in ids]
            ranked = [_unread(x, y) for x, y in zip(ids, result.scores, strict=True)]
            best_is_valid = valid[:1] == [True]
            hypotheses.append(
                [*itertools.compress(ranked, valid)] if best_is_valid else []
            )
        return hypotheses

    def _spelled(self, token_ids: Sequence[int]) -> list[str]:
        """Return the tokens of a source without END, which CTranslate2 adds."""
        return [self._tokens[i] for i in token_ids[:-1]]

    def _is_valid(self, source, token_ids, limits):
        """Return whether our search could return the token ids of a hypothesis."""
        shortest, longest = limits
        symbols = set(self.tokenizer.symbols.values())
        return (
            token_ids[-1:] == [END]
            and shortest <= len(token_ids) <= longest
            and sorted(x for x in token_ids if x in symbols)
            == sorted(symbols.intersection(source))
            and longest_loop(token_ids) <= LOOP
        )


def _unread(token_ids, score):
    """Return a hypothesis that the network has not read: without probabilities."""
    nothing = np.zeros(0, "float32")
    ids = np.array(token_ids, "int32")
    return Hypothesis(ids, score, score, nothing, len(ids), nothing)
