"""Numbers and booleans that arguments refuse, with the name of the argument."""

import json
import math
import re
from functools import partial

import keras
import numpy as np
import pytest

import keras_attention as ka
from attention_testing.arrays import numpy

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
        (ka.RotaryPositions, "fraction", [2, -0.5, 0, "all"]),
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
        (additive, "seed", [-1, 2**32, 0.5, True, "1"]),
        (gru, "dropout", [None, -0.1, 2]),
        (lstm, "recurrent_dropout", [None, -0.1, 2]),
        (ka.ReinforceLoss, "reward_weight", [None, math.nan, "1"]),
        (ka.ReinforceLoss, "entropy_weight", [None, math.inf]),
        (ka.SequenceCrossentropy, "pad", [0.5, 2**31, "0", True]),
        (ka.SoftmaxWeighting, "temperature", [10**400, 1e300, 1e-300]),
        (lstm, "epsilon", [5e-324]),
        (sample, "seed", [-1, True]),
    ],
)
def test_wrong_values_are_named(make, name, values):
    for value in values:
        message = f"{name} must be .*Received: {re.escape(repr(value))}"
        with pytest.raises(ValueError, match=message):
            make(**{name: value})


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (ka.AdditiveAttention, "units"),
        (partial(ka.AttentionPooling, 4), "hops"),
        (cell, "attentional_vector"),
        (gru, "units"),
        (ka.LocalMonotonicWindow, "half_width"),
        (partial(ka.LuongAttention, "location"), "positions"),
        (ka.MochaWeighting, "chunk_size"),
        (partial(ka.MultiHeadAttention, key_dim=4), "num_heads"),
        (partial(ka.MultiHeadAttention, num_heads=2), "key_dim"),
        (self_attention, "window_size"),
        (ka.PointerGenerator, "extra_ids"),
        (partial(ka.PositionEncoding, "learned"), "max_length"),
        (ka.ShawPositions, "max_distance"),
        (beam, "beam_size"),
        (sample, "samples"),
    ],
)
@pytest.mark.parametrize("value", [2**20 + 1, 10**9, 2**31, 10**18, 10**400])
def test_sizes_that_fit_no_memory_are_refused_before_it_is_allocated(make, name, value):
    # A cell has its units as a positional argument.
    make = ka.LayerNormGRUCell if make is gru else make
    with pytest.raises(ValueError, match=f"{name}.* must be at most [0-9,]+"):
        make(**{name: value})


def test_the_depth_of_all_heads_is_limited():
    with pytest.raises(ValueError, match=r"at most 1,048,576.*Received: 4,194,304"):
        ka.SelfAttention(2**11, 2**11)
    with pytest.raises(ValueError, match=r"at most 1,048,576.*Received: 4,194,304"):
        ka.MultiHeadAttention(2**11, 8, value_dim=2**11)


NO_TENSORS = [None, 3, "text", {}, object(), [[1.0]], np.array("a"), np.array(1j)]
STEPS = {"query": SEQUENCE, "value": SEQUENCE}


@pytest.mark.parametrize("value", NO_TENSORS)
@pytest.mark.parametrize(
    ("layer", "tensors", "name"),
    [
        (additive, STEPS, "value"),
        (additive, STEPS, "query"),
        (ka.LuongAttention, STEPS, "value"),
        (self_attention, {"query": SEQUENCE}, "query"),
        (partial(ka.PointerNetwork, ka.AdditiveAttention(4)), STEPS, "value"),
        (ka.AttentionPooling, {"value": SEQUENCE}, "value"),
        (ka.PositionEncoding, {"inputs": SEQUENCE}, "inputs"),
        (encoder, {"inputs": SEQUENCE}, "inputs"),
        (
            lambda: ka.AttentionDecoder(cell()),
            {"inputs": SEQUENCE, "value": SEQUENCE},
            "value",
        ),
    ],
)
def test_a_call_names_an_argument_that_is_no_tensor(layer, tensors, name, value):
    message = f"{name} must be a tensor or an array of numbers. Received: "
    with pytest.raises(ValueError, match=message):
        layer()(**{**tensors, name: value})


def test_an_error_of_the_own_code_of_a_layer_is_not_replaced():
    class Failing(ka.Score):
        def build(self, query_shape, keys_shape):
            self.built = True

        def call(self, query, keys):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        ka.Attention(Failing(), None)(SEQUENCE, SEQUENCE)


@pytest.mark.parametrize("loss", [ka.SequenceCrossentropy(), ka.PointerCrossentropy()])
@pytest.mark.parametrize("value", ["text", {}, object(), np.array(["a"])])
def test_losses_name_what_is_no_tensor(loss, value):
    with pytest.raises(ValueError, match="y_pred must be a tensor or an array of num"):
        loss(np.array([[1]]), value)
    with pytest.raises(ValueError, match="y_true must be a tensor or an array of num"):
        loss(value, np.zeros((1, 1, 2)))


@pytest.mark.parametrize("end", [1, np.int64(1), np.array(1)])
def test_tokens_of_a_search_may_be_integers_of_numpy(end):
    def step(token_ids, state):
        weights = keras.ops.ones((*token_ids.shape, 1))
        return keras.ops.log_softmax(keras.ops.tile(weights, (1, 1, 3))), state, weights

    options = {**SEARCH, "end": end}
    for search in (ka.beam_search, ka.greedy_search, ka.sample_search):
        result = search(step, np.zeros((1, 1)), **options)
        assert int(result["lengths"][0, 0]) <= 3


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


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda: ka.LayerNormGRUCell(3, epsilon=10**18), [(2, 4), (2, 3)]),
        (lambda: ka.SoftmaxWeighting(temperature=10**18), [(2, 1, 4)]),
        (lambda: ka.HardWeighting(temperature=10**18), [(2, 1, 4)]),
        (lambda: ka.SelfAttention(2, 4, scale=10**18), [(2, 5, 8)]),
        (
            lambda: ka.SelfAttention(2, 4, positions=ka.RotaryPositions(10**18)),
            [(2, 5, 8)],
        ),
        (lambda: ka.PositionEncoding(max_wavelength=10**18), [(2, 5, 8)]),
    ],
)
def test_large_integers_are_numbers(make, shapes):
    tensors = [np.ones(shape, "float32") for shape in shapes]
    outputs = keras.tree.flatten(make()(*tensors))
    assert np.isfinite(numpy(outputs[0])).all()
