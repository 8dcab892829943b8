"""Additive, Luong and self-attention for Keras 3, with decoders and search."""

from keras_attention.decoder import AttentionCell, AttentionDecoder
from keras_attention.layers.additive import AdditiveAttention
from keras_attention.losses import doubly_stochastic_penalty, sequence_crossentropy
from keras_attention.plots import attention_overlay
from keras_attention.search import beam_search, greedy_search, sample_search
from keras_attention.version import __version__

__all__ = [
    "AdditiveAttention",
    "AttentionCell",
    "AttentionDecoder",
    "__version__",
    "attention_overlay",
    "beam_search",
    "doubly_stochastic_penalty",
    "greedy_search",
    "sample_search",
    "sequence_crossentropy",
]
