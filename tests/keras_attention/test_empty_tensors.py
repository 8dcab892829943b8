"""Lengths of zero: an empty batch, sequence or source gives an empty result."""

import itertools
from functools import partial

import keras
import numpy as np
import pytest
from keras import ops, tree

import keras_attention as ka
from attention_testing.arrays import numpy
from attention_testing.combinations import covering, quick_first
from attention_testing.layers.cases import CASES
from attention_testing.models import compiled, needs_tensorflow

pytestmark = pytest.mark.usefixtures("seeded")
DEPTH, WORDS = 7, 5

# Batch, queries and positions; at least one of them is zero.
SIZES = [sizes for sizes in itertools.product((0, 2), (0, 3), (0, 5)) if 0 in sizes]


def zeros(*shape):
    return np.zeros(shape, "float32")


def ones(*shape):
    return np.ones(shape, "float32")


def finite(nested):
    return all(
        np.isfinite(numpy(ops.cast(x, "float32"))).all() for x in tree.flatten(nested)
    )


@needs_tensorflow
@pytest.mark.parametrize(
    "name", quick_first(["local-p concat", "coverage", "entmax", "hard", "heads"])
)
def test_attention_over_nothing_in_a_graph_of_unknown_sizes(name):
    case = CASES[name]
    layer, depths = case.build(), case.depths
    sequences = [keras.KerasTensor((None, None, depth)) for depth in depths]
    attend = compiled(partial(layer, return_attention_scores=True), sequences)

    for batch, queries, positions in SIZES:
        query, value = (
            ones(batch, queries, depths[0]),
            ones(batch, positions, depths[1]),
        )
        context, weights = attend(query, value)

        assert tuple(context.shape[:2]) == (batch, queries)
        assert tuple(weights.shape[-2:]) == (queries, positions)
        assert positions or not context.numpy().any()


@pytest.mark.parametrize("hops", [1, 2])
def test_pooling_of_nothing(hops):
    pooling = ka.AttentionPooling(11, hops=hops, penalty=0.5)
    for leading in ((0, 5), (2, 0), (0, 0), (0, 3, 5), (2, 0, 5), (2, 3, 0)):
        pooled, weights = pooling(ones(*leading, DEPTH), return_attention_scores=True)

        axis = (hops,) if hops > 1 else ()
        assert tuple(pooled.shape) == (*leading[:-1], *axis, DEPTH)
        assert tuple(weights.shape) == (*leading[:-1], *axis, leading[-1])
        assert finite(pooling.losses)


def test_a_cache_of_nothing():
    layer = ka.SelfAttention(2, 3, causal=True)
    for batch, steps in ((0, 1), (0, 3), (2, 0)):
        cache = layer.get_initial_cache(batch, 5)

        output, cache = layer(ones(batch, steps, DEPTH), cache=cache)

        assert tuple(output.shape) == (batch, steps, DEPTH)
        assert numpy(cache["length"]).tolist() == [steps] * batch


@pytest.mark.parametrize("shape", [(0, 3, DEPTH), (2, 0, DEPTH), (0, DEPTH)])
def test_positions_of_nothing(shape):
    learned = ka.PositionEncoding("learned", max_length=5)
    for encoding in (ka.PositionEncoding(), learned):
        assert tuple(encoding(ones(*shape)).shape) == shape


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_recurrent_encoder_of_nothing(dropout):
    cells = [keras.layers.GRUCell(11, dropout=dropout) for _ in range(2)]
    encoder = ka.RecurrentEncoder(*cells, return_state=True)
    for batch, steps in ((0, 3), (2, 0), (0, 0)):
        annotations, last, _ = encoder(ones(batch, steps, DEPTH), training=True)

        assert tuple(annotations.shape) == (batch, steps, 22)
        np.testing.assert_array_equal(numpy(last), zeros(batch, 11))


def sampling():
    classify = keras.layers.Dense(WORDS)
    classify.build((None, 11))
    embed = keras.layers.Embedding(WORDS, DEPTH)
    embed.build()
    return ka.ScheduledSampling(embed, lambda _, outputs: classify(outputs["output"]))


def cell(attention, **options):
    return ka.AttentionCell(keras.layers.GRUCell(11), attention, **options)


DECODERS = {
    "previous": lambda: cell(ka.AdditiveAttention(13)),
    "current": lambda: cell(ka.LuongAttention(), order="current"),
    "fed": lambda: ka.AttentionCell(
        keras.layers.LSTMCell(11, dropout=0.5),
        ka.LuongAttention(window="local-m", half_width=1),
        input_feeding=True,
        attentional_vector=11,
    ),
    "coverage": lambda: cell(ka.AdditiveAttention(13, coverage=True)),
}


