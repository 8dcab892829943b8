"""Every row of the tables of the page on migration: old and new give the same numbers.

The old side is Keras itself, or the formulas of `tfa.seq2seq` in NumPy.
"""

import math
import re

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import softmax
from attention_testing.repository import read
from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    AttentionDecoder,
    LuongAttention,
    MonotonicWeighting,
    MultiHeadAttention,
    PositionEncoding,
    ScheduledSampling,
    SelfAttention,
    SequenceCrossentropy,
    SoftmaxWeighting,
    attention_heatmap,
    attention_overlay,
    beam_search,
    greedy_search,
    sample_search,
)

from .test_migration import bahdanau_scores, context_of, luong_scores, monotonic_weights

PAGE = read("docs/migration.md")
TESTED = set()
UNITS, DEPTH, WORDS = 12, 8, 7


def row(*firsts):
    """Mark a test as that of rows of the page, named by their first cells."""
    TESTED.update(firsts)
    return lambda test: test


@pytest.fixture
def query(rng):
    return rng.normal(size=(2, 3, DEPTH)).astype("float32")


@pytest.fixture
def value(rng):
    return rng.normal(size=(2, 5, DEPTH)).astype("float32")


MASK = np.array([[True] * 5, [True] * 3 + [False] * 2])
QUERY_MASK = np.array([[True, True, False], [True] * 3])


def array(x):
    return np.asarray(ops.convert_to_numpy(x), "float64")


def same(actual, expected, atol=1e-5):
    np.testing.assert_allclose(array(actual), array(expected), rtol=1e-4, atol=atol)


# keras.layers.Attention


@row("`keras.layers.Attention()([query, value, key])`")
def test_dot_attention(query, value, rng):
    key = rng.normal(size=value.shape).astype("float32")
    expected = keras.layers.Attention()([query, value, key])
    same(LuongAttention("dot")(query, value, key), expected)


@row("`mask=[query_mask, value_mask]`")
def test_masks_of_attention(query, value):
    expected = keras.layers.Attention()([query, value], mask=[QUERY_MASK, MASK])
    actual = LuongAttention("dot")(query, value, query_mask=QUERY_MASK, value_mask=MASK)
    same(actual, expected)


@row("`use_scale=True`, one learned factor")
def test_learned_factors_of_attention(query, value):
    old = keras.layers.Attention(use_scale=True)
    old([query, value])
    old.set_weights([np.array(0.7)])
    weighting = SoftmaxWeighting(learn_temperature=True)
    new, general = LuongAttention("dot", weighting=weighting), LuongAttention("general")
    for layer in (new, general):
        layer.build(query.shape, value.shape)
    temperature = new.step.weighting.log_temperature
    temperature.assign(np.full(temperature.shape, math.log(1 / 0.7)))
    general.step.score.query_projection.set_weights([0.7 * np.eye(DEPTH)])

    for layer in (new, general):
        same(layer(query, value), old([query, value]))
    old.set_weights([np.array(DEPTH**-0.5)])
    same(LuongAttention("scaled-dot")(query, value), old([query, value]))


@row('`score_mode="concat"`')
def test_concat_scores_of_attention(query, value):
    old = keras.layers.Attention(score_mode="concat", use_scale=True)
    old([query, value])
    old.set_weights([np.array(0.7), np.array(1.3)])
    new = AdditiveAttention(DEPTH)
    new.build(query.shape, value.shape)
    new.memory.key_projection.set_weights([0.7 * np.eye(DEPTH)])
    new.step.score.query_projection.set_weights([0.7 * np.eye(DEPTH)])
    new.step.score.scale.assign(np.full(DEPTH, 1.3))
    same(new(query, value), old([query, value]))


@row("`use_causal_mask=True` in the call")
def test_causal_masks(query):
    expected = keras.layers.Attention()([query, query], use_causal_mask=True)
    same(LuongAttention("dot")(query, query, use_causal_mask=True), expected)
    same(LuongAttention("dot", causal=True)(query, query), expected)

    old, new = multi_head(query, query)
    expected = old(query, query, use_causal_mask=True)
    same(new(query, query, use_causal_mask=True), expected)
    causal = MultiHeadAttention(2, 4, causal=True)
    causal.build(query.shape, query.shape)
    causal.set_weights(new.get_weights())
    same(causal(query, query), expected)


