"""Losses for sequences and for attention weights."""

from keras_attention.losses.attention import (
    attention_supervision,
    coverage_loss,
    doubly_stochastic_penalty,
)
from keras_attention.losses.crossentropy import (
    SequenceCrossentropy,
    sequence_crossentropy,
)
from keras_attention.losses.linear_crossentropy import linear_crossentropy
from keras_attention.losses.pointer import PointerCrossentropy, pointer_crossentropy
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
