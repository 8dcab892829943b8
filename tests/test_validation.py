"""Numbers and booleans that arguments refuse, with the name of the argument."""

import json
import math
import re

import keras
import numpy as np
import pytest

from keras_attention import (
    AdditiveAttention,
    AdditiveScore,
    AttentionCell,
    AttentionPooling,
    DotScore,
    HardWeighting,
    InverseSigmoidRate,
    LayerNormGRUCell,
    LocalPredictiveWindow,
    LocationScore,
    LuongAttention,
    MochaWeighting,
    MonotonicWeighting,
    PositionEncoding,
    RecurrentEncoder,
    ReinforceLoss,
    RotaryPositions,
    ScheduledSampling,
    SelfAttention,
    SequenceCrossentropy,
    ShawPositions,
    SoftmaxWeighting,
    T5Positions,
    beam_search,
    sample_search,
)

SEQUENCE = np.zeros((2, 3, 5), "float32")
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


def encoder(**options):
    return RecurrentEncoder(keras.layers.GRUCell(3), **options)


def called_additive(**options):
    return AdditiveAttention(8)(SEQUENCE, SEQUENCE, **options)


def called_self_attention(**options):
    return SelfAttention(2, 2)(SEQUENCE, **options)


def called_symbolic(**options):
    return SelfAttention(2, 2)(keras.KerasTensor(SEQUENCE.shape), **options)


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (additive, "dropout", ["0.1", None, True, math.nan]),
        (additive, "causal", ["no", None]),
        (additive, "normalize", ["no"]),
        (additive, "coverage", ["no"]),
        (additive, "use_bias", ["no"]),
        (AttentionPooling, "penalty", [None, math.inf]),
        (AttentionPooling, "use_bias", ["no"]),
        (DotScore, "scaled", ["yes", 1]),
        (HardWeighting, "soft_probability", [None, "0.5"]),
        (InverseSigmoidRate, "k", [None, math.inf]),
        (LuongAttention, "half_width", [-3]),
        (LuongAttention, "units", [-7]),
        (LuongAttention, "positions", ["5"]),
        (MonotonicWeighting, "noise", [None, math.inf]),
        (MonotonicWeighting, "score_bias", [None, math.nan]),
        (ReinforceLoss, "momentum", [None]),
        (T5Positions, "bidirectional", ["no"]),
        (ShawPositions, "use_values", ["no"]),
        (encoder, "return_state", ["no"]),
        (called_additive, "use_causal_mask", ["no"]),
        (called_self_attention, "use_causal_mask", ["no"]),
        (called_symbolic, "use_causal_mask", ["no"]),
        (AdditiveAttention, "units", [True, 2.0]),
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
        with pytest.raises(ValueError, match=rf"{name} must be .*Received: {value!r}"):
            make(**{name: value})


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (AdditiveAttention, {"units": 4}),
        (AttentionPooling, {"units": 4, "hops": 2}),
        (LayerNormGRUCell, {"units": 4}),
        (LocalPredictiveWindow, {"half_width": 2, "units": 3}),
        (AdditiveScore, {"units": 4}),
        (LocationScore, {"positions": 4}),
        (LuongAttention, {"score": "concat", "units": 4}),
        (LuongAttention, {"score": "location", "positions": 4}),
        (LuongAttention, {"window": "local-m", "half_width": 4}),
        (MochaWeighting, {"chunk_size": 4}),
        (PositionEncoding, {"max_length": 4}),
        (SelfAttention, {"num_heads": 4, "key_dim": 3, "num_key_value_heads": 2}),
        (SelfAttention, {"num_heads": 4, "key_dim": 3, "value_dim": 2}),
        (SelfAttention, {"num_heads": 1, "key_dim": 3, "attention_axes": [1]}),
        (T5Positions, {"num_buckets": 4, "max_distance": 8}),
        (ShawPositions, {"max_distance": 8}),
        (cell, {"attentional_vector": 4}),
    ],
)
def test_integers_of_numpy_are_plain_in_the_config(make, options):
    given = {
        name: keras.tree.map_structure(np.int64, x) if name not in NAMES else x
        for name, x in options.items()
    }

    found, expected = (make(**x).get_config() for x in (given, options))

    for config in (found, expected):
        config.pop("name", None)
    assert plain(found) == plain(expected)


NAMES = ("score", "window")


def plain(config):
    """Return a config as JSON, which takes no NumPy integers, without layer names."""
    return re.sub(r'"name": "[^"]*"|"shared_object_id": \d+', "", json.dumps(config))
