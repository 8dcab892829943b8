"""One value of each mechanism, worked by hand from the formula of its paper."""

import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import assert_close
from keras_attention.layers.additive import additive_scores
from keras_attention.layers.luong import dot_scores
from keras_attention.layers.monotonic import (
    chunkwise,
    monotonic_hard,
    monotonic_recursive,
)
from keras_attention.layers.pointing import extended_log_probs
from keras_attention.layers.positions import buckets_of_offsets
from keras_attention.layers.recurrent import gru_gates
from keras_attention.layers.weightings import (
    entropy,
    masked_entmax15,
    masked_hardmax,
    masked_sparsemax,
    softmax_weights,
)
from keras_attention.ops.rows import LOWEST, valid_scores
from keras_attention.search.expansion import best_continuations

LOG_3 = math.log(3)


def array(x):
    return ops.convert_to_tensor(np.array(x, "float32"))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def set_weights(layer, **values):
    """Give weights of a layer, named by their last part, a value for all entries."""
    for weight in layer.weights:
        value = np.array(values[weight.name], "float32")
        weight.assign(np.broadcast_to(value, weight.shape))


@pytest.mark.parametrize(
    ("weigh", "scores", "expected"),
    [
        # exp: 1 and 3.
        (softmax_weights, [0, LOG_3], [1 / 4, 3 / 4]),
        # The threshold of two positions is (0.5 + 0 - 1) / 2 = -0.25.
        (masked_sparsemax, [0.5, 0, -2], [0.75, 0.25, 0]),
        # With the threshold -0.6, (0.4 / 2 + 0.6)^2 + 0.6^2 = 1.
        (masked_entmax15, [0.4, 0, -2], [0.64, 0.36, 0]),
        (masked_hardmax, [1, 3, 2], [0, 1, 0]),
    ],
)
def test_weightings(weigh, scores, expected):
    assert_close(weigh(array([scores])), [expected])


def test_entropy_of_a_quarter_and_three_quarters():
    expected = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    assert_close(entropy(array([[0, LOG_3]])), [expected])


def test_scores():
    # tanh(log(2)) = (2 - 1/2) / (2 + 1/2) = 0.6, and tanh(log(3)) = 0.8.
    query, keys = array([[[math.log(2)]]]), array([[[0], [math.log(1.5)]]])
    assert_close(additive_scores(query, keys, array([2])), [[[1.2, 1.6]]])
    # (1, 2) . (3, 4) = 11, and (1, 2) . (0, -1) = -2.
    query, keys = array([[[1, 2]]]), array([[[3, 4], [0, -1]]])
    assert_close(dot_scores(query, keys), [[[11, -2]]])


def test_general_score():
    attention = ka.LuongAttention("general", kernel_initializer="ones")
    # W is (1, 1): the scores are log(3) / 2 * 2 * 0 and log(3) / 2 * (1 + 1).
    query, value = array([[[LOG_3 / 2]]]), array([[[0, 0], [1, 1]]])
    context, weights = attention(query, value, return_attention_scores=True)
    assert_close(weights, [[[1 / 4, 3 / 4]]])
    assert_close(context, [[[3 / 4, 3 / 4]]])


def test_gaussian_window():
    attention = ka.LuongAttention(
        "dot", window="local-p", half_width=2, kernel_initializer="zeros"
    )
    # The centre is S sigmoid(0) = 2, and sigma = D / 2 = 1. All scores are zero.
    _, weights = attention(
        array([[[0, 0]]]), array(np.ones((1, 4, 2))), return_attention_scores=True
    )
    expected = [math.exp(-2) / 4, math.exp(-0.5) / 4, 1 / 4, math.exp(-0.5) / 4]
    assert_close(weights, [[expected]])


@pytest.mark.parametrize("window", ["local-m", "local-p"])
def test_a_window_that_reaches_the_last_position(window):
    attention = ka.LuongAttention("dot", window=window, half_width=1)
    attention.build((1, 3, 2), (1, 3, 2))
    for weight in attention.trainable_variables:
        weight.assign(ops.full(weight.shape, 100.0))
    # The centres are the last of three positions, for "local-p" 3 sigmoid(200) = 3.
    query = array(np.ones((1, 3, 2)))
    _, weights = attention(query, array(np.zeros((1, 3, 2))), return_attention_scores=1)
    expected = {"local-m": [0, 1 / 2, 1 / 2], "local-p": [0, 0, math.exp(-2)]}
    assert_close(weights[0, 2], expected[window])


