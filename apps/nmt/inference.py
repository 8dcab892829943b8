"""Translations: a trained network, its subwords, and the search."""

import dataclasses
import functools
import math
from pathlib import Path

import keras
import numpy as np
from keras_attention_apps.common.config import check_batch_size, check_n_best
from keras_attention_apps.common.network.compiling import power_of_two
from keras_attention_apps.common.network.search_model import hypotheses
from keras_attention_apps.common.task import Task
from keras_attention_apps.common.tokens import END, PAD
from keras_attention_apps.nmt.config import RUNTIME_OPTIONS, ModelConfig
from keras_attention_apps.nmt.data.batches import chunks, pad
from keras_attention_apps.nmt.data.text import Subwords, alignment_of, merge_weights
from keras_attention_apps.nmt.network.building import build_network

from keras_attention import beam_search

PRESETS = Path(__file__).parent / "presets"

# Sentences are sorted by length within this many batches.
SORTED_BATCHES = 16
# Maximum lengths are rounded up to multiples, as XLA compiles each length on its own.
LENGTH_STEP = 16
# Extra tokens that the translation of a short sentence may have.
LENGTH_SLACK = 5


@dataclasses.dataclass(frozen=True)
class Translation:
    """A translation of one sentence.

    Attributes:
        text: The translation.
        source_words, words: The words of the sentence and of the translation, as they
            stand between blanks; in scripts that put none there, subwords.
        score: Score by which translations are ranked.
        log_probability: Natural logarithm of the translation's probability.
        weights: Attention `(len(words), len(source_words))`; all are zero for a model
            without attention.
        end_weights: Attention to the end of the sentence, `(len(words),)`. With it, a
            row sums to one, unless the attention is local.
        cut: Whether the sentence was too long, and is translated in part.
    """

    text: str
    source_words: list
    words: list
    score: float
    log_probability: float
    weights: np.ndarray
    end_weights: np.ndarray
    cut: bool = False

    @property
    def alignment(self):
        """Pairs of a source word and a target word, counted from 0.

        A word without weights, or with its largest weight on the end token, has none.
        """
        return alignment_of(self.weights, self.end_weights)


