"""Translations: a trained network, its subwords, and the search."""

import dataclasses
import functools
import math
from pathlib import Path

import keras
import numpy as np
from keras_attention_apps.common import presets
from keras_attention_apps.common.compiling import (
    compiles,
    computing_in,
    power_of_two,
)
from keras_attention_apps.common.config import check_batch_size, check_n_best
from keras_attention_apps.common.files import (
    MODEL,
    atomic_folder,
    write_json,
)
from keras_attention_apps.common.presets import find_preset, loading, save_half
from keras_attention_apps.common.tokens import END
from keras_attention_apps.nmt.batches import pad, windows
from keras_attention_apps.nmt.config import ModelConfig
from keras_attention_apps.nmt.model import TranslationSearch, build_network
from keras_attention_apps.nmt.text import (
    Subwords,
    alignment_of,
    merge_weights,
)

from keras_attention import beam_search

PRESETS = Path(__file__).parent / "presets"
WEIGHTS = "model.weights.h5"
SUBWORDS = "subwords.model"

# Sentences are sorted by length among so many batches.
SORTED_BATCHES = 16
# Largest lengths, of translations at least, are multiples: each is compiled on its own.
LENGTH_STEP = 16
# Tokens by which a short sentence may outgrow what is usual.
LENGTH_SLACK = 5


# The `ModelConfig` of a preset by its name, or of a trained model by its folder.
read_config = functools.partial(
    presets.read_config, presets=PRESETS, kind=ModelConfig, what="translator"
)


@dataclasses.dataclass(frozen=True)
class Translation:
    """A translation of one sentence.

    Attributes:
        text: The translation.
        source_words, words: The words of the sentence and of the translation, as they
            stand between blanks; in scripts that put none there, subwords.
        score: By which translations are ranked.
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

        A word that looked at no word, or most of all at the end, has none.
        """
        return alignment_of(self.weights, self.end_weights)


