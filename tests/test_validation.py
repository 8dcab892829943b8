"""Numbers and booleans that arguments refuse, with the name of the argument."""

import math

import keras
import numpy as np
import pytest

from keras_attention import AdditiveAttention
from keras_attention import AttentionCell
from keras_attention import AttentionPooling
from keras_attention import DotScore
from keras_attention import HardWeighting
from keras_attention import InverseSigmoidRate
from keras_attention import LuongAttention
from keras_attention import MonotonicWeighting
from keras_attention import ReinforceLoss
from keras_attention import RotaryPositions
from keras_attention import ScheduledSampling
from keras_attention import SelfAttention
from keras_attention import SequenceCrossentropy
from keras_attention import SoftmaxWeighting
from keras_attention import beam_search
from keras_attention import sample_search

SEARCH = {"start": 0, "end": 1, "max_length": 3}


def cell(**options):
    return AttentionCell(keras.layers.GRUCell(3), AdditiveAttention(4), **options)


def beam(**options):
    return beam_search(None, np.zeros((1, 1)), **SEARCH, **options)


def sample(**options):
    return sample_search(None, np.zeros((1, 1)), **SEARCH, **options)


def additive(**options):
    return AdditiveAttention(8, **options)


def self_attention(**options):
    return SelfAttention(2, 2, **options)


def scheduled(**options):
    return ScheduledSampling(None, None, **options)


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (additive, "dropout", ["0.1", None, True, math.nan]),
        (additive, "causal", ["no", None]),
        (additive, "normalize", ["no"]),
        (additive, "coverage", ["no"]),
        (additive, "use_bias", ["no"]),
        (AttentionPooling, "penalty", [None, math.inf]),
        (DotScore, "scaled", ["yes", 1]),
        (HardWeighting, "soft_probability", [None, "0.5"]),
        (InverseSigmoidRate, "k", [None, math.inf]),
        (LuongAttention, "half_width", [-3]),
        (LuongAttention, "units", [-7]),
        (LuongAttention, "positions", ["5"]),
        (MonotonicWeighting, "noise", [None, math.inf]),
        (MonotonicWeighting, "score_bias", [None, math.nan]),
        (ReinforceLoss, "momentum", [None]),
        (RotaryPositions, "max_wavelength", [math.inf]),
        (RotaryPositions, "scaling_factor", [math.inf]),
        (SequenceCrossentropy, "label_smoothing", [None]),
        (SoftmaxWeighting, "learn_temperature", ["no"]),
        (SoftmaxWeighting, "temperature", [None, math.inf]),
        (beam, "early_stopping", ["never"]),
        (cell, "input_feeding", ["no"]),
        (cell, "input_in_query", ["no"]),
        (sample, "min_p", ["a"]),
        (sample, "temperature", [None]),
        (sample, "top_p", ["a"]),
        (scheduled, "rate", [None, "0.2"]),
        (self_attention, "causal", ["no"]),
        (self_attention, "scale", [True, math.nan, math.inf]),
        (self_attention, "use_gate", [None]),
    ],
)
def test_wrong_values_are_named(make, name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^{name} must be .*Received: {value!r}$"):
            make(**{name: value})
