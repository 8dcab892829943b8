"""Translations of sentences on any runtime, and a translator that runs on LiteRT."""

import collections
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar, overload

import numpy as np

from keras_attention_apps.common.characters import has_unspaced
from keras_attention_apps.common.confidence import Features
from keras_attention_apps.common.errors import UserError, counted
from keras_attention_apps.common.inference import Hypothesis, Predictor
from keras_attention_apps.common.litert import LiteTask
from keras_attention_apps.common.models import loading
from keras_attention_apps.common.options import Length, LengthRatio, Natural
from keras_attention_apps.common.schema import TRANSLATION, Output
from keras_attention_apps.common.tokenizer import END, StoredTokenizer
from keras_attention_apps.common.web import markup
from keras_attention_apps.nmt import confidence_features
from keras_attention_apps.nmt.attention_weights import (
    aligned_words,
    alignment_of,
    block_diagonal,
    merge_weights,
)
from keras_attention_apps.nmt.config import PRESETS, TranslationSearchOptions
from keras_attention_apps.nmt.data.glossary import Glossary, count_phrase, encode_phrase
from keras_attention_apps.nmt.lexicon import LEXICON, Lexicon
from keras_attention_apps.nmt.sentences import Layout, Part, Prepared, join_sentences
from keras_attention_apps.nmt.subwords import WORD_BEGIN, Copying, Subwords, clean, pad
from keras_attention_apps.nmt.symbols import AlignedWords, Languages
from keras_attention_apps.nmt.views import alignment_figure

