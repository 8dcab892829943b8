"""Translations of sentences on any runtime, and a translator that runs on LiteRT."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from keras_attention_apps import nmt
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.hypotheses import (
    Described,
    Hypothesis,
    check_batch_size,
    check_n_best,
    check_several,
)
from keras_attention_apps.common.litert import LiteTask
from keras_attention_apps.common.models import Runtimes, loading
from keras_attention_apps.common.options import Length, LengthRatio, Natural
from keras_attention_apps.common.text import END, StoredTokenizer, has_unspaced
from keras_attention_apps.nmt.config import PRESETS, TranslationSearchOptions
from keras_attention_apps.nmt.data.glossary import Glossary, count_phrase, encode_phrase
from keras_attention_apps.nmt.text import (
    Copying,
    Subwords,
    aligned_words,
    alignment_of,
    block_diagonal,
    join_sentences,
    merge_weights,
    pad,
    split_sentences,
)

# Sentences are sorted by length within this many batches.
SORTED_BATCHES = 16
# Maximum number of sentences of a text. Its attention has the size of their square.
MAX_SENTENCES = 100
# The number of tokens before a phrase that may begin everywhere.
ANYWHERE = -1
T = TypeVar("T")


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` successive items; the last may be shorter."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk


@dataclasses.dataclass(frozen=True)
class Translation:
    """A translation of one sentence, or of a text of several.

    In several sentences, words attend to words of the same sentence alone.

    Attributes:
        text: The translation.
        source_words, words: The words of the sentence and of the translation, separated
            at spaces; in scripts without spaces, subwords.
        score: Score by which translations are ranked; of several sentences, their mean.
        log_probability: Natural logarithm of the translation's probability.
        weights: Attention `(len(words), len(source_words))`; all are zero for a model
            without attention.
        end_weights: Attention to the end of the sentence, `(len(words),)`. With it, a
            row sums to one, unless the attention is local.
        cut: Whether a sentence was too long, and is translated in part, or the text has
            more than `MAX_SENTENCES`.
        omitted: The target phrases of the glossary that did not fit.
        subwords: The subwords of the translation, and the end token, if it has ended;
            of several sentences, each with its end token.
        probabilities: Probability of each subword, given those before it.
        unsure: Whether the mean log-probability is below the limit of the model's
            `Calibration`; of several sentences, whether that of one of them is. `None`
            for a model without calibration.
    """

    text: str
    source_words: list[str]
    words: list[str]
    score: float
    log_probability: float
    weights: np.ndarray
    end_weights: np.ndarray
    cut: bool = False
    omitted: list[str] = dataclasses.field(default_factory=list)
    subwords: list[str] = dataclasses.field(default_factory=list)
    probabilities: list[float] = dataclasses.field(default_factory=list)
    unsure: bool | None = None

    @property
    def mean_log_probability(self) -> float:
        """Mean over the subwords and the end token.

        The larger it is, the more confident the model is.
        """
        return self.log_probability / max(len(self.subwords), 1)

    @classmethod
    def joined(cls, translations: Sequence["Translation"]) -> "Translation":
        """Return the translation of a text from those of its sentences."""
        if len(translations) == 1:
            return translations[0]

        def together(name):
            return [x for one in translations for x in getattr(one, name)]

        # Only a calibrated model says whether it is unsure.
        unsure = [one.unsure for one in translations if one.unsure is not None]
        return cls(
            text=join_sentences(one.text for one in translations),
            source_words=together("source_words"),
            words=together("words"),
            score=float(np.mean([one.score for one in translations])),
            log_probability=sum(one.log_probability for one in translations),
            weights=block_diagonal([one.weights for one in translations]),
            end_weights=np.concatenate([one.end_weights for one in translations]),
            cut=any(one.cut for one in translations),
            omitted=together("omitted"),
            subwords=together("subwords"),
            probabilities=together("probabilities"),
            unsure=any(unsure) if unsure else None,
        )

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """Pairs of a source word and a target word, counted from 0.

        A word without weights, or with its largest weight on the end token, has none.
        """
        return alignment_of(self.weights, self.end_weights)

    def details(self) -> dict[str, Any]:
        """Return a dict that JSON can hold, without `end_weights`, `cut`, `omitted`."""
        optional = {} if self.unsure is None else {"unsure": self.unsure}
        return {
            "translation": self.text,
            "score": round(self.score, 4),
            "source_words": self.source_words,
            "words": self.words,
            "subwords": self.subwords,
            "probabilities": [round(x, 4) for x in self.probabilities],
            "log_probability": round(self.log_probability, 4),
            "mean_log_probability": round(self.mean_log_probability, 4),
            "alignment": [f"{source}-{target}" for source, target in self.alignment],
            "attention": self.weights.round(4).tolist(),
            **optional,
        }


@dataclasses.dataclass(frozen=True)
class _Source:
    """A sentence as the search reads it, with the target phrases of a glossary.

    `phrases` are their token ids, and `places` the sets of indices of the words that
    each translates, empty where words have no spaces between them. `omitted` are the
    phrases that did not fit.
    """

    token_ids: list
    cut: bool
    phrases: list
    places: list
    omitted: list


class BaseTranslator(Described):
    """Translates sentences, with the word alignment of every translation.

    Subclasses set the attributes and implement `_search`. They also inherit from `Task`
    or `LiteTask`, which implement `search_options`.

    Attributes:
        tokenizer: The `Subwords`.
        max_length: Maximum number of subwords of a sentence, END included.
        attends: Whether the model has attention.
        extra_ids: Number of extended ids for words of the source; 0 without copying.
    """

    noun = "translator"
    presets = PRESETS
    tokenizer_type: type[StoredTokenizer] = Subwords
    tokenizer: Subwords
    max_length: int
    attends: bool
    extra_ids: int
    search_options: Callable[..., dict[str, Any]]

    @functools.cached_property
    def copying(self) -> Copying | None:
        """The `Copying` of the vocabulary; `None` without copying."""
        return Copying(self.tokenizer) if self.extra_ids else None

    @overload
    def translate(self, sentences: str, **options: Any) -> Translation: ...

    @overload
    def translate(
        self, sentences: Iterable[str], **options: Any
    ) -> list[Translation]: ...

    def translate(self, sentences, **options):
        """Translate one sentence or several.

        Args:
            sentences: A string, or a list of them.
            **options: Options of `translate_each`, except `n_best`.

        Returns:
            A `Translation`, or a list of them for a list of sentences.
        """
        single = isinstance(sentences, str)
        found = self.translate_each([sentences] if single else sentences, **options)
        best = [translations[0] for translations in found]
        return best[0] if single else best

    def translate_each(
        self,
        sentences: Iterable[str],
        *,
        n_best: int = 1,
        batch_size: int = 64,
        split: bool = True,
        glossary: Glossary | dict[str, str] | None = None,
        **search: Any,
    ) -> Iterator[list[Translation]]:
        """Translate any number of sentences, in batches of similar length.

        Several batches are read and sorted by length before the first is translated.
        With a batch size of 1, every sentence is translated before the next is read.

        Args:
            sentences: Iterable of strings.
            split: Whether a string of several sentences is translated sentence by
                sentence; see `split_sentences`. Of such a string, the `n_best`
                translations are those with the highest mean score of their sentences.
            n_best: Translations of a sentence, at most the beam width. There are fewer
                where the search finds fewer.
            batch_size: Batch size, in sentences.
            glossary: `Glossary`, or a dict from source phrases to target phrases. Where
                a source phrase occurs in a sentence, its translations contain the
                target phrase. Phrases that exceed the maximum length of the model
                are left out, from the end.
            **search: Options of the beam search: `beam_size` (5), where 1 is greedy
                search; `length_penalty` (1.0), which ranks hypotheses by
                log-probability / length ** penalty; `min_length_ratio` (0.0) and
                `max_length_ratio`, limits of the length relative to the source, in
                subwords; `beam_groups` (1) and `diversity_penalty` (0.5) of diverse
                beam search.

        Yields:
            For each sentence, in order, the list of its `Translation`s, best first.

        Raises:
            ValueError: If `n_best` or `batch_size` is out of range, or `sentences` is a
                string.
        """
        if isinstance(glossary, dict):
            glossary = Glossary(glossary)
        search = self.search_options(**search)
        check_several(sentences)
        check_n_best(n_best, search)
        check_batch_size(batch_size)
        counts: collections.deque[int] = collections.deque()

        def parts():
            for text in sentences:
                found = split_sentences(text) if split else [text]
                counts.append(len(found))
                yield from found[:MAX_SENTENCES]

        options = batch_size, n_best, search
        found = self._translate_sentences(parts(), glossary, options)
        for first in found:
            count = counts.popleft()
            others = itertools.islice(found, min(count, MAX_SENTENCES) - 1)
            joined = joined_best([first, *others], n_best)
            if count > MAX_SENTENCES:
                joined = [dataclasses.replace(one, cut=True) for one in joined]
            yield joined

    def _translate_sentences(self, sentences, glossary, options):
        """Yield the list of `Translation`s of each sentence, as `translate_each`."""
        batch_size, *_ = options
        # In batches of one sentence, sorting saves nothing.
        sorted_batches = SORTED_BATCHES if batch_size > 1 else 1
        for chunk in chunks(sentences, batch_size * sorted_batches):
            sources = [self._source(sentence, glossary) for sentence in chunk]
            found = [
                None if len(x.token_ids) > 1 else [self.marked(_empty_translation())]
                for x in sources
            ]
            waiting = [i for i, translations in enumerate(found) if not translations]
            waiting.sort(key=lambda i: len(sources[i].token_ids))
            for batch in chunks(waiting, batch_size):
                ranked = self._hypotheses([sources[i] for i in batch], *options)
                for i, ranked_of_one in zip(batch, ranked, strict=True):
                    found[i] = [self._translation(sources[i], x) for x in ranked_of_one]
            yield from found

    def _hypotheses(self, sources, *options):
        """Return the best hypotheses of each `_Source` of a batch, best first.

        The phrases of a glossary replace words that a first search finds.
        """
        token_ids = [source.token_ids for source in sources]
        # Padding of a batch gives further hypotheses.
        found = self._search(token_ids, *options)[: len(sources)]
        replaced = list(map(self._replaced, sources, found))
        again = [i for i, (begins, _) in enumerate(replaced) if begins]
        if again:
            phrases = [(sources[i].phrases, *replaced[i]) for i in again]
            arguments = [token_ids[i] for i in again], *options, phrases
            second = self._search(*arguments)
            for i, ranked in zip(again, second, strict=False):
                found[i] = ranked
        return found

    def _replaced(self, source, ranked):
        """Return where the phrases of a source begin, and which tokens they replace.

        For each phrase, these are the number of tokens before it, or `ANYWHERE`, and
        the tokens of the best hypothesis in its place; `[]` if there are none, or if
        they occur elsewhere, too. Both lists are empty if there are no phrases, or all
        hypotheses have each in its place.
        """
        if not source.phrases:
            return [], []
        spans = [self._spans(source, one) for one in ranked]
        if all(
            tuple(one.token_ids[slice(*span)]) == tuple(phrase)
            for one, of_one in zip(ranked, spans, strict=True)
            for phrase, span in zip(source.phrases, of_one, strict=True)
        ):
            return [], []
        best, token_ids = spans[0], ranked[0].token_ids.tolist()
        banned = [token_ids[slice(*span)] for span in best]
        for i, (phrase, tokens) in enumerate(zip(source.phrases, banned, strict=True)):
            if count_phrase(token_ids, tokens) != 1 or count_phrase(phrase, tokens):
                banned[i] = []
        begins, shift, earliest = [ANYWHERE] * len(best), 0, 0
        for begin, end, i in sorted((*span, i) for i, span in enumerate(best)):
            if begin == end:
                continue
            begins[i] = max(begin + shift, earliest)
            earliest = begins[i] + len(source.phrases[i])
            shift += len(source.phrases[i]) - (end - begin)
        return begins, banned

    def _spans(self, source, hypothesis):
        """Return the tokens of a hypothesis that translate the source of each phrase.

        They are a begin and an end, without punctuation around them, or two zeros.
        """
        token_ids, origins, weights = self._expanded(source, hypothesis)
        _, places = self.tokenizer.words(token_ids)
        source_places = self.tokenizer.word_places(source.token_ids)
        weights = merge_weights(weights, source_places, places)
        spans = []
        for of_phrase in source.places:
            aligned = aligned_words(weights, of_phrase)
            tokens = [
                token
                for token, word in enumerate(places)
                if word in aligned and self._has_letters(token_ids[token])
            ]
            spans.append(
                (origins[tokens[0]], origins[tokens[-1]] + 1) if tokens else (0, 0)
            )
        return spans

    def _has_letters(self, token):
        byte = self.tokenizer.bytes.get(token)
        # From 128 on, it is a part of a character, which may be a letter.
        text = self.tokenizer.pieces[token] if byte is None else chr(byte)
        return (byte or 0) >= 128 or any(map(str.isalnum, text))

    def _expanded(self, source, hypothesis):
        """Return the token ids of a hypothesis, without extended ids.

        Also return the index of the token from which each comes, and its attention.
        """
        token_ids, weights = hypothesis.token_ids, hypothesis.weights
        origins: Sequence[int] = range(len(token_ids))
        if self.copying:
            token_ids, origins = self.copying.expand(token_ids, source.token_ids)
            weights = weights[origins]
        return token_ids, origins, weights

    def _source(self, sentence: str, glossary: Glossary | None) -> _Source:
        """Return the `_Source` of a sentence and a `Glossary`, which may be `None`."""
        token_ids = self.tokenizer.encode(sentence)
        cut = len(token_ids) > self.max_length
        if cut:
            token_ids = [*token_ids[: self.max_length - 1], END]
        if not glossary:
            return _Source(token_ids, cut, [], [], [])
        if cut:
            # Phrases of the rest have nothing to translate.
            sentence = self.tokenizer.decode(token_ids)
        found = glossary.find(sentence)
        phrases = self._phrases(found)
        while sum(map(len, phrases)) >= self.max_length:
            phrases.pop()
        is_aligned = self.attends and not has_unspaced(sentence)
        places = [x if is_aligned else set() for x in found.values()]
        omitted = list(found)[len(phrases) :]
        return _Source(token_ids, cut, phrases, places[: len(phrases)], omitted)

    def _phrases(self, targets):
        """Return target phrases as lists of token ids."""
        return [encode_phrase(self.tokenizer, phrase) for phrase in targets]

    def _search(self, token_ids, batch_size, n_best, search, phrases=()):
        """Return the best hypotheses of each sentence of a batch, best first.

        `phrases` has for each sentence the phrases that its translations contain, and
        for each of these where it begins and which tokens it replaces; see `_replaced`.
        """
        raise NotImplementedError

    def _translation(self, source: _Source, hypothesis: Hypothesis) -> Translation:
        token_ids, origins, weights = self._expanded(source, hypothesis)
        source_words, source_places = self.tokenizer.words(source.token_ids)
        words, places = self.tokenizer.words(token_ids)
        # A word that was copied is one subword.
        subwords = [""] * len(hypothesis.token_ids)
        for token, origin in zip(token_ids, origins, strict=True):
            subwords[origin] += self.tokenizer.pieces[token]
        length = hypothesis.length
        if not self.attends:
            # The only weight is that of the summary vector.
            weights = np.zeros((len(places), len(source_places)))
        # The end token is one more word.
        merged = merge_weights(weights, [*source_places, len(source_words)], places)
        translation = Translation(
            text=self.tokenizer.decode(token_ids),
            source_words=source_words,
            words=words,
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            weights=merged[:, :-1],
            end_weights=merged[:, -1],
            cut=source.cut,
            omitted=source.omitted,
            subwords=subwords[:length],
            probabilities=np.exp(hypothesis.token_log_probabilities[:length]).tolist(),
        )
        return self.marked(translation)


def joined_best(ranked: Iterable[list[Translation]], n_best: int) -> list[Translation]:
    """Return the best translations of a text, from those of its sentences."""
    best: list[tuple[Translation, ...]] = [()]
    for translations in ranked:
        longer = [
            (*chosen, one)
            for place, chosen in enumerate(best)
            # Combinations that are worse than `n_best` others are left out.
            for one in translations[: n_best // (place + 1)]
        ]
        longer.sort(key=lambda chosen: -sum(one.score for one in chosen))
        best = longer[:n_best]
    return [Translation.joined(chosen) for chosen in best]


def _empty_translation() -> Translation:
    return Translation("", [], [], 0.0, 0.0, np.zeros((0, 0)), np.zeros(0))


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

    search_type = TranslationSearchOptions
    metadata_type = Metadata
    tokenizer: Subwords
    lengths: list[int]

    def _phrases(self, targets):
        raise UserError(
            "a LiteRT file has no input for the phrases of a glossary: translate with "
            f"Keras. Received: {self.path}"
        )

    def _search(self, token_ids, batch_size, n_best, search, phrases=()):
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


RUNTIMES = Runtimes(lambda: nmt.Translator, LiteTranslator)