class Translator(Task):
    """Translates sentences and tells which words each word came from.

    Args:
        config: The complete `ModelConfig` of the network.
        tokenizer: Its `Subwords`.
        network: The `TranslationNetwork`.
        jit_compile: Whether XLA compiles the search, as it always does on JAX. That
            takes seconds for every shape, and is up to four times as fast from then on.
            To keep their number small, sentences are padded to multiples of 16
            subwords, and batches to powers of two.

    Raises:
        UserError: If `jit_compile` is requested on PyTorch.
    """

    noun = "translator"
    presets = PRESETS
    config_type = ModelConfig
    tokenizer_type = Subwords
    runtime_options = RUNTIME_OPTIONS
    build_network = staticmethod(build_network)

    def translate(self, sentences, **options):
        """Translate one sentence or several.

        Args:
            sentences: A string, or a list of them.
            **options: Those of `translate_each`, but `n_best`.

        Returns:
            A `Translation`, or a list of them for a list of sentences.
        """
        single = isinstance(sentences, str)
        found = self.translate_each([sentences] if single else sentences, **options)
        best = [translations[0] for translations in found]
        return best[0] if single else best

    def translate_each(
        self,
        sentences,
        *,
        beam_size=5,
        length_penalty=1.0,
        batch_size=64,
        n_best=1,
    ):
        """Translate any number of sentences, those of about equal length together.

        Several batches are read and sorted by length before the first is translated.
        With a batch size of 1, every sentence is translated before the next is read.

        Args:
            sentences: Iterable of strings.
            beam_size: Beam width: number of hypotheses kept at each step; 1 is greedy
                search.
            length_penalty: Hypotheses are ranked by log-probability divided by
                `length ** length_penalty`.
            batch_size: Batch size, in sentences.
            n_best: Translations of a sentence, at most `beam_size`. There are fewer
                where the search finds fewer.

        Yields:
            For each sentence, in order, the list of its `Translation`s, best first.

        Raises:
            ValueError: If `n_best` or `batch_size` is out of range.
        """
        check_n_best(n_best, beam_size)
        check_batch_size(batch_size)
        options = {"beam_size": beam_size, "length_penalty": length_penalty}
        # One by one, their order makes no difference.
        sorted_batches = SORTED_BATCHES if batch_size > 1 else 1
        for chunk in chunks(sentences, batch_size * sorted_batches):
            encoded = [self._encode(sentence) for sentence in chunk]
            found = [[_nothing()] if len(ids) == 1 else None for ids, _ in encoded]
            waiting = [i for i, translations in enumerate(found) if not translations]
            waiting.sort(key=lambda i: len(encoded[i][0]))
            for batch in chunks(waiting, batch_size):
                source = [encoded[i][0] for i in batch]
                outputs = self._search(source, batch_size, options)
                for i, ranked in zip(batch, hypotheses(outputs, n_best), strict=False):
                    found[i] = [self._translation(*encoded[i], x) for x in ranked]
            yield from found

    def _encode(self, sentence):
        """Return token ids, and whether the sentence was cut."""
        token_ids = self.tokenizer.encode(sentence)
        longest = self.config.max_length
        if len(token_ids) <= longest:
            return token_ids, False
        return [*token_ids[: longest - 1], END], True

    def _search(self, token_ids, batch_size, options):
        """Search for translations of a batch of lists of token ids."""
        columns = max(map(len, token_ids))
        if self.jit_compile:
            columns = self._rounded(columns)
            rows = power_of_two(len(token_ids), batch_size)
            token_ids = token_ids + token_ids[-1:] * (rows - len(token_ids))
        source = pad(token_ids, columns=columns)
        search_model = self.search_model(self.longest(source.shape[1]), **options)
        return search_model.predict_on_batch({"source": source})

    def longest(self, length):
        """Return the maximum number of tokens of a translation of `length` tokens."""
        ratio = self.config.length_ratio
        ratio = 2.0 if ratio is None else ratio
        return self._rounded(ratio * (length + LENGTH_SLACK))

    def _rounded(self, length):
        """Round a length up to one of a few, at most the maximum length."""
        rounded = max(math.ceil(length / LENGTH_STEP), 1) * LENGTH_STEP
        return min(rounded, self.config.max_length)

    def search_model(self, max_length=None, *, beam_size=5, length_penalty=1.0):
        """Return the compiled beam search as a Keras model; see `SearchModel`.

        The maximum length of a translation depends on its sentence, and is at most
        `max_length`, that of the `ModelConfig` if omitted.
        """
        max_length = max_length or self.config.max_tokens
        search = functools.partial(
            beam_search,
            beam_size=beam_size,
            length_penalty=length_penalty,
            early_stopping=True,
        )
        return self._cached_search_model(
            (max_length, beam_size, length_penalty),
            search,
            max_length,
            limit=self._limit,
        )

    def _limit(self, inputs):
        """Maximum number of tokens of each translation, `(B,)`."""
        limits = [self.longest(n) for n in range(self.config.max_length + 1)]
        is_token = keras.ops.cast(inputs["source"] != PAD, "int32")
        limits = keras.ops.convert_to_tensor(limits, dtype="int32")
        return keras.ops.take(limits, keras.ops.sum(is_token, axis=1))

    def _translation(self, source_ids, cut, hypothesis):
        source_words, source_places = self.tokenizer.words(source_ids)
        words, places = self.tokenizer.words(hypothesis.token_ids)
        weights = hypothesis.weights
        if self.config.attention == "none":
            # The only weight is that of the summary vector.
            weights = np.zeros((len(places), len(source_places)))
        # The end token counts as one more word.
        merged = merge_weights(weights, [*source_places, len(source_words)], places)
        return Translation(
            text=self.tokenizer.decode(hypothesis.token_ids),
            source_words=source_words,
            words=words,
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            weights=merged[:, :-1],
            end_weights=merged[:, -1],
            cut=cut,
        )


def _nothing():
    return Translation("", [], [], 0.0, 0.0, np.zeros((0, 0)), np.zeros(0))


def length_ratio(subwords, pairs):
    """Measure how much longer translations are than their sentences.

    Returns:
        The ratio r with which a sentence of n tokens has a translation of at most
        `r (n + LENGTH_SLACK)`, in 999 of 1000 pairs.
    """
    sources, targets = (
        np.array([len(ids) for ids in subwords.encode_all(side)])
        for side in (pairs.source, pairs.target)
    )
    ratio = np.quantile(targets / (sources + LENGTH_SLACK), 0.999)
    return float(np.ceil(max(ratio, 0.5) * 10) / 10)
