"""Numbers and booleans that arguments refuse, with the name of the argument."""

import json
import math
import re
from functools import partial

import keras
import numpy as np
import pytest

import keras_attention as ka

SEQUENCE = np.zeros((2, 3, 5), "float32")
SEARCH = {"start": 0, "end": 1, "max_length": 3}


def cell(**options):
    return ka.AttentionCell(keras.layers.GRUCell(3), ka.AdditiveAttention(4), **options)


beam = partial(ka.beam_search, None, np.zeros((1, 1)), **SEARCH)
sample = partial(ka.sample_search, None, np.zeros((1, 1)), **SEARCH)
additive = partial(ka.AdditiveAttention, 8)
self_attention = partial(ka.SelfAttention, 2, 2)
one_head = partial(ka.SelfAttention, num_heads=1, key_dim=1)
scheduled = partial(ka.ScheduledSampling, None, None)
encoder = partial(ka.RecurrentEncoder, keras.layers.GRUCell(3))
gru = partial(ka.LayerNormGRUCell, 3)
lstm = partial(ka.LayerNormLSTMCell, 3)
targets = np.array([1])
sequence_loss = partial(ka.sequence_crossentropy, targets, np.zeros((1, 2)))
linear_loss = partial(
    ka.linear_crossentropy, targets, np.zeros((1, 3)), np.ones((2, 3))
)


def called_additive(**options):
    return additive()(SEQUENCE, SEQUENCE, **options)


def called_self_attention(**options):
    return self_attention()(SEQUENCE, **options)