# Sentences are sorted by length within this many batches.
SORTED_BATCHES = 16
# Maximum number of sentences of a text. Its attention has the size of their square.
MAX_SENTENCES = 100
# An n-gram of up to so many tokens that follows itself so many times is a loop.
LOOP_TOKENS, LOOP = 4, 4
# Target language at the beginning of a text: `>>deu<<`.
_TARGET_LANGUAGE = re.compile("\\s*>>([^<>]+)<<\\s*")
# The number of tokens before a phrase that may begin everywhere.
ANYWHERE = -1
T = TypeVar("T")


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` successive items; the last may be shorter."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk


@dataclasses.dataclass(frozen=True)
class Translation(Output):
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
        word_probabilities: Probability of each word, given those before it.
        lost: Parts of the source that must survive, such as numbers, and whose place in
            the translation is not certain.
        is_complete: Whether the search has ended the translation, without a loop.
        confidence: Probability that the translation is usable; of several sentences,
            the smallest of theirs. `None` for a model without `Confidence`.
        unsure: Whether the translation is probably not usable, something is lost, or it
            is not complete; of several sentences, whether this holds for one of them.
            `None` for a model without calibration.
        reason: Why it is unsure, in a few words; otherwise `None`.
        doubtful: Indices of the words that are probably wrong.
        untranslated: Indices of the source words that no word seems to translate.
        features: The features of its `confidence`; `None` for several sentences.
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
    word_probabilities: list[float] = dataclasses.field(default_factory=list)
    lost: list[str] = dataclasses.field(default_factory=list)
    is_complete: bool = True
    confidence: float | None = None
    unsure: bool | None = None
    reason: str | None = None
    doubtful: list[int] = dataclasses.field(default_factory=list)
    untranslated: list[int] = dataclasses.field(default_factory=list)
    features: Features | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    schema: ClassVar = TRANSLATION
    noun: ClassVar = "translation"

    def _repr_html_(self) -> str:
        """Return the translation for a notebook: words that show where they looked."""
        return markup.notebook_output(alignment_figure, self, "the model")

    @property
    def mean_log_probability(self) -> float:
        """Mean over the subwords and the end token.

        The larger it is, the more confident the model is.
        """
        return self.log_probability / max(len(self.subwords), 1)

    @classmethod
    def joined(
        cls, translations: Sequence["Translation"], layout: Layout | None = None
    ) -> "Translation":
        """Return the translation of a text from those of its sentences.

        The `layout` of the text says where they are.
        """
        is_plain = layout is None or layout.is_plain
        if len(translations) == 1 and is_plain:
            return translations[0]
        texts = [part.text for part in translations]

        def together(name):
            return [x for part in translations for x in getattr(part, name)]

        def indices(name, words):
            """Return the indices of words of all sentences."""
            sizes = [len(getattr(part, words)) for part in translations]
            firsts = itertools.accumulate(sizes, initial=0)
            pairs = zip(translations, firsts, strict=False)
            return [first + i for part, first in pairs for i in getattr(part, name)]

        # Only a calibrated model says whether it is unsure.
        unsure = [part.unsure for part in translations if part.unsure is not None]
        confidences = [x.confidence for x in translations if x.confidence is not None]
        reasons = dict.fromkeys(part.reason for part in translations if part.reason)
        return cls(
            text=join_sentences(texts) if layout is None else layout.joined(texts),
            source_words=together("source_words"),
            words=together("words"),
            score=float(np.mean([part.score for part in translations])),
            log_probability=sum(part.log_probability for part in translations),
            weights=block_diagonal([part.weights for part in translations]),
            end_weights=np.concatenate([part.end_weights for part in translations]),
            cut=any(part.cut for part in translations),
            omitted=together("omitted"),
            subwords=together("subwords"),
            probabilities=together("probabilities"),
            word_probabilities=together("word_probabilities"),
            lost=together("lost"),
            is_complete=all(part.is_complete for part in translations),
            confidence=min(confidences, default=None),
            unsure=any(unsure) if unsure else None,
            reason="; ".join(reasons) or None,
            doubtful=indices("doubtful", "words"),
            untranslated=indices("untranslated", "source_words"),
        )

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """Pairs of a source word and a target word, counted from 0.

        A word without weights, or with its largest weight on the end token, has none.
        """
        return alignment_of(self.weights, self.end_weights)

    @property
    def warnings(self) -> list[str]:
        """Texts of the parts that were left out."""
        texts = []
        if self.cut:
            count = len(self.source_words)
            were = "was" if count == 1 else "were"
            texts.append(f"too long; only {counted(count, 'word')} {were} translated")
        if self.omitted:
            count = len(self.omitted)
            are = "does not fit, and is" if count == 1 else "do not fit, and are"
            texts.append(f"{counted(count, 'glossary phrase')} {are} left out")
        return texts


@dataclasses.dataclass(frozen=True)
class _Source:
    """A sentence as the search reads it, with the target phrases of a glossary.

    It is `prepared` from the sentence of the text. If `has_language`, the first token
    is that of the target language, which belongs to no word.

    `phrases` are their token ids, and `word_indices` the sets of indices of the words
    that each translates, empty where words have no spaces between them. `omitted` are
    the phrases that did not fit.
    """

    token_ids: list
    cut: bool
    phrases: list
    word_indices: list
    omitted: list
    prepared: Prepared
    has_language: bool = False

    @property
    def sentence_ids(self):
        """The token ids without that of the target language."""
        return self.token_ids[self.has_language :]

    def sentence_weights(self, weights):
        """Return attention `(T, S)` to the sentence, without the target language.

        The weights of the token of the language are added to those of the end.
        """
        if not self.has_language:
            return weights
        weights = np.array(weights)
        weights[:, len(self.token_ids) - 1] += weights[:, 0]
        return weights[:, 1:]


class BaseTranslator(Predictor):
    """Translates sentences, with the word alignment of every translation.

    Subclasses set the attributes and implement `_search`. They also inherit from `Task`
    or `LiteTask`, which implement `search_options`.

    Attributes:
        tokenizer: The `Subwords`.
        max_length: Maximum number of subwords of a sentence, END included.
        attends: Whether the model has attention.
        extra_ids: Number of extended ids for words of the source; 0 without copying.
        languages: Codes of the languages of source and target, such as `("en", "de")`;
            `None` for each that is unknown.
        lexicon: `Lexicon` of the training text, by which doubtful words are found;
            `None` if there is none.
    """

    noun = "translator"
    presets = PRESETS
    tokenizer_type: type[StoredTokenizer] = Subwords
    tokenizer: Subwords
    max_length: int
    attends: bool
    extra_ids: int
    languages: Languages = (None, None)
    lexicon: Lexicon | None = None

    def read_description(self, content, read=lambda name: None):
        super().read_description(content, read)
        lexicon = read(LEXICON)
        self.lexicon = None if lexicon is None else Lexicon.from_content(lexicon)
        pair = content.get("pair")
        training = content.get("training")
        if pair is None and isinstance(training, dict):
            pair = training.get("pair")
        self.languages = languages_of(pair or content.get("name"))

    @property
    def description(self) -> dict[str, Any]:
        source, target = self.languages
        pair = {"pair": f"{source}-{target}"} if source and target else {}
        return {**super().description, **pair}

    @property
    def description_files(self):
        return {} if self.lexicon is None else {LEXICON: self.lexicon.content}

    def calibrate(self, calibration):
        super().calibrate(calibration)
        # A confidence of the old weights may use it; the new ones have none.
        self.lexicon = None

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
        return self.best(sentences, isinstance(sentences, str), **options)

    def each(self, inputs, **options):
        return self.translate_each(inputs, **options)

    def translate_each(
        self,
        sentences: Iterable[str],
        *,
        n_best: int = 1,
        batch_size: int = 64,
        split: bool = True,
        glossary: Glossary | dict[str, str] | None = None,
        target_language: str | None = None,
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
            target_language: Target language of a multilingual model, as its vocabulary
                spells it, such as `"deu"`: every sentence that the model reads begins
                with `>>deu<<`. A text that begins with such a token itself has that
                language.
            **search: Options of the beam search, `TranslationSearchOptions`:
                `beam_size`, where 1 is greedy search; `length_penalty`, which ranks
                hypotheses by log-probability / length ** penalty; `min_length_ratio`
                and `max_length_ratio`, limits of the length relative to the source, in
                subwords; `beam_groups` and `diversity_penalty` of diverse beam search.

        Yields:
            For each sentence, in order, the list of its `Translation`s, best first.

        Raises:
            ValueError: If `n_best` or `batch_size` is out of range, `sentences` is a
                string, or the model does not have the `target_language`.
        """
        if isinstance(glossary, dict):
            glossary = Glossary(glossary)
        self.check_target_language(target_language)
        search = self.checked_search(sentences, n_best, batch_size, search)
        layouts: collections.deque[Layout] = collections.deque()

        def parts():
            for text in sentences:
                language, text = self.target_language_of(text, target_language)
                layout = self.layout(text, split=split)
                layouts.append(layout)
                yield from ((x, language) for x in layout.parts[:MAX_SENTENCES])

        options = batch_size, n_best, search
        translated = self._translate_sentences(parts(), glossary, options)
        for first in translated:
            layout = layouts.popleft()
            count = len(layout.parts)
            others = itertools.islice(translated, min(count, MAX_SENTENCES) - 1)
            joined = joined_best([first, *others], n_best, layout)
            if count > MAX_SENTENCES:
                joined = [
                    dataclasses.replace(translation, cut=True) for translation in joined
                ]
            yield joined

    def _translate_sentences(self, sentences, glossary, options):
        """Yield the list of `Translation`s of each sentence, as `translate_each`.

        `sentences` are pairs of a `Part` and its target language.
        """
        batch_size, n_best, _ = options
        # In batches of one sentence, sorting saves nothing.
        sorted_batches = SORTED_BATCHES if batch_size > 1 else 1
        for chunk in chunks(sentences, batch_size * sorted_batches):
            sources = [self._source(part, glossary, x) for part, x in chunk]
            results = [
                [self.marked(_copied_translation(x.prepared))]
                if len(x.sentence_ids) == 1 or x.prepared.has_only_symbols
                else None
                for x in sources
            ]
            waiting = [i for i, translations in enumerate(results) if not translations]
            waiting.sort(key=lambda i: len(sources[i].token_ids))
            for batch in chunks(waiting, batch_size):
                ranked = self._hypotheses([sources[i] for i in batch], *options)
                for i, ranked_of_one in zip(batch, ranked, strict=True):
                    results[i] = [
                        self._translation(sources[i], x, ranked_of_one)
                        for x in ranked_of_one[:n_best]
                    ]
            yield from results

    def _hypotheses(self, sources, batch_size, n_best, search):
        """Return all hypotheses of each `_Source` of a batch, best first.

        The phrases of a glossary replace words that a first search finds.
        """
        token_ids = [source.token_ids for source in sources]
        options = batch_size, search["beam_size"], search
        # Padding of a batch gives further hypotheses.
        hypotheses = self._search(token_ids, *options)[: len(sources)]
        best = (ranked[:n_best] for ranked in hypotheses)
        replaced = list(map(self._replaced, sources, best))
        again = [i for i, (begins, _) in enumerate(replaced) if begins]
        if again:
            phrases = [(sources[i].phrases, *replaced[i]) for i in again]
            arguments = [token_ids[i] for i in again], *options, phrases
            second = self._search(*arguments)
            for i, ranked in zip(again, second, strict=False):
                hypotheses[i] = ranked
        return hypotheses

    def _replaced(self, source, ranked):
        """Return where the phrases of a source begin, and which tokens they replace.

        For each phrase, these are the number of tokens before it, or `ANYWHERE`, and
        the tokens of the best hypothesis in its place; `[]` if there are none, or if
        they occur elsewhere, too. Both lists are empty if there are no phrases, or all
        hypotheses have each in its place.
        """
        if not source.phrases:
            return [], []
        spans = [self._spans(source, hypothesis) for hypothesis in ranked]
        if all(
            tuple(hypothesis.token_ids[slice(*span)]) == tuple(phrase)
            for hypothesis, of_one in zip(ranked, spans, strict=True)
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
        _, word_indices = self.tokenizer.words(token_ids)
        source_word_indices = self.tokenizer.word_indices(source.sentence_ids)
        weights = merge_weights(weights, source_word_indices, word_indices)
        spans = []
        for of_phrase in source.word_indices:
            aligned = aligned_words(weights, of_phrase)
            tokens = [
                token
                for token, word in enumerate(word_indices)
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
        return token_ids, origins, source.sentence_weights(weights)

    @property
    def has_symbols(self) -> bool:
        """Whether the vocabulary has symbols for what must survive."""
        return bool(self.tokenizer.symbols)

    def _is_word(self, word: str) -> bool:
        """Return whether a word is one subword."""
        return f"{WORD_BEGIN}{word}" in self._pieces

    def _is_ordinary(self, word: str) -> bool:
        """Return whether a word in capital letters is a word, not an abbreviation.

        The model knows it, and takes it apart into fewer subwords if it is not in
        capital letters.
        """
        lower = word.lower()
        counts = map(self._subword_count, (lower, lower.capitalize()))
        return self._knows(lower) and min(counts) < self._subword_count(word)

    def _is_common(self, word: str) -> bool:
        """Return whether a capitalised word is usually in lower case, unlike names.

        The model knows it, and takes it apart into no more subwords then.
        """
        lower = word.lower()
        is_short = self._subword_count(lower) <= self._subword_count(word)
        return is_short and self._knows(lower)

    def _knows(self, word: str) -> bool:
        """Return whether a word is one subword, or in the training text."""
        return self._is_word(word) or bool(self.lexicon and self.lexicon.has(word))

    def _subword_count(self, word: str) -> int:
        """Return the number of subwords of a word, END included."""
        return len(self.tokenizer.encode(word))

    @functools.cached_property
    def _pieces(self) -> frozenset[str]:
        return frozenset(self.tokenizer.pieces)

    def layout(self, text: str, *, split: bool = True) -> Layout:
        """Return a text as sentences; with `split`, also as cells of a table."""
        language, target = self.languages
        return Layout(
            text, language, target=target, split=split, has_symbols=self.has_symbols
        )

    def token_count(self, sentence: str) -> int:
        """Return the number of subwords of a sentence, END included.

        Of a sentence with more numbers and the like than there are symbols, it is that
        of the longest part.
        """
        return max(map(self.part_length, self.layout(sentence, split=False).parts))

    def part_length(self, part: Part) -> int:
        """Return the number of subwords of a `Part` of a layout, END included."""
        count = len(self.tokenizer.encode(self._prepared(part, None).text))
        # One more for the target language.
        return count + bool(self.tokenizer.languages)

    def _prepared(self, part: Part, glossary: Glossary | None) -> Prepared:
        names = []
        if self.lexicon is not None and self.has_symbols:
            names = self.lexicon.names_in(part.text, self.tokenizer)
        return Prepared(
            part,
            self.languages,
            has_symbols=self.has_symbols,
            is_word=self._is_word,
            is_ordinary=self._is_ordinary,
            is_common=self._is_common,
            names=names,
            reserved=glossary.spans(part.text) if glossary else (),
        )

    def check_target_language(self, language: str | None) -> None:
        """Raise a `UserError` for a target language that the model does not have."""
        known = self.tokenizer.languages
        if language is None or language in known:
            return
        if not known:
            raise UserError(
                "target_language needs a multilingual model, whose vocabulary has "
                f"tokens such as >>deu<<. Received: {language!r:.60}"
            )
        raise UserError(
            f"target_language must be one of {', '.join(known)}. "
            f"Received: {language!r:.60}"
        )

    def target_language_of(
        self, text: str, language: str | None = None
    ) -> tuple[str | None, str]:
        """Return the target language of a text, and the text without its token.

        It is `language` unless the text begins with such a token.
        """
        match = _TARGET_LANGUAGE.match(text)
        if match and match[1] in self.tokenizer.languages:
            return match[1], text[match.end() :]
        return language, text

    def with_target_language(self, text: str, language: str | None) -> str:
        """Return a text that begins with the token of its target language, if any.

        A text that begins with such a token has that language.
        """
        language, text = self.target_language_of(text, language)
        return text if language is None else f">>{language}<< {text}"

    def _source(
        self, part: Part, glossary: Glossary | None, language: str | None = None
    ) -> _Source:
        """Return the `_Source` of a sentence and a `Glossary`, which may be `None`."""
        prepared = self._prepared(part, glossary)
        sentence = prepared.text
        token_ids = self.tokenizer.encode(sentence)
        if language is not None:
            token_ids = [self.tokenizer.languages[language], *token_ids]
        has_language = language is not None
        cut = len(token_ids) > self.max_length
        if cut:
            token_ids = [*token_ids[: self.max_length - 1], END]
        if not glossary:
            return _Source(token_ids, cut, [], [], [], prepared, has_language)
        if cut:
            # Phrases of the rest have nothing to translate.
            sentence = self.tokenizer.decode(token_ids[has_language:])
        entries = glossary.find(sentence)
        phrases = self._phrases(entries)
        while sum(map(len, phrases)) >= self.max_length:
            phrases.pop()
        is_aligned = self.attends and not has_unspaced(sentence)
        word_indices = [x if is_aligned else set() for x in entries.values()]
        omitted = list(entries)[len(phrases) :]
        word_indices = word_indices[: len(phrases)]
        return _Source(
            *(token_ids, cut, phrases, word_indices, omitted, prepared, has_language)
        )

    def _phrases(self, targets):
        """Return target phrases as lists of token ids."""
        return [encode_phrase(self.tokenizer.target, phrase) for phrase in targets]

    def _search(self, token_ids, batch_size, n_best, search, phrases=()):
        """Return the best hypotheses of each sentence of a batch, best first.

        `phrases` has for each sentence the phrases that its translations contain, and
        for each of these where it begins and which tokens it replaces; see `_replaced`.
        """
        raise NotImplementedError

    def _translation(
        self, source: _Source, hypothesis: Hypothesis, ranked: list[Hypothesis]
    ) -> Translation:
        """Return the translation of one of the `ranked` hypotheses of a sentence."""
        prepared = source.prepared
        token_ids, origins, weights = self._expanded(source, hypothesis)
        source_words, source_word_indices = self.tokenizer.words(source.sentence_ids)
        words, word_indices = self.tokenizer.words(token_ids)
        # A word that was copied is one subword.
        subwords = [""] * len(hypothesis.token_ids)
        for token, origin in zip(token_ids, origins, strict=True):
            subwords[origin] += self._piece(token, prepared)
        length = hypothesis.length
        if not self.attends:
            # The only weight is that of the summary vector.
            weights = np.zeros((len(word_indices), len(source_word_indices)))
        # The end token is one more word.
        merged = merge_weights(
            weights, [*source_word_indices, len(source_words)], word_indices
        )
        aligned, lost = prepared.postprocess(
            AlignedWords(
                source_words,
                words,
                merged[:, :-1],
                merged[:, -1],
                word_log_probabilities(hypothesis, origins, word_indices),
            )
        )
        text = " ".join(aligned.words)
        spaced = self.tokenizer.decode(token_ids).split(" ")
        if spaced != words:
            # The words are in a script without spaces.
            spaced = prepared.match_form(list(filter(None, spaced)))
            text = " ".join(prepared.fill_symbols(spaced)[0])
        tokens = list(map(int, hypothesis.token_ids[:length]))
        translation = Translation(
            text=text,
            source_words=aligned.source_words,
            words=aligned.words,
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            weights=aligned.weights,
            end_weights=aligned.end_weights,
            cut=source.cut,
            omitted=source.omitted,
            subwords=subwords[:length],
            probabilities=np.exp(hypothesis.token_log_probabilities[:length]).tolist(),
            word_probabilities=np.exp(aligned.log_probabilities).tolist(),
            lost=[*lost, *prepared.lost_in(text)],
            is_complete=tokens[-1:] == [END]
            and longest_loop(tokens) <= max(longest_loop(source.token_ids), LOOP - 1),
        )
        features = confidence_features.features_of(
            translation, source_word_indices, hypothesis, ranked, self.lexicon
        )
        return self.marked(translation, features)

    def _piece(self, token: int, prepared: Prepared) -> str:
        """Return the subword of a token, or what a symbol stands for."""
        piece = self.tokenizer.pieces[token]
        original = prepared.originals.get(piece.removeprefix(WORD_BEGIN))
        return piece if original is None else f"{WORD_BEGIN}{original.target}"

    def marked(self, output, features=None):
        output = super().marked(output, features)
        return confidence_features.with_doubts(output, self.confidence, self.lexicon)


def word_log_probabilities(
    hypothesis: Hypothesis, origins: Sequence[int], word_indices: np.ndarray
) -> np.ndarray:
    """Return the log-probability of each word of a hypothesis, given those before it.

    `origins` has for each subword up to END the index of the token from which it
    comes, and `word_indices` the index of its word.
    """
    tokens = np.array(origins[: len(word_indices)], int)
    # Several subwords of a copied word come from one token.
    first = np.append(True, tokens[1:] != tokens[:-1])[: len(tokens)]
    values = np.where(first, hypothesis.token_log_probabilities[tokens], 0.0)
    return np.bincount(
        word_indices, values, int(word_indices.max()) + 1 if len(word_indices) else 0
    )


def joined_best(
    ranked: Iterable[list[Translation]], n_best: int, layout: Layout | None = None
) -> list[Translation]:
    """Return the best translations of a text, from those of its sentences.

    The `layout` of the text says where they are.
    """
    best: list[tuple[Translation, ...]] = [()]
    for translations in ranked:
        longer = [
            (*chosen, part)
            for rank, chosen in enumerate(best)
            # Combinations that are worse than `n_best` others are left out.
            for part in translations[: n_best // (rank + 1)]
        ]
        longer.sort(key=lambda chosen: -sum(part.score for part in chosen))
        best = longer[:n_best]
    return [Translation.joined(chosen, layout) for chosen in best]


def _copied_translation(prepared: Prepared) -> Translation:
    """Return the translation of a sentence without words: its symbols, or nothing."""
    text = clean(prepared.text) if prepared.has_only_symbols else ""
    words = text.split(" ") if text else []
    source_words, _ = prepared.fill_symbols(words, is_source=True)
    words, _ = prepared.fill_symbols(words)
    weights = np.zeros((len(words), len(source_words)))
    for i in range(len(words)):
        weights[i, i * len(source_words) // len(words)] = 1.0
    return Translation(
        " ".join(words), source_words, words, 0.0, 0.0, weights, np.zeros(len(words))
    )


def longest_loop(tokens: Sequence[int]) -> int:
    """Return how often an n-gram of up to `LOOP_TOKENS` tokens follows itself.

    >>> longest_loop([5, 8, 9, 8, 9, 8, 9, 2])
    3
    """
    longest = 1
    for n in range(1, LOOP_TOKENS + 1):
        run = 0
        for i in range(n, len(tokens)):
            run = run + 1 if tokens[i] == tokens[i - n] else 0
            longest = max(longest, 1 + run // n)
    return longest


def languages_of(pair: Any) -> Languages:
    """Return the codes of the languages at the end of a name, such as `en-de`."""
    match = re.search("(?:^|-)([a-z]{2,3})-([a-z]{2,3})$", str(pair or ""))
    return (match[1], match[2]) if match else (None, None)


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
        return [hypotheses for _, hypotheses in self.in_parallel(search_one, token_ids)]

    def _search_one(self, run, n_best, token_ids):
        """Return the best hypotheses of a sentence, best first."""
        with loading(self.path, self.noun):
            columns = min(x for x in self.lengths if x >= len(token_ids))
            source = pad([token_ids], columns=columns)
            return self._run_search(run, f"length_{columns}", n_best, source=source)
