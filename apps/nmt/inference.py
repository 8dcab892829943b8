"""Translations: a trained network, its subwords, and the search."""

import functools

import keras
import numpy as np
from keras_attention_apps.common.hypotheses import hypotheses
from keras_attention_apps.common.network.compiling import power_of_two
from keras_attention_apps.common.network.replicas import predict_rows
from keras_attention_apps.common.schema import BeamConfig
from keras_attention_apps.common.task import Task
from keras_attention_apps.common.tokens import PAD
from keras_attention_apps.nmt.config import RUNTIME_OPTIONS, ModelConfig
from keras_attention_apps.nmt.data.padding import pad
from keras_attention_apps.nmt.network.building import build_network
from keras_attention_apps.nmt.translations import LENGTH_SLACK, BaseTranslator

from keras_attention import beam_search


class Translator(BaseTranslator, Task):
    """Translates sentences, with the word alignment of every translation.

    Args:
        config: The complete `ModelConfig` of the network.
        tokenizer: Its `Subwords`.
        network: The `TranslationNetwork`.
        jit_compile: Whether XLA compiles the search, as it always does on JAX. That
            takes seconds for every shape, and is up to four times as fast from then on.
            Sentences are padded to multiples of 16 subwords, and batches to powers of
            two, so that there are few shapes.

    Raises:
        UserError: If `jit_compile` is requested on PyTorch.
    """

    config_type = ModelConfig
    search_type = BeamConfig
    runtime_options = RUNTIME_OPTIONS
    build_network = staticmethod(build_network)

    @property
    def max_length(self):
        return self.config.max_length

    @property
    def length_ratio(self):
        return self.config.length_ratio

    @property
    def attends(self):
        return self.config.attention != "none"

    def _search(self, token_ids, batch_size, n_best, search):
        columns = max(map(len, token_ids))
        if self.jit_compile:
            columns = self._rounded(columns)
            rows = power_of_two(len(token_ids), batch_size)
            token_ids = token_ids + token_ids[-1:] * (rows - len(token_ids))
        source = pad(token_ids, columns=columns)
        search_model = self.search_model(self.longest(source.shape[1]), **search)
        return hypotheses(predict_rows(search_model, {"source": source}), n_best)

    def search_model(self, max_length=None, *, beam_size=5, length_penalty=1.0):
        """Return the compiled beam search as a Keras model; see `SearchModel`.

        Args:
            max_length: Maximum number of tokens; that of the `ModelConfig` if omitted.
                The limit of each translation also depends on its sentence.
            beam_size: Beam width: number of hypotheses kept at each step; 1 is greedy
                search.
            length_penalty: Hypotheses are ranked by log-probability divided by
                `length ** length_penalty`.
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


def length_ratio(subwords, pairs):
    """Measure the ratio of target to source length, as its 99.9 % quantile.

    Returns:
        Ratio r such that in 999 of 1000 pairs, the target of a sentence of n tokens has
        at most `r (n + LENGTH_SLACK)` tokens.
    """
    sources, targets = (
        np.array([len(ids) for ids in subwords.encode_all(side)])
        for side in (pairs.source, pairs.target)
    )
    ratio = np.quantile(targets / (sources + LENGTH_SLACK), 0.999)
    return float(np.ceil(max(ratio, 0.5) * 10) / 10)