def test_monotonic_window():
    attention = ka.LuongAttention("dot", window="local-m", half_width=1)
    # Query t sees the positions t - 1, t and t + 1, and all scores are zero.
    _, weights = attention(
        array(np.zeros((1, 3, 2))), array(np.ones((1, 4, 2))), return_attention_scores=1
    )
    third = 1 / 3
    expected = [
        [1 / 2, 1 / 2, 0, 0],
        [third, third, third, 0],
        [0, third, third, third],
    ]
    assert_close(weights, [expected])


def test_the_default_chunk_has_two_positions():
    assert ka.MochaWeighting().chunk_size == 2


def test_monotonic_attention():
    first, halves = array([[1, 0, 0]]), array([[1 / 2, 1 / 2, 1 / 2]])
    assert_close(monotonic_recursive(halves, first), [[1 / 2, 1 / 4, 1 / 8]])
    # From position 1, with one half: it stops there, or at position 2.
    second = array([[0, 1, 0]])
    assert_close(monotonic_recursive(halves, second), [[0, 1 / 2, 1 / 4]])
    assert_close(monotonic_hard(array([[0.9, 0.2, 0.7]]), second), [[0, 0, 1]])


def test_monotonic_chunkwise_attention():
    stops, scores = array([[0, 1 / 2, 1 / 2]]), array([[0, LOG_3, 0]])
    # The first chunk has shares of 1/4 and 3/4, the second of 3/4 and 1/4.
    assert_close(chunkwise(stops, scores, 2), [[1 / 8, 3 / 4, 1 / 8]])


def test_the_query_of_a_step_with_several_hypotheses_has_the_inputs():
    cell = ka.AttentionCell(
        keras.layers.GRUCell(5), ka.AdditiveAttention(7), input_in_query=True
    )
    value = array(np.ones((2, 6, 8)))
    memory = cell.attention.memory(value)
    inputs, state = array(np.ones((2, 4, 3))), [array(np.ones((2, 4, 5)))]
    cell(inputs, cell.complete_state({"cell": state}, memory), memory)
    # The depth of the inputs is 3, that of the state 5; there are 4 hypotheses.
    kernel = next(x for x in cell.weights if "query_projection" in x.path)
    assert kernel.shape == (3 + 5, 7)


def test_coverage_in_the_score():
    attention = ka.AdditiveAttention(1, coverage=True)
    query, value = array(np.zeros((1, 2, 1))), array(np.zeros((1, 2, 1)))
    attention(query, value)
    for weight in attention.weights:
        weight.assign(np.zeros(weight.shape))
    scale, coverage = (
        next(x for x in attention.weights if x.path.split("/")[-1] == name)
        for name in ("scale", "coverage_kernel")
    )
    scale.assign(np.ones(scale.shape))
    coverage.assign(np.ones(coverage.shape))
    # Without coverage both weights are one half; then both scores are tanh(1 / 2).
    _, weights = attention(query, value, return_attention_scores=True)
    assert_close(weights, np.full((1, 2, 2), 0.5))
    # Masking one position in the first step tells the coverage of the two apart.
    mask = np.array([[[True, False], [True, True]]])
    _, weights = attention(
        query, value, attention_mask=mask, return_attention_scores=True
    )
    odds = math.exp(math.tanh(1))
    assert_close(weights, [[[1, 0], [odds / (odds + 1), 1 / (odds + 1)]]])


def test_penalties_of_coverage():
    weights = array([[1 / 2, 1 / 2, 0], [3 / 4, 0, 1 / 4]])
    # min(3/4, 1/2) + min(0, 1/2) + min(1/4, 0)
    assert_close(ka.coverage_loss(weights), 1 / 2)
    # (1 - 5/4)^2 + (1 - 1/2)^2 + (1 - 1/4)^2
    assert_close(ka.doubly_stochastic_penalty(weights), 14 / 16)


def test_alignment_error_rate():
    metric = ka.AlignmentErrorRate()
    # A = {(0, 0), (1, 2)}, S = {(0, 0), (1, 1)}, and (1, 2) is possible:
    # 1 - (1 + 2) / (2 + 2)
    reference, weights = [[[2, 0, 0], [0, 2, 1]]], [[[0.6, 0.4, 0], [0.1, 0.2, 0.7]]]
    metric.update_state(np.array(reference), np.array(weights))
    assert_close(metric.result(), 1 / 4)