@row("`dropout=0.1`")
def test_dropout_of_weights(query, value):
    layers = keras.layers.Attention(dropout=0.5), LuongAttention("dot", dropout=0.5)
    for layer, inputs in zip(layers, ([[query, value]], [query, value]), strict=True):
        _, plain = layer(*inputs, return_attention_scores=True)
        _, used = layer(*inputs, return_attention_scores=True, training=True)
        ratio = array(used) / array(plain)
        assert set(np.round(np.unique(ratio), 3)) == {0.0, 2.0}


# keras.layers.MultiHeadAttention


def multi_head(query, value, **options):
    """Return the layers of Keras and of the package, with the same weights."""
    old = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4, **options)
    old(query, value)
    renamed = {
        "output_dim" if x == "output_shape" else x: y for x, y in options.items()
    }
    new = MultiHeadAttention(2, 4, **renamed)
    new.build(query.shape, value.shape)
    copy_heads(old, new)
    return old, new


def copy_heads(old, new):
    layers = [
        new.step.query_projection,
        new.memory.key_projection,
        new.memory.value_projection,
        new.step.output_projection,
    ]
    weights, size = old.get_weights(), len(old.get_weights()) // 4
    for i, layer in enumerate(layers):
        kernel, *bias = weights[i * size : (i + 1) * size]
        layer.kernel.assign(kernel.reshape(layer.kernel.shape))
        if bias:
            layer.bias.assign(bias[0].reshape(-1))


@row("`layer(x, x)`")
def test_self_attention(query):
    old = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    expected = old(query, query)
    new = SelfAttention(2, 4)
    new.build(query.shape)
    copy_heads(old, new)
    same(new(query), expected)


@row("`layer(query, value, key)`")
def test_multi_head_attention(query, value, rng):
    key = rng.normal(size=value.shape).astype("float32")
    old, new = multi_head(query, value)
    same(new(query, value, key), old(query, value, key))


@row("`query_mask`, `value_mask`, `key_mask`, `attention_mask`")
def test_masks_of_multi_head_attention(query, value, rng):
    old, new = multi_head(query, value)
    attention_mask = rng.random((2, 3, 5)) < 0.7
    attention_mask[..., 0] = True
    masks = {"value_mask": MASK, "attention_mask": attention_mask}
    same(new(query, value, **masks), old(query, value, **masks))
    same(
        new(query, value, key_mask=MASK),
        old(query, value, attention_mask=np.repeat(MASK[:, None], 3, axis=1)),
    )
    # A masked query gives zeros before the output projection.
    context = array(new(query, value, query_mask=QUERY_MASK))
    bias = array(new.step.output_projection.bias)
    same(context[QUERY_MASK], array(old(query, value))[QUERY_MASK])
    assert np.ptp(context[~QUERY_MASK] - bias) == 0 or not context[~QUERY_MASK].any()


@row("`value_dim`, `dropout`, `use_bias`", "`output_shape=n`")
def test_options_of_multi_head_attention(query, value):
    options = {"value_dim": 3, "dropout": 0.1, "use_bias": False, "output_shape": 11}
    old, new = multi_head(query, value, **options)
    expected = old(query, value)
    assert expected.shape == (2, 3, 11)
    same(new(query, value), expected)


@row("no key-value cache")
def test_key_value_cache(query):
    layer = SelfAttention(2, 4, causal=True)
    expected = layer(query)
    cache = layer.get_initial_cache(2, 3)
    steps = []
    for t in range(3):
        step, cache = layer(query[:, t : t + 1], cache=cache)
        steps.append(array(step))
    same(np.concatenate(steps, axis=1), expected)


@row("`attention_axes=(1, 2)`")
def test_attention_axes(rng):
    x = rng.normal(size=(2, 3, 4, DEPTH)).astype("float32")
    old = keras.layers.MultiHeadAttention(2, 4, attention_axes=(1, 2))
    attention_mask = rng.random((2, 12, 12)) < 0.7
    attention_mask[..., 0] = True
    expected = old(x, x, attention_mask=attention_mask.reshape(2, 3, 4, 3, 4))
    new = MultiHeadAttention(2, 4, attention_axes=(1, 2))
    new.build(x.shape, x.shape)
    copy_heads(old, new)
    same(new(x, x, attention_mask=attention_mask), expected)


# tfa.seq2seq


