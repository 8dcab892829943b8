"""Translations: a trained network, its subwords, and the search."""

import functools
import math

import keras
import numpy as np

from keras_attention import (
    BannedPhrases,
    Constraint,
    ExactlyOnce,
    MinLength,
    NoLoops,
    RequiredPhrases,
    beam_search,
)
from keras_attention_apps.common.distribution import predict_rows
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.inference import Hypothesis, hypotheses
from keras_attention_apps.common.network.decoder_network import power_of_two
from keras_attention_apps.common.task import Task
from keras_attention_apps.common.tokenizer import PAD, START, UNKNOWN
from keras_attention_apps.nmt.config import (
    RUNTIME_OPTIONS,
    ModelConfig,
    TranslationSearchOptions,
)
from keras_attention_apps.nmt.data.glossary import word_continuations
from keras_attention_apps.nmt.network import build_network
from keras_attention_apps.nmt.network.shortlisted import ShortlistedNetwork
from keras_attention_apps.nmt.network.translation_network import ForcedDecoding
from keras_attention_apps.nmt.subwords import Subwords, pad
from keras_attention_apps.nmt.translations import LOOP, LOOP_TOKENS, BaseTranslator

# Padding of phrases, and of the places where they begin.
NO_TOKEN = -1
# Maximum lengths are rounded up to multiples of this, because XLA compiles for each
# length.
LENGTH_STEP = 16
# Extra tokens that the translation of a short sentence may have.
LENGTH_SLACK = 5


