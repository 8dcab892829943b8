"""The model: a network as it is configured, and a search over it.

Shapes: B sentences, S source tokens.
"""

import re
import warnings

import keras
from keras import ops
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.compiling import cast_beforehand
from keras_attention_apps.common.tokens import END, PAD, START
from keras_attention_apps.nmt.recurrent import (
    BahdanauNetwork,
    LuongNetwork,
    SummaryNetwork,
)
from keras_attention_apps.nmt.self_attention import SelfAttentionNetwork

# Within an error that Keras passes on, the message of the layer.
_BOLD = re.compile("\x1b\\[1m(.*?)\x1b\\[0m", re.DOTALL)


def build_network(config, vocabulary_size, **losses):
    """The network that a complete `ModelConfig` describes, with all its weights.

    Args:
        config: The `ModelConfig`.
        vocabulary_size: Number of subwords N.
        **losses: See `TranslationNetwork`.
    """
    kinds = {
        "bahdanau": BahdanauNetwork,
        "luong": LuongNetwork,
        "self-attention": SelfAttentionNetwork,
        "none": SummaryNetwork,
    }
    try:
        with warnings.catch_warnings():
            # Of layers that cannot be built, Keras warns before it fails.
            warnings.filterwarnings("ignore", category=UserWarning, module="keras")
            network = kinds[config.attention](config, vocabulary_size, **losses)
            # No weight's shape depends on the sentences.
            sentence = ops.full((1, 2), END, dtype="int32")
            network({"source": sentence, "target": sentence})
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"the model cannot be built: {_reason(error)}") from error
    return network


def _reason(error):
    """The message of an error as one line, without what Keras writes around it."""
    message = str(error)
    bold = _BOLD.search(message)
    return " ".join((bold[1] if bold else message).split())


class TranslationSearch(keras.Model):
    """A search over a network: one call from source to target.

    Args:
        network: The `TranslationNetwork`.
        max_length: Largest number of tokens, END included.
        find: One of the searches of `keras_attention`, with its own arguments bound.
        limits: For every number of tokens of a sentence, from 0 on, how many its
            translation may have; `max_length` if omitted. `beam_search` alone has them.
        seed_generator: The `keras.random.SeedGenerator` that `find` draws from, if any.
        jit_compile: Whether XLA compiles it.

    Call arguments:
        inputs: Dict with `"source"`, token ids `(B, S)`.

    Returns:
        What the search returns.
    """

    def __init__(
        self,
        network,
        max_length,
        find,
        *,
        limits=None,
        seed_generator=None,
        jit_compile=False,
    ):
        super().__init__(name="translation_search")
        self.network = network
        self.max_length = max_length
        self.find = find
        self.limits = limits
        self.seed_generator = seed_generator
        self.built = True
        self.compile(jit_compile=jit_compile)

    def call(self, inputs):
        network = self.network
        source = inputs["source"]
        memory, state = network.begin(source, self.max_length)
        options = {}
        if self.limits is not None:
            limits = ops.convert_to_tensor(self.limits, dtype="int32")
            lengths = ops.sum(ops.cast(source != PAD, "int32"), axis=1)
            options["limit"] = ops.take(limits, lengths)

        def step(token_ids, state):
            return network.step(token_ids, state, memory)

        return self.find(
            cast_beforehand(step, network),
            state,
            start=START,
            end=END,
            max_length=self.max_length,
            **options,
        )