class Wrapper:
    """`AttentionWrapper` of Addons, with Luong's mechanisms, in NumPy around a cell.

    `attention_layers` are kernels for `[cell output; context]`, or `None`.
    """

    def __init__(self, cell, memory, kernels, attention_layers=None, masks=None):
        self.cell, self.memory = cell, memory
        self.kernels, self.attention_layers = kernels, attention_layers
        self.masks = masks or [np.ones(memory.shape[:2], bool)] * len(kernels)

    def __call__(self, inputs, state=None):
        batch = len(inputs)
        width = len(self.kernels) * self.memory.shape[-1]
        if self.attention_layers:
            width = sum(x.shape[1] for x in self.attention_layers)
        attention = np.zeros((batch, width))
        state = np.zeros((batch, UNITS), "float32") if state is None else state
        outputs = {"attention": [], "cell_output": [], "weights": [], "state": []}
        for t in range(inputs.shape[1]):
            # The default cell_input_fn.
            joined = np.concatenate([inputs[:, t], attention], -1).astype("float32")
            output, (state,) = self.cell(joined, [state])
            output = np.asarray(ops.convert_to_numpy(output), "float64")
            weights, parts = [], []
            for i, kernel in enumerate(self.kernels):
                scores = luong_scores(output, self.memory, {"memory_layer": kernel})
                weights.append(softmax(scores, self.masks[i]))
                parts.append(context_of(weights[-1], self.memory))
                if self.attention_layers:
                    both = np.concatenate([output, parts[-1]], -1)
                    parts[-1] = both @ self.attention_layers[i]
            attention = np.concatenate(parts, -1)
            outputs["attention"].append(attention)
            outputs["cell_output"].append(output)
            outputs["weights"].append(weights[0])
        return {x: np.stack(y, axis=1) for x, y in outputs.items() if y}


def decoder(inputs, memory, kernels, *, attentional_vector=None, several=False):
    """Return a decoder whose Luong mechanisms have the kernels of Addons."""
    attentions = [LuongAttention("general") for _ in kernels]
    cell = AttentionCell(
        keras.layers.GRUCell(UNITS),
        attentions if several else attentions[0],
        order="current",
        input_feeding=True,
        attentional_vector=attentional_vector,
    )
    new = AttentionDecoder(cell)
    new.build(inputs.shape, [memory.shape] * len(kernels) if several else memory.shape)
    for attention, kernel in zip(attentions, kernels, strict=True):
        attention.step.score.query_projection.set_weights([kernel.T])
    return new


def swapped(kernel):
    """Return a kernel for `[context; cell output]`."""
    return np.concatenate([kernel[UNITS:], kernel[:UNITS]])


@pytest.fixture
def kernel(rng):
    return rng.normal(size=(DEPTH, UNITS)) / 3


@row(
    "`AttentionWrapper(cell, mechanism, attention_layer_size=n)`",
    "`attention_layer=layer`",
    "`cell_input_fn` (default: inputs and attention concatenated)",
    "`output_attention=False`",
    "`alignment_history=True`",
)
def test_attention_wrapper_with_an_attention_layer(query, value, kernel, rng):
    layer = keras.layers.Dense(10, use_bias=False)
    new = decoder(query, value, [kernel], attentional_vector=layer)
    attention_layer = rng.normal(size=(UNITS + DEPTH, 10)) / 3
    layer.set_weights([swapped(attention_layer)])

    steps = new(query, value, value_mask=MASK)

    old = Wrapper(new.cell.cell, value, [kernel], [attention_layer], [MASK])(query)
    same(steps["output"], old["attention"])
    same(steps["cell_output"], old["cell_output"])
    same(steps["weights"], old["weights"])


@row("`attention_layer_size=None`")
def test_attention_wrapper_without_an_attention_layer(query, value, kernel):
    new = decoder(query, value, [kernel])
    steps = new(query, value, value_mask=MASK)

    old = Wrapper(new.cell.cell, value, [kernel], masks=[MASK])(query)
    same(steps["context"], old["attention"])
    # The state of the cell has not seen the context of its step.
    same(steps["output"], old["cell_output"])


@row("`initial_cell_state=state`")
def test_initial_state_of_the_cell(query, value, kernel, rng):
    new = decoder(query, value, [kernel])
    state = rng.normal(size=(2, UNITS)).astype("float32")
    memory = new.cell.attention.memory(value, value_mask=MASK)
    begin = new.cell.complete_state({"cell": state}, memory)
    old = Wrapper(new.cell.cell, value, [kernel], masks=[MASK])(query, state)

    for t in range(query.shape[1]):
        outputs, begin = new.cell(query[:, t], begin, memory)
        same(outputs["context"], old["attention"][:, t])