class Translator(BaseTranslator, Task):
    """Translates sentences, with the word alignment of every translation.

    Args:
        config: The complete `ModelConfig` of the network.
        tokenizer: Its `Subwords`.
        network: The `TranslationNetwork`.
        jit_compile: Whether XLA compiles the search, as it always does on JAX. That
            takes seconds for every shape; from then on, the search is up to 5.6 times
            as fast. Sentences are padded to multiples of 16 subwords, and batches to
            powers of two, so that there are few shapes.

    Raises:
        UserError: If `jit_compile` is requested on PyTorch.
    """

    tokenizer: Subwords
    config_type = ModelConfig
    search_type = TranslationSearchOptions
    runtime_options = RUNTIME_OPTIONS
    build_network = staticmethod(build_network)

    def __init__(self, config, tokenizer, network, **options):
        super().__init__(config, tokenizer, network, **options)
        self.extra_ids, self.length_ratio = config.extra_ids, config.length_ratio
        self.attends = config.attention != "none"
        if self.copying:
            network.kinds = self.copying.kinds

    def member_network(self, other):
        if self.extra_ids or other.extra_ids:
            raise UserError("a translator with copying cannot be in an ensemble")
        if self.attends != other.attends:
            raise UserError(
                "all translators of an ensemble must have attention, or none of them"
            )
        if self.max_length != other.max_length:
            raise UserError(
                "the translators of an ensemble must have the same max_length. "
                f"Received: {self.max_length} and {other.max_length}"
            )
        return super().member_network(other)

    def _search(self, token_ids, batch_size, n_best, search, phrases=()):
        columns = max(map(len, token_ids))
        if self.jit_compile or len(token_ids) == 1:
            # TensorFlow would trace the search again for a sentence of another length.
            columns = self._rounded(columns)
        if self.jit_compile:
            rows = power_of_two(len(token_ids), batch_size)
            token_ids = token_ids + token_ids[-1:] * (rows - len(token_ids))
            phrases = [*phrases, *phrases[-1:] * (rows - len(phrases))]
        inputs = {"source": pad(token_ids, columns=columns)}
        required = ()
        if phrases:
            required, begins, banned = zip(*phrases, strict=True)
            inputs["phrases"] = self._padded(required)
            phrase_begins = self._padded([[[begin] for begin in row] for row in begins])
            inputs["phrase_begins"] = phrase_begins[..., 0]
            inputs["banned_phrases"] = self._padded(banned)
        longest = self.max_search_length(columns, search, required)
        search_model = self.search_model(longest, phrases="phrases" in inputs, **search)
        return hypotheses(predict_rows(search_model, inputs), n_best)

    @functools.cached_property
    def _forced_decoding(self):
        self.check_single("forced decoding")
        return ForcedDecoding(self.network, jit_compile=self.jit_compile)

    def forced_hypotheses(self, sources, targets, length_penalty=1.0):
        """Return given targets as hypotheses of a search, with their attention.

        Sources and targets are lists of token ids that end with END; those of targets
        may be extended ids. The score is that of a search with the `length_penalty`.
        """
        columns = [max(map(len, side)) for side in (sources, targets)]
        rows = len(sources)
        if self.jit_compile:
            rows = power_of_two(rows, 2**20)
            columns = [-(-size // LENGTH_STEP) * LENGTH_STEP for size in columns]
        sources, targets = list(sources), list(targets)
        fill = rows - len(sources)
        begun = [[START, *ids] for ids in targets + targets[-1:] * fill]
        inputs = {
            "source": pad(sources + sources[-1:] * fill, columns=columns[0]),
            "target": pad(begun, columns=columns[1] + 1),
        }
        outputs = predict_rows(self._forced_decoding, inputs)
        forced = []
        for row, ids in enumerate(targets):
            length = len(ids)
            log_probs = np.asarray(outputs["token_log_probs"][row, :length], "float32")
            total = float(log_probs.sum())
            forced.append(
                Hypothesis(
                    np.array(ids, "int32"),
                    total / length**length_penalty,
                    total,
                    log_probs,
                    length,
                    np.asarray(outputs["weights"][row, :length], "float32"),
                )
            )
        return forced

    def _padded(self, phrases):
        """Return phrases as an array whose sizes are powers of two: few shapes."""
        sizes = max(map(len, phrases)), max(len(x) for row in phrases for x in row)
        shape = len(phrases), *(power_of_two(max(n, 1), 2**20) for n in sizes)
        padded = np.full(shape, NO_TOKEN, "int32")
        for row, of_sentence in zip(padded, phrases, strict=True):
            for slot, phrase in zip(row, of_sentence, strict=False):
                slot[: len(phrase)] = phrase
        return padded

    def _limits(self, length, min_ratio=0.0, max_ratio=None, step=LENGTH_STEP):
        """Return the minimum and maximum number of tokens of a translation.

        They depend on the number of tokens of its source; all include END. Without a
        `max_ratio`, the length ratio of the model applies.
        """
        shortest = min(math.ceil(min_ratio * (length - 1)) + 1, self.max_length)
        if max_ratio is None:
            ratio = 2.0 if self.length_ratio is None else self.length_ratio
            longest = self._rounded(ratio * (length + LENGTH_SLACK), step)
        else:
            longest = max(math.floor(max_ratio * (length - 1)) + 1, 2)
        return shortest, max(min(longest, self.max_length), shortest)

    def _rounded(self, length, step=LENGTH_STEP):
        """Round a length up to a multiple of a step, up to the maximum."""
        rounded = max(math.ceil(length / step), 1) * step
        return min(rounded, self.max_length)

    def max_search_length(self, columns, search, phrases=(), step=LENGTH_STEP):
        """Return the maximum length of a batch of translations.

        `columns` is the number of tokens of the longest sentence, `phrases` has for
        each sentence those that its translations contain. The length is a multiple of
        `step`.
        """
        ratios = search.get("min_length_ratio", 0.0), search.get("max_length_ratio")
        needed = max((sum(map(len, x)) + 1 for x in phrases), default=0)
        longest = self._limits(columns, *ratios, step)[1]
        return self._rounded(max(longest, needed), step)

    def search_model(
        self,
        max_length=None,
        *,
        min_length_ratio=0.0,
        max_length_ratio=None,
        phrases=False,
        shortlist=None,
        **beam,
    ):
        """Return the compiled beam search as a Keras model; see `SearchModel`.

        Args:
            max_length: Maximum number of tokens; that of the `ModelConfig` if omitted.
                The limit of each translation also depends on its sentence.
            min_length_ratio, max_length_ratio: See `TranslationSearchOptions`.
            phrases: Whether there are three more inputs. `"phrases"`, `(B, C, P)`, has
                token ids of the phrases that the translations contain, padded with
                `NO_TOKEN`. `"phrase_begins"`, `(B, C)`, is the number of tokens before
                each of them, or a negative number. `"banned_phrases"`, `(B, C, R)`, has
                token ids of the phrases that they do not contain.
            shortlist: `Shortlist`, from which the subwords of each sentence are chosen.
                There are then no phrases.
            **beam: Further options of `keras_attention.beam_search`.
        """
        beam = {"early_stopping": True, **beam}
        return self._search_model(
            functools.partial(beam_search, **beam),
            max_length,
            (min_length_ratio, max_length_ratio),
            key=(phrases, id(shortlist), *sorted(beam.items())),
            shortlist=shortlist,
        )

    def _search_model(
        self, search, max_length, ratios, *, key, shortlist=None, **options
    ):
        """Return the `SearchModel` whose translations have limits of their lengths."""
        max_length = max_length or self.max_length
        limits = [self._limits(n, *ratios) for n in range(self.max_length + 1)]
        shortest, longest = zip(*limits, strict=True)

        def limit(inputs):
            max_tokens = _by_length(longest, inputs)
            if "phrases" not in inputs:
                return max_tokens
            is_token = keras.ops.cast(inputs["phrases"] != NO_TOKEN, "int32")
            return keras.ops.maximum(
                max_tokens, keras.ops.sum(is_token, axis=(1, 2)) + 1
            )

        def positions(inputs):
            # Without attention, the only position is the summary vector.
            return keras.ops.shape(inputs["source"])[1] if self.attends else 1

        def constraints(inputs):
            # A hypothesis never ends in a loop.
            search_constraints: list[Constraint] = [NoLoops(LOOP_TOKENS, LOOP)]
            symbols = list(self.tokenizer.symbols.values())
            if symbols:
                source = inputs["source"][..., None]
                is_symbol = source == np.array(symbols, "int32")
                required = keras.ops.any(is_symbol, axis=1)
                if shortlist is not None:
                    symbols = [shortlist.fixed.index(symbol) for symbol in symbols]
                search_constraints.append(ExactlyOnce(symbols, required))
            if ratios[0]:
                min_tokens = np.minimum(shortest, max_length)
                search_constraints.append(MinLength(_by_length(min_tokens, inputs)))
            if "phrases" in inputs:
                phrases = RequiredPhrases(
                    inputs["phrases"],
                    not_followed_by=word_continuations(self.tokenizer),
                    begins_at=inputs["phrase_begins"],
                )
                search_constraints += [phrases, BannedPhrases(inputs["banned_phrases"])]
            return search_constraints

        if shortlist is not None:
            options["network"] = ShortlistedNetwork(self.network, shortlist)
            # All others are no candidates.
            options["banned"] = (PAD, START, UNKNOWN)
        return self._cached_search_model(
            (max_length, *ratios, *key),
            search,
            max_length,
            limit=limit,
            positions=positions,
            constraints=constraints,
            **options,
        )


def _by_length(numbers, inputs):
    """Return the number for the length of each source, `(B,)`."""
    is_token = keras.ops.cast(inputs["source"] != PAD, "int32")
    numbers = keras.ops.convert_to_tensor(numbers, dtype="int32")
    return keras.ops.take(numbers, keras.ops.sum(is_token, axis=1))


def length_ratio(subwords, pairs):
    """Measure the ratio r of target to source length, as its 99.9 % quantile.

    In 999 of 1000 pairs, the target of a sentence of n tokens has at most
    `r (n + LENGTH_SLACK)` tokens.
    """
    sources, targets = (
        np.array([len(ids) for ids in model.encode_all(side)])
        for model, side in ((subwords, pairs.source), (subwords.target, pairs.target))
    )
    ratio = np.quantile(targets / (sources + LENGTH_SLACK), 0.999)
    return float(np.ceil(max(ratio, 0.5) * 10) / 10)