def test_pointer_generator():
    # p_gen is 1/2, and the vocabulary has 1/4 and 3/4. The source holds the known token
    # 1, and the unknown one that has the extra id 2.
    log_probs = extended_log_probs(
        array([[[0, LOG_3]]]),
        array([[0]]),
        array([[[1 / 2, 1 / 2]]]),
        np.array([[1, 2]]),
        1,
    )
    assert_close(ops.exp(log_probs), [[[1 / 8, 3 / 8 + 1 / 4, 1 / 4]]])


def test_lstm_cell_with_layer_normalisation():
    cell = ka.LayerNormLSTMCell(2, epsilon=1e-12, unit_forget_bias=False)
    cell.build((None, 1))
    signs = np.tile([1.0, -1.0], 4)
    set_weights(
        cell,
        kernel=3 * signs,
        recurrent_kernel=0,
        bias=0,
        input_gain=1,
        recurrent_gain=1,
        carry_gain=1,
        carry_bias=0,
    )
    # Whatever the size of the input, the normalised sums of each gate are 1 and -1.
    zeros = array([[0, 0]])
    output, (_, carry) = cell(array([[5]]), [zeros, zeros])
    open_, shut = sigmoid(1), sigmoid(-1)
    assert_close(carry, [[open_ * math.tanh(1), -shut * math.tanh(1)]])
    # The two carries differ, so they are 1 and -1 after the normalisation.
    assert_close(output, [[open_ * math.tanh(1), -shut * math.tanh(1)]])


def test_gru_cell_with_layer_normalisation():
    cell = ka.LayerNormGRUCell(2, epsilon=1e-12)
    cell.build((None, 1))
    signs = np.tile([1.0, -1.0], 3)
    set_weights(
        cell,
        kernel=3 * signs,
        recurrent_kernel=0,
        bias=0,
        input_gain=1,
        recurrent_gain=1,
    )
    output, _ = cell(array([[5]]), [array([[1, 1]])])
    # z h + (1 - z) tanh(+-1), with z = sigmoid(+-1) and h = 1
    open_, shut = sigmoid(1), sigmoid(-1)
    expected = [open_ + shut * math.tanh(1), shut - open_ * math.tanh(1)]
    assert_close(output, [expected])


def test_a_step_of_gru_gates_with_several_hypotheses():
    cell = keras.layers.GRUCell(1)
    cell.build((None, 1))
    products = array([[[0, 0, 0], [0, 0, 1]]])
    output, _ = gru_gates(cell, 0 * products, products, [array([[[2], [2]]])])
    # z h + (1 - z) tanh(r n), with z = r = 1 / 2 and h = 2
    assert_close(output, [[[1], [1 + math.tanh(0.5) / 2]]])


def test_minus_infinity_is_the_lowest_score():
    scores, valid = valid_scores(array([[1, -np.inf, -2e30, np.nan]]), None)
    assert_close(scores[0, :3], [1, LOWEST, LOWEST])
    assert np.isnan(ops.convert_to_numpy(scores)[0, 3])
    assert ops.convert_to_numpy(valid).tolist() == [[True, False, False, True]]


def test_sinusoidal_positions():
    encoded = ka.PositionEncoding()(array(np.zeros((1, 3, 4))))
    wave = [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)]
    assert_close(encoded[0, 2], wave)


def test_rotary_positions_turn_by_one_radian_a_step():
    rotary = ka.RotaryPositions()
    rotary.build((1, 1, 2, 2), (1, 1, 2, 2))
    x = array([[[[1, 0], [0, 1]]]])
    turned = rotary.rotate(x, ops.convert_to_tensor(np.array([[1, 2]], "int32")))
    expected = [[math.cos(1), math.sin(1)], [-math.sin(2), math.cos(2)]]
    assert_close(turned, [[expected]])


def test_alibi():
    query = array(np.zeros((1, 2, 2, 4)))
    offsets = ops.convert_to_tensor(np.array([[[0, 1], [-1, 0]]], "int32"))
    bias = ka.AlibiPositions().bias(query, offsets)
    # The slopes of two heads are 2^-4 and 2^-8.
    zero_one = np.array([[0, 1], [1, 0]])
    assert_close(bias, [[-zero_one / 16, -zero_one / 256]])


def test_buckets_of_t5():
    # Four buckets of one distance each, then 4, 5 share 4 + floor(4 log2(d / 4) / 2).
    buckets = buckets_of_offsets(8, 16, bidirectional=False)
    by_distance = buckets[16::-1].tolist()
    assert by_distance == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7]