@row("several mechanisms in a list")
def test_several_mechanisms(query, value, kernel, rng):
    kernels = [kernel, rng.normal(size=kernel.shape) / 3]
    new = decoder(query, value, kernels, several=True)
    steps = new(query, [value, value])

    old = Wrapper(new.cell.cell, value, kernels)(query)
    same(steps["context"], old["attention"])


def bahdanau(rng, **more):
    return {
        "query_layer": rng.normal(size=(DEPTH, 16)) / 2,
        "memory_layer": rng.normal(size=(DEPTH, 16)) / 2,
        "attention_v": rng.normal(size=16),
        **more,
    }


def with_bahdanau(layer, query, value, old):
    """Give an additive attention the weights of Addons."""
    layer.build(query.shape, value.shape)
    key = [old["memory_layer"]]
    if "attention_b" in old:
        key.append(old["attention_b"])
        layer.step.score.gain.assign(old["attention_g"])
    layer.memory.key_projection.set_weights(key)
    layer.step.score.query_projection.set_weights([old["query_layer"]])
    layer.step.score.scale.assign(old["attention_v"])
    return layer


@row(
    "`tfa.seq2seq.BahdanauAttention(units, memory, memory_sequence_length)`",
    "`memory_sequence_length=lengths`",
)
def test_bahdanau_attention(query, value, rng):
    old = bahdanau(rng)
    new = with_bahdanau(AdditiveAttention(16), query, value, old)
    lengths, longest = np.array([5, 3]), 5
    mask = np.arange(longest) < lengths[:, None]
    memory = new.memory(value, value_mask=mask)
    actual, _ = new.step(query, memory, {})

    for t in range(query.shape[1]):
        scores = bahdanau_scores(query[:, t], value, old, normalize=False)
        expected = context_of(softmax(scores, MASK), value)
        same(actual["context"][:, t], expected)


@row("`normalize=True`")
def test_normalized_bahdanau_attention(query, value, rng):
    old = bahdanau(rng, attention_g=0.7, attention_b=rng.normal(size=16))
    layer = AdditiveAttention(16, normalize=True, use_bias=True)
    new = with_bahdanau(layer, query, value, old)
    for t in range(query.shape[1]):
        scores = bahdanau_scores(query[:, t], value, old, normalize=True)
        expected = context_of(softmax(scores, MASK), value)
        same(new(query, value, value_mask=MASK)[:, t], expected)


@row(
    "`tfa.seq2seq.LuongAttention(units, memory)`",
    "`scale=True`, a learned factor",
)
@pytest.mark.parametrize("factor", [None, 0.7])
def test_luong_attention(query, value, rng, factor):
    old = {"memory_layer": rng.normal(size=(DEPTH, DEPTH))}
    if factor:
        old["attention_g"] = factor
    new = LuongAttention("general")
    new.build(query.shape, value.shape)
    new.step.score.query_projection.set_weights([(factor or 1) * old["memory_layer"].T])
    for t in range(query.shape[1]):
        expected = context_of(softmax(luong_scores(query[:, t], value, old)), value)
        same(new(query, value)[:, t], expected)


@row(
    "`BahdanauMonotonicAttention(units)`",
    "`LuongMonotonicAttention(units)`",
    "`sigmoid_noise`, `score_bias_init`, `mode`",
)
@pytest.mark.parametrize("score", ["bahdanau", "luong"])
def test_monotonic_attention(query, value, rng, score):
    weighting = MonotonicWeighting("parallel", noise=0.0, score_bias=-0.5)
    if score == "bahdanau":
        old = bahdanau(rng)
        layer = AdditiveAttention(16, weighting=weighting)
        new = with_bahdanau(layer, query, value, old)
    else:
        old = {"memory_layer": rng.normal(size=(DEPTH, DEPTH)) / 3}
        new = LuongAttention("general", weighting=weighting)
        new.build(query.shape, value.shape)
        new.step.score.query_projection.set_weights([old["memory_layer"].T])

    context = new(query, value)
    weights = np.eye(5)[[0, 0]]
    for t in range(query.shape[1]):
        if score == "bahdanau":
            scores = bahdanau_scores(query[:, t], value, old, normalize=False)
        else:
            scores = luong_scores(query[:, t], value, old)
        weights = monotonic_weights(1 / (1 + np.exp(0.5 - scores)), weights)
        same(context[:, t], context_of(weights, value), atol=1e-4)
    # As in the page, and in Addons.
    assert MonotonicWeighting("parallel", noise=0.0, score_bias=0.0).noise == 0


