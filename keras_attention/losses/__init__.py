"""Losses for sequences and for attention weights."""

from keras_attention.losses.attention import attention_supervision
from keras_attention.losses.attention import coverage_loss
from keras_attention.losses.attention import doubly_stochastic_penalty
from keras_attention.losses.crossentropy import SequenceCrossentropy
from keras_attention.losses.crossentropy import sequence_crossentropy
from keras_attention.losses.linear_crossentropy import linear_crossentropy
from keras_attention.losses.pointer import PointerCrossentropy
from keras_attention.losses.pointer import pointer_crossentropy
from keras_attention.losses.reinforce import ReinforceLoss

__all__ = [
    "PointerCrossentropy",
    "ReinforceLoss",
    "SequenceCrossentropy",
    "attention_supervision",
    "coverage_loss",
    "doubly_stochastic_penalty",
    "linear_crossentropy",
    "pointer_crossentropy",
    "sequence_crossentropy",
]