def choices(*rows):
    """Return a step function: row i has the probabilities after token i."""
    table = np.log(np.array(rows, "float32") + 1e-30)

    def step(token_ids, state):
        log_probs = ops.take(ops.convert_to_tensor(table), token_ids, axis=0)
        return log_probs, state, ops.ones((*ops.shape(token_ids), 1))

    return step


# Token 3 starts and token 0 ends. The likelier first token, 1, has no likely successor.
STEP = choices([1, 0, 0, 0], [0.3, 0.35, 0.35, 0], [0.9, 0.1, 0, 0], [0, 0.6, 0.4, 0])


@pytest.mark.parametrize(
    ("beam_size", "tokens", "probability"),
    # 0.6 * 0.35 * 0.35 * 0.35 for greedy search, 0.4 * 0.9 for two hypotheses.
    [(1, [1, 1, 1, 1], 0.6 * 0.35**3), (2, [2, 0, 0, 0], 0.36)],
)
def test_beam_search(beam_size, tokens, probability):
    options = {"start": 3, "end": 0, "max_length": 4, "beam_size": beam_size}
    result = ka.beam_search(STEP, np.zeros((1, 1)), length_penalty=0.0, **options)
    assert ops.convert_to_numpy(result["token_ids"])[0, 0].tolist() == tokens
    assert_close(ops.exp(result["log_probs"][0, 0]), probability)


@pytest.mark.parametrize(("form", "divisor"), [("power", 2.0), ("gnmt", (5 + 2) / 6)])
def test_length_penalty_of_two_tokens(form, divisor):
    result = ka.beam_search(
        STEP,
        np.zeros((1, 1)),
        start=3,
        end=0,
        max_length=2,
        beam_size=3,
        length_penalty=1.0,
        length_penalty_form=form,
    )
    assert_close(result["scores"][0, 0], math.log(0.36) / divisor)


@pytest.mark.parametrize(
    ("n", "times", "tokens"),
    # Token 1 is the likeliest after each token, then 2, then the end.
    [
        (1, 1, [1, 2, 1, 2, 1, 2]),
        (1, 2, [1, 1, 2, 1, 1, 2]),
        (2, 1, [1, 2, 1, 0, 0, 0]),
        (2, 2, [1, 1, 2, 1, 1, 2]),
    ],
)
def test_loops_of_up_to_n_tokens_end_after_some_times(n, times, tokens):
    step = choices(*4 * [[0.1, 0.6, 0.3, 0]])
    constraints = [ka.NoLoops(n, times)]
    options = {"start": 3, "end": 0, "max_length": 6, "constraints": constraints}
    result = ka.greedy_search(step, np.zeros((1, 1)), **options)
    assert ops.convert_to_numpy(result["token_ids"])[0, 0].tolist() == tokens


def test_a_beam_is_divided_by_progress():
    # Tokens 2 and 3 of the first hypothesis have progress 3, its others 1. Token 2 of
    # the second has progress 1, its others none.
    log_probs = array([[[-1, -2, -3, -4], [-2.5, -3, -3.5, -4.5]]])
    progress = {
        "token_ids": np.array([[[2, 3], [2, -1]]], "int32"),
        "after": np.array([[[3, 3], [1, 0]]], "int32"),
        "after_others": np.array([[1, 0]], "int32"),
    }
    progress = {name: ops.convert_to_tensor(x) for name, x in progress.items()}
    values, parents, token_ids, _ = best_continuations(
        ops.zeros((1, 2)), log_probs, progress
    )
    # The best of each progress, from high to low, then the second best.
    assert_close(values, [[-3, -1, -2.5, -4]])
    assert ops.convert_to_numpy(parents).tolist() == [[0, 0, 1, 0]]
    assert ops.convert_to_numpy(token_ids).tolist() == [[2, 0, 0, 3]]


def test_scheduled_sampling_rate():
    rate = ka.InverseSigmoidRate(2)
    # 1 - 2 / (2 + 1), and one half where exp(i / 2) = 2
    assert_close(rate(0), 1 / 3)
    assert_close(rate(2 * math.log(2)), 1 / 2)


def test_label_smoothing():
    # Two thirds of the smoothed target are on the right token, with one half, and one
    # third is spread over all tokens, of which the others have one quarter.
    logits = array([[[math.log(2), 0, 0]]])
    loss = ka.sequence_crossentropy(np.array([[0]]), logits, label_smoothing=1 / 3)
    shares = 2 / 3 + 1 / 9, 2 / 9
    expected = shares[0] * math.log(2) + shares[1] * math.log(4)
    assert_close(keras.ops.sum(loss), expected)