@pytest.mark.parametrize(
    ("name", "sizes", "samples"), covering(DECODERS, SIZES, [False, True], strength=1)
)
def test_a_decoder_of_nothing(name, sizes, samples):
    words = sampling() if samples else None
    decoder = ka.AttentionDecoder(DECODERS[name](), sampling=words)
    batch, steps, positions = sizes
    inputs, value = ones(batch, steps, DEPTH), ones(batch, positions, DEPTH)

    outputs = decoder(inputs, value, training=True)

    assert tuple(outputs["output"].shape) == (batch, steps, 11)
    assert tuple(outputs["context"].shape) == (batch, steps, DEPTH)
    assert tuple(outputs["weights"].shape) == (batch, steps, positions)
    assert finite(outputs)


def step(positions):
    def constant(token_ids, state):
        shape = ops.shape(token_ids)
        logits = ops.zeros((*shape, WORDS)) + ops.arange(WORDS, dtype="float32")
        return ops.log_softmax(logits), state, ops.ones((*shape, positions))

    return constant


SEARCHES = {
    "greedy": (ka.greedy_search, {}, 1),
    "beam": (ka.beam_search, {"beam_size": 3, "coverage_penalty": 0.1}, 3),
    "sample": (ka.sample_search, {"samples": 2, "top_k": 2}, 2),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_over_nothing(name):
    search, options, count = SEARCHES[name]
    for batch, positions in ((0, 5), (2, 0), (0, 0)):
        state = {"a": zeros(batch, 3), "empty": zeros(batch, 0)}
        options = {"constraints": [ka.NoRepeatNgrams(2)], **options}
        result = search(step(positions), state, start=0, end=1, max_length=4, **options)

        assert tuple(result["token_ids"].shape) == (batch, count, 4)
        assert tuple(result["weights"].shape) == (batch, count, 4, positions)
        assert finite(result)
        if batch:
            assert (numpy(result["lengths"]) > 0).all()


@needs_tensorflow
@pytest.mark.parametrize("name", quick_first(SEARCHES))
def test_a_search_over_nothing_in_a_graph_of_unknown_sizes(name):
    search, options, count = SEARCHES[name]

    def run(value):
        batch, positions, _ = ops.shape(value)
        state = ops.zeros((batch, 1))
        return search(step(positions), state, start=0, end=1, max_length=4, **options)

    run = compiled(run, [keras.KerasTensor((None, None, 3))])
    for batch, positions in ((0, 5), (2, 0), (0, 0)):
        weights = run(zeros(batch, positions, 3))["weights"]

        assert tuple(weights.shape) == (batch, count, 4, positions)


def test_a_queue_of_nothing():
    queue = ka.BeamSearchQueue(
        lambda memory: step(5), batch_size=2, start=0, end=1, max_length=4
    )

    result = queue(zeros(0, 5), zeros(0, 3))

    assert result["token_ids"].shape == (0, 5, 4)
    assert result["weights"].shape == (0, 5, 4, 5)


def test_losses_of_nothing():
    for batch, steps, positions in SIZES:
        weights = zeros(batch, steps, positions)
        mask = np.ones((batch, steps), "bool")
        for penalty in (ka.doubly_stochastic_penalty, ka.coverage_loss):
            assert tuple(penalty(weights, mask).shape) == (batch,)
        assert tuple(ka.attention_supervision(weights, weights).shape) == (batch,)
    for batch, steps in ((0, 3), (2, 0)):
        token_ids = np.zeros((batch, steps), "int32")
        logits = zeros(batch, steps, WORDS)
        loss = ka.sequence_crossentropy(token_ids, logits, label_smoothing=0.1)
        assert tuple(loss.shape) == (batch, steps)
        assert float(ka.SequenceCrossentropy(pad=0)(token_ids, logits)) == 0
        inputs, table = zeros(batch, steps, DEPTH), ones(WORDS, DEPTH)
        assert float(ka.linear_crossentropy(token_ids, inputs, table)) == 0


def test_the_baseline_of_nothing_stays():
    reinforce = ka.ReinforceLoss()
    for sampled in (None, np.zeros(0, "bool")):
        loss = reinforce(*[zeros(0, 3)] * 3, sampled=sampled, training=True)

        assert tuple(loss.shape) == (0,)
        assert float(reinforce.baseline) == 0


@pytest.mark.parametrize("metric", [ka.AlignmentErrorRate, ka.PointingAccuracy])
def test_metrics_of_nothing(metric):
    metric = metric()
    assert float(metric.result()) == 0
    for shape in SIZES:
        metric.update_state(zeros(*shape), zeros(*shape))

    assert float(metric.result()) == 0