@row("`probability_fn`")
@pytest.mark.parametrize("weighting", ["softmax", "sparsemax", "entmax", "hard"])
def test_probability_functions(query, value, weighting):
    layer = LuongAttention("dot", weighting=weighting)
    _, weights = layer(query, value, return_attention_scores=True)
    scores = array(query) @ array(value).transpose(0, 2, 1)
    same(array(weights).sum(-1), np.ones((2, 3)))
    assert (array(weights).argmax(-1) == scores.argmax(-1)).all()
    if weighting == "softmax":
        same(weights, softmax(scores))


@row(
    "`BasicDecoder(cell, TrainingSampler(), output_layer)`",
    "`sequence_length` of the sampler",
)
def test_basic_decoder(query, value, kernel, rng):
    layer = keras.layers.Dense(10, use_bias=False)
    new = decoder(query, value, [kernel], attentional_vector=layer)
    output_layer = keras.layers.Dense(WORDS)

    logits = output_layer(new(query, value, inputs_mask=QUERY_MASK)["output"])

    (rows,) = layer.get_weights()
    attention_layer = np.concatenate([rows[DEPTH:], rows[:DEPTH]])
    old = Wrapper(new.cell.cell, value, [kernel], [attention_layer])(query)
    expected = output_layer(old["attention"].astype("float32"))
    # Addons gives zeros beyond the length of a sequence.
    same(array(logits)[QUERY_MASK], array(expected)[QUERY_MASK], atol=1e-4)


@row("`ScheduledEmbeddingTrainingSampler(p, embedding_fn)`")
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_scheduled_sampling(rate):
    embed = keras.layers.Embedding(WORDS, 4)
    embed(np.zeros((1,), "int32"))

    def predict(inputs, outputs):
        # The word 3 is certain.
        return 1000.0 * ops.one_hot(ops.full((len(inputs),), 3, "int32"), WORDS)

    sampling = ScheduledSampling(embed, predict, rate=rate)
    teacher = embed(np.full(2, 5))
    # The first step always receives the teacher's input.
    noise = {name: x[1] for name, x in sampling.draw(2, (2,)).items()}
    words = sampling.choose(noise, teacher, teacher, {"output": np.zeros((2, 4))})
    same(words, embed(np.full(2, 3 if rate else 5)))


TABLE = np.log(
    # The probabilities of the next word, for each word: 0 is the end.
    np.array(
        [
            [1.0, 0.0, 0.0, 0.0],
            [0.1, 0.2, 0.4, 0.3],
            [0.2, 0.1, 0.1, 0.6],
            [0.7, 0.1, 0.1, 0.1],
        ]
    )
    + 1e-9
)
SEARCH = {"start": 1, "end": 0, "max_length": 5}


def step(token_ids, state):
    # The weights of a step have their peak at the word before it.
    weights = 0.6 * ops.one_hot(token_ids, 4) + 0.1
    table = ops.convert_to_tensor(TABLE.astype("float32"))
    return ops.take(table, token_ids, 0), state, weights


def ids(result, row=0):
    return array(result["token_ids"])[0, row].astype(int).tolist()


STATE = {"x": np.zeros((1, 1), "float32")}


@row(
    "`GreedyEmbeddingSampler`, `SampleEmbeddingSampler`",
    "`dynamic_decode(decoder, maximum_iterations=n)`",
    "the loop that chooses the next word",
)
def test_samplers():
    greedy = greedy_search(step, STATE, **SEARCH)
    assert ids(greedy)[:3] == [2, 3, 0]
    # Very cold samples are the most probable words.
    sampled = sample_search(step, STATE, **SEARCH, temperature=1e-3, seed=1)
    assert ids(sampled)[:3] == [2, 3, 0]
    short = greedy_search(step, STATE, **{**SEARCH, "max_length": 2})
    assert ids(short) == [2, 3]


@row(
    "`BeamSearchDecoder(cell, beam_width=k, length_penalty_weight=a, "
    "coverage_penalty_weight=b)`",
    "`tile_batch(memory, k)`",
    "`gather_tree`, `gather_tree_from_array`",
)
def test_beam_search_decoder():
    alpha, beta = 0.6, 0.2
    actual = beam_search(
        step,
        STATE,
        **SEARCH,
        beam_size=3,
        length_penalty=alpha,
        length_penalty_form="gnmt",
        coverage_penalty=beta,
    )

    for hypothesis in range(3):
        tokens = ids(actual, hypothesis)
        tokens = tokens[: tokens.index(0) + 1]
        before = [1, *tokens[:-1]]
        log_probability = TABLE[before, tokens].sum()
        weights = array(actual["weights"])[0, hypothesis, : len(tokens)]
        # They follow the hypothesis.
        assert weights.argmax(-1).tolist() == before
        covered = np.log(np.minimum(weights.sum(0), 1)).sum()
        penalty = ((5 + len(tokens)) / 6) ** alpha
        expected = log_probability / penalty + beta * covered
        same(actual["scores"][0, hypothesis], expected)