class Translator:
    """Translates sentences and tells which words each word came from.

    Args:
        config: The complete `ModelConfig` of the network.
        subwords: Its `Subwords`.
        network: The `TranslationNetwork`.
        jit_compile: Whether the search is compiled by XLA, as it always is on JAX. That
            takes seconds for every shape, and is up to four times as fast from then on.
            So that shapes are few, sentences are padded to multiples of 16 subwords,
            and the numbers of sentences to powers of two.

    Raises:
        UserError: If `jit_compile` is asked for on PyTorch.
    """

    def __init__(self, config, subwords, network, *, jit_compile=False):
        self.config = config
        self.subwords = subwords
        self.network = network
        self.jit_compile = compiles(jit_compile)
        self._searches = {}

    @classmethod
    def from_preset(cls, name_or_path, *, precision=None, **options):
        """Load a shipped preset by its name, or a model that was trained by its folder.

        Args:
            name_or_path: Name or folder.
            precision: Name of the Keras dtype policy to compute with, such as
                `"mixed_bfloat16"`; the one that is set if omitted.
            **options: Those of a `Translator`: `jit_compile`.

        Raises:
            ValueError: If there is no such preset or folder, or it is incomplete.
        """
        folder = find_preset(name_or_path, PRESETS)
        config = read_config(name_or_path)
        with loading(folder, "translator"), computing_in(precision):
            subwords = Subwords((folder / SUBWORDS).read_bytes())
            network = build_network(config, len(subwords))
            network.load_weights(folder / WEIGHTS)
        return cls(config, subwords, network, **options)

    @property
    def kind(self):
        """What models share whose weights can be averaged."""
        return self.config, self.subwords.model

    def save(self, folder, **about):
        """Write the model as a folder that `from_preset` loads.

        Args:
            folder: Where to write; an older model there is replaced as a whole.
            **about: More entries for its `config.json`, such as how it was trained.
        """
        with atomic_folder(folder, MODEL) as temporary:
            model = dataclasses.asdict(self.config)
            write_json(temporary / "config.json", {"model": model, **about})
            (temporary / SUBWORDS).write_bytes(self.subwords.model)
            save_half(self.network, temporary / WEIGHTS)

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
            beam_size: Hypotheses that are kept at every step; 1 is greedy search.
            length_penalty: Hypotheses are ranked by log-probability divided by
                `length ** length_penalty`.
            batch_size: Sentences that are translated together.
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
        for window in windows(sentences, batch_size * sorted_batches):
            encoded = [self._encode(sentence) for sentence in window]
            found = [[_nothing()] if len(ids) == 1 else None for ids, _ in encoded]
            waiting = [i for i, translations in enumerate(found) if not translations]
            waiting.sort(key=lambda i: len(encoded[i][0]))
            for batch in windows(waiting, batch_size):
                source = [encoded[i][0] for i in batch]
                hypotheses = self._search(source, batch_size, options)
                for row, i in enumerate(batch):
                    token_ids, cut = encoded[i]
                    found[i] = [
                        self._translation(token_ids, cut, hypotheses, row, rank)
                        for rank in range(n_best)
                        if rank == 0 or hypotheses["lengths"][row, rank]
                    ]
            yield from found

    def _encode(self, sentence):
        """Token ids, and whether some are missing."""
        token_ids = self.subwords.encode(sentence)
        longest = self.config.max_length
        if len(token_ids) <= longest:
            return token_ids, False
        return [*token_ids[: longest - 1], END], True

    def _search(self, token_ids, batch_size, options):
        """What the search finds, as arrays, for a batch of lists of token ids."""
        columns = max(map(len, token_ids))
        if self.jit_compile:
            columns = self._rounded(columns)
            rows = power_of_two(len(token_ids), batch_size)
            token_ids = token_ids + token_ids[-1:] * (rows - len(token_ids))
        source = pad(token_ids, columns=columns)
        search = self.search(self.longest(source.shape[1]), **options)
        found = search.predict_on_batch({"source": source})
        return {name: keras.ops.convert_to_numpy(x) for name, x in found.items()}

    def longest(self, length):
        """Largest number of tokens that a translation of so many may have."""
        ratio = self.config.length_ratio
        ratio = 2.0 if ratio is None else ratio
        return self._rounded(ratio * (length + LENGTH_SLACK))

    def _rounded(self, length):
        """One of a few lengths, up to the largest."""
        rounded = max(math.ceil(length / LENGTH_STEP), 1) * LENGTH_STEP
        return min(rounded, self.config.max_length)

    def search(self, max_length=None, *, beam_size=5, length_penalty=1.0):
        """The compiled search as a Keras model; see `TranslationSearch`.

        How many tokens a translation may have depends on its sentence; more than
        `max_length`, that of the `ModelConfig` if omitted, none has.
        """
        max_length = max_length or self.config.max_length
        key = (max_length, beam_size, length_penalty)
        if key not in self._searches:
            find = functools.partial(
                beam_search,
                beam_size=beam_size,
                length_penalty=length_penalty,
                early_stopping=True,
                banned=self.subwords.banned,
            )
            self._searches[key] = TranslationSearch(
                self.network,
                max_length,
                find,
                limits=tuple(map(self.longest, range(self.config.max_length + 1))),
                jit_compile=self.jit_compile,
            )
        return self._searches[key]

    def _translation(self, source_ids, cut, found, row, rank):
        source_words, source_places = self.subwords.words(source_ids)
        token_ids = found["token_ids"][row, rank]
        words, places = self.subwords.words(token_ids)
        weights = found["weights"][row, rank]
        if self.config.attention == "none":
            # There is one weight, of everything.
            weights = np.zeros((len(places), len(source_places)))
        # As if the end were one more word.
        merged = merge_weights(weights, [*source_places, len(source_words)], places)
        return Translation(
            text=self.subwords.decode(token_ids),
            source_words=source_words,
            words=words,
            score=float(found["scores"][row, rank]),
            log_probability=float(found["log_probs"][row, rank]),
            weights=merged[:, :-1],
            end_weights=merged[:, -1],
            cut=cut,
        )


def _nothing():
    return Translation("", [], [], 0.0, 0.0, np.zeros((0, 0)), np.zeros(0))


def length_ratio(subwords, pairs):
    """By how much translations may outgrow their sentences, as almost all pairs do.

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