def called_symbolic(**options):
    return self_attention()(keras.KerasTensor(SEQUENCE.shape), **options)


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (ka.AdditiveAttention, "units", [0, -1, 2.5, True, "8", None, [8]]),
        (additive, "dropout", ["0.1", None, True, math.nan, 1]),
        (additive, "causal", ["no", None]),
        (additive, "normalize", ["no"]),
        (additive, "coverage", ["no"]),
        (additive, "use_bias", ["no"]),
        (ka.AttentionPooling, "hops", [0]),
        (ka.AttentionPooling, "penalty", [None, math.inf, -1]),
        (ka.AttentionPooling, "units", [0]),
        (ka.AttentionPooling, "use_bias", ["no"]),
        (ka.DotScore, "scaled", ["yes", 1]),
        (ka.HardWeighting, "estimator", ["gumbel"]),
        (ka.HardWeighting, "inference", ["sample"]),
        (ka.HardWeighting, "relaxation", [0]),
        (ka.HardWeighting, "soft_probability", [None, "0.5", 2]),
        (ka.InverseSigmoidRate, "k", [None, math.inf, 0, 0.99, -5]),
        (ka.LayerNormGRUCell, "units", [0, -1, 2.5, "7"]),
        (gru, "epsilon", [0, -1e-3]),
        (lstm, "epsilon", [0, -1e-3]),
        (ka.LayerNormLSTMCell, "units", [0, "7"]),
        (ka.LocalPredictiveWindow, "units", [0]),
        (ka.LuongAttention, "half_width", [-3]),
        (ka.LuongAttention, "units", [-7]),
        (ka.LuongAttention, "positions", ["5"]),
        (ka.MochaWeighting, "chunk_size", [0, 1.5, True]),
        (ka.MonotonicWeighting, "mode", ["soft"]),
        (ka.MonotonicWeighting, "noise", [None, math.inf, -1.0]),
        (ka.MonotonicWeighting, "score_bias", [None, math.nan]),
        (ka.PointerGenerator, "extra_ids", [-1, 2.0, True]),
        (ka.PositionEncoding, "kind", ["rotary"]),
        (ka.PositionEncoding, "max_length", [0, 2.5, True]),
        (ka.ReinforceLoss, "momentum", [None, -0.1, 1.5]),
        (ka.T5Positions, "bidirectional", ["no"]),
        (ka.ShawPositions, "use_values", ["no"]),
        (encoder, "return_state", ["no"]),
        (called_additive, "use_causal_mask", ["no"]),
        (called_self_attention, "use_causal_mask", ["no"]),
        (called_symbolic, "use_causal_mask", ["no"]),
        (ka.RotaryPositions, "fraction", [2, "all"]),
        (ka.RotaryPositions, "max_wavelength", [math.inf, 0]),
        (ka.RotaryPositions, "scaling", ["yarn"]),
        (ka.RotaryPositions, "scaling_factor", [math.inf, 0.5]),
        (ka.SequenceCrossentropy, "label_smoothing", [None, -0.1, 1.0, 3]),
        (sequence_loss, "label_smoothing", [-0.1, 1.0, 3]),
        (linear_loss, "label_smoothing", [-0.1, 1.0, 3]),
        (ka.SoftmaxWeighting, "learn_temperature", ["no"]),
        (ka.SoftmaxWeighting, "temperature", [None, math.inf, 0.0]),
        (beam, "early_stopping", ["never"]),
        (cell, "attentional_vector", [0, 2.5, "tanh"]),
        (cell, "gate", [0.5]),
        (cell, "input_feeding", ["no"]),
        (cell, "input_in_query", ["no"]),
        (sample, "min_p", ["a"]),
        (sample, "temperature", [None]),
        (sample, "top_p", ["a"]),
        (scheduled, "rate", [None, "0.2", -0.1, 1.5]),
        (self_attention, "causal", ["no"]),
        (self_attention, "dropout", [1.0]),
        (self_attention, "query_key_norm", ["l2"]),
        (self_attention, "scale", [True, math.nan, math.inf, "x"]),
        (self_attention, "window_size", [0]),
        (one_head, "key_dim", [0, -1, 2.5, True, "8"]),
        (one_head, "num_heads", [0, "8"]),
        (one_head, "output_dim", [0, "8"]),
        (one_head, "value_dim", [0, "8"]),
        (self_attention, "use_gate", [None]),
    ],
)
def test_wrong_values_are_named(make, name, values):
    for value in values:
        message = f"{name} must be .*Received: {re.escape(repr(value))}"
        with pytest.raises(ValueError, match=message):
            make(**{name: value})


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (ka.AdditiveAttention, {"units": 4}),
        (ka.AttentionPooling, {"units": 4, "hops": 2}),
        (ka.LayerNormGRUCell, {"units": 4}),
        (ka.LocalPredictiveWindow, {"half_width": 2, "units": 3}),
        (ka.AdditiveScore, {"units": 4}),
        (ka.LocationScore, {"positions": 4}),
        (ka.LuongAttention, {"score": "concat", "units": 4}),
        (ka.LuongAttention, {"score": "location", "positions": 4}),
        (ka.LuongAttention, {"window": "local-m", "half_width": 4}),
        (ka.MochaWeighting, {"chunk_size": 4}),
        (ka.PositionEncoding, {"max_length": 4}),
        (ka.SelfAttention, {"num_heads": 4, "key_dim": 3, "num_key_value_heads": 2}),
        (ka.SelfAttention, {"num_heads": 4, "key_dim": 3, "value_dim": 2}),
        (ka.SelfAttention, {"num_heads": 1, "key_dim": 3, "attention_axes": [1]}),
        (ka.T5Positions, {"num_buckets": 4, "max_distance": 8}),
        (ka.ShawPositions, {"max_distance": 8}),
        (cell, {"attentional_vector": 4}),
    ],
)
def test_integers_of_numpy_are_plain_in_the_config(make, options):
    def of_numpy(x):
        return np.int64(x) if isinstance(x, int) else x

    def plain(options):
        """The config as JSON, which takes no NumPy integers, without names."""
        config = json.dumps(make(**options).get_config())
        return re.sub(r'"name": "[^"]*"|"shared_object_id": \d+', "", config)

    assert plain(keras.tree.map_structure(of_numpy, options)) == plain(options)