@row("`SequenceLoss`")
def test_sequence_loss(rng):
    logits = rng.normal(size=(2, 3, WORDS)).astype("float32")
    targets = np.array([[4, 2, 0], [3, 0, 0]])
    weights = (targets != 0).astype("float64")
    # Addons: the sum of weighted losses by the sum of weights.
    log_probs = np.log(softmax(logits))
    losses = -np.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
    expected = (losses * weights).sum() / weights.sum()
    same(SequenceCrossentropy(pad=0)(targets, logits), expected)


# The tutorials of TensorFlow


@row("`BahdanauAttention(units)` with `W1`, `W2` and `V`")
def test_bahdanau_attention_of_the_tutorials():
    """`test_new_layer_equals_the_old_one` runs its example."""
    assert "w1, w2, v = keras.layers.Dense(16)" in PAGE


@row("`CrossAttention` with `MultiHeadAttention`, `Add` and `LayerNormalization`")
def test_cross_attention_of_the_tutorial(query, value):
    old, new = multi_head(query, value)
    norm = keras.layers.LayerNormalization()
    expected = norm(keras.layers.Add()([query, old(query, value)]))
    same(norm(ops.add(query, new(query, value))), expected)


@row("`CausalSelfAttention`")
def test_causal_self_attention_of_the_tutorial(query):
    old = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    norm = keras.layers.LayerNormalization()
    expected = norm(ops.add(query, old(query, query, use_causal_mask=True)))
    new = SelfAttention(2, 4, causal=True)
    new.build(query.shape)
    copy_heads(old, new)
    same(norm(ops.add(query, new(query))), expected)


@row("`PositionalEmbedding`")
def test_positional_embedding_of_the_tutorial(rng):
    x = math.sqrt(DEPTH) * rng.normal(size=(1, 6, DEPTH)).astype("float32")
    # `positional_encoding(length, depth)` of the tutorial.
    half = DEPTH / 2
    depths = np.arange(half)[np.newaxis] / half
    angles = np.arange(6)[:, np.newaxis] * (1 / 10_000**depths)
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)

    same(PositionEncoding(layout="halves")(x), x + expected)
    alternating = array(PositionEncoding()(x) - x)[0]
    same(np.concatenate([alternating[:, 0::2], alternating[:, 1::2]], -1), expected)


@row("the decoder's loop over time steps, in training")
def test_decoder_of_the_tutorial(query, value):
    cell = AttentionCell(keras.layers.GRUCell(UNITS), AdditiveAttention(UNITS))
    steps = AttentionDecoder(cell)(query, value)
    memory = cell.attention.memory(value)
    state = cell.get_initial_state(batch_size=2)
    for t in range(query.shape[1]):
        outputs, state = cell(query[:, t], state, memory)
        same(steps["output"][:, t], outputs["output"])


@row("the plot of the attention weights")
def test_plots_of_the_tutorial():
    pytest.importorskip("matplotlib")
    weights = np.eye(2)
    assert attention_heatmap(weights, ["a", "b"], ["c", "d"]).axes
    image = np.zeros((8, 8, 3), "uint8")
    assert attention_overlay(image, ["a", "b"], np.ones((2, 2, 2)) / 4).axes


# The programs, and the blocks of Transformers, have tests of their own.
ELSEWHERE = {
    '"Neural machine translation with attention", the whole program',
    '"Image captioning with visual attention", the whole program',
    "`EncoderLayer`, `DecoderLayer`",
}
# The other sections have tests of their own.
SECTIONS = (
    "keras.layers.Attention",
    "keras.layers.MultiHeadAttention",
    "tfa.seq2seq",
    "The TensorFlow tutorials",
)


def test_every_row_of_the_page_is_tested():
    parts = re.split(r"^## (.*)\n", PAGE, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    rows = []
    for section in SECTIONS:
        _header, _line, *others = re.findall(r"^\|.*", sections[section], re.MULTILINE)
        rows += [line.split(" | ")[0].removeprefix("| ") for line in others]

    assert len(rows) > 40
    assert set(rows) - ELSEWHERE == TESTED
