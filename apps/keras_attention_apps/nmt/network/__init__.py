"""The networks of the translator, built from their configuration."""

import re
import warnings

from keras import ops

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import END
from keras_attention_apps.nmt.network.recurrent import (
    BahdanauNetwork,
    LuongNetwork,
    SummaryNetwork,
)
from keras_attention_apps.nmt.network.transformer import TransformerNetwork


def build_network(config, vocabulary_size, **options):
    """Build the network of a complete `ModelConfig`, with all its weights."""
    kinds = {
        "bahdanau": BahdanauNetwork,
        "luong": LuongNetwork,
        "self-attention": TransformerNetwork,
        "none": SummaryNetwork,
    }
    try:
        with warnings.catch_warnings():
            # Keras warns about layers that cannot be built before it raises.
            warnings.filterwarnings("ignore", category=UserWarning, module="keras")
            network = kinds[config.attention](config, vocabulary_size, **options)
            # The shapes of the weights do not depend on the sentences.
            sentence = ops.full((1, 2), END, dtype="int32")
            network({"source": sentence, "target": sentence})
    except UserError:
        raise
    except ValueError as error:
        # Keras prints the original message in bold within its own.
        bold = re.search("\x1b\\[1m(.*?)\x1b\\[0m", str(error), re.DOTALL)
        message = " ".join((bold[1] if bold else str(error)).split())
        raise UserError(f"the model cannot be built: {message}") from error
    return network
