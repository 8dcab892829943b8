"""Parts and attentions that several layers share."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from attention_testing.arrays import assert_close, draw
from attention_testing.models import reloaded

B, T, S, DEPTH = 2, 3, 5, 7


def share_attention(query, value):
    attention = ka.AdditiveAttention(11)
    cell = ka.AttentionCell(keras.layers.GRUCell(DEPTH), attention)
    states = ka.AttentionDecoder(cell)(query, value)["output"]
    return ka.PointerNetwork(attention)(states, value), attention(query, value)


def attend_twice(query, value):
    attention = ka.AdditiveAttention(11)
    cell = ka.AttentionCell(keras.layers.GRUCell(DEPTH), [attention, attention])
    return ka.AttentionDecoder(cell)(query, value)["output"]


def share_weighting(query, value):
    weighting = ka.SoftmaxWeighting(learn_temperature=True)
    query = ka.AdditiveAttention(11, weighting=weighting)(query, value)
    return ka.SelfAttention(1, 4, weighting=weighting)(query)


def share_score(query, value):
    score = ka.AdditiveScore(11)
    return ka.Attention(score)(ka.Attention(score)(query, value), value)


def share_score_with_mocha(query, value):
    score = ka.AdditiveScore(11)
    query = ka.Attention(score)(query, value)
    return ka.Attention(score, weighting="mocha")(query, value)


def share_score_of_two_mochas(query, value):
    score = ka.GeneralScore()
    query = ka.Attention(score, weighting="mocha")(query, value)
    return ka.Attention(score, weighting="mocha")(query, value)


def share_cell(query, value):
    cell = keras.layers.GRUCell(DEPTH)
    query = ka.RecurrentEncoder(cell)(query)
    value = ka.RecurrentEncoder(cell)(value)
    decoder = ka.AttentionDecoder(
        ka.AttentionCell(cell, ka.Attention(ka.DotScore()), order="current")
    )
    return decoder(query, value)["output"]


MODELS = [
    share_attention,
    attend_twice,
    share_weighting,
    share_score,
    share_score_with_mocha,
    share_score_of_two_mochas,
    share_cell,
]


@pytest.mark.parametrize("build", MODELS)
def test_layers_that_are_loaded_share_their_part_again(build, rng, tmp_path):
    inputs = [keras.Input((T, DEPTH)), keras.Input((S, DEPTH))]
    model = keras.Model(inputs, build(*inputs))
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape))
    loaded = reloaded(model, tmp_path)

    assert len(loaded.weights) == len(model.weights)
    data = draw(rng, (B, T, DEPTH), (B, S, DEPTH))
    assert_close(loaded(data), model(data))


@pytest.mark.parametrize(
    "first",
    [
        lambda shared: ka.AdditiveAttention(4, weighting=shared),
        lambda shared: ka.SelfAttention(4, 2, weighting=shared),
        lambda shared: ka.AttentionPooling(hops=8, weighting=shared),
    ],
    ids=["one head", "heads", "hops"],
)
def test_a_shared_temperature_must_fit(first):
    weighting = ka.SoftmaxWeighting(learn_temperature=True)
    value = np.zeros((B, S, DEPTH), "float32")
    layer = first(weighting)
    layer(value, value) if isinstance(layer, ka.AdditiveAttention) else layer(value)

    with pytest.raises(ValueError, match=r"same number of heads or hops.*\(8, 1, 1\)"):
        ka.SelfAttention(8, 2, weighting=weighting)(value)


@pytest.mark.parametrize("weighting", ["softmax", "mocha"])
@pytest.mark.parametrize(
    ("make_score", "query_depth", "key_depth", "message"),
    [
        (ka.DotScore, 3, 7, r"query depth 3, key depth 7"),
        (ka.GeneralScore, 3, 7, r"depth of queries, 7\. Received: 3"),
        (lambda: ka.AdditiveScore(11), 3, 7, r"depth of queries, 7\. Received: 3"),
        (lambda: ka.LocationScore(13), 3, 7, r"depth of queries, 7\. Received: 3"),
        (ka.GeneralScore, 7, 3, r"depth of keys, 7\. Received: 3"),
    ],
)
def test_queries_and_keys_of_a_shared_score_must_fit(
    make_score, query_depth, key_depth, message, weighting
):
    score, value = make_score(), np.zeros((B, S, DEPTH), "float32")
    ka.Attention(score, weighting=weighting)(value, value)
    layer = ka.Attention(score, weighting=weighting)

    with pytest.raises(ValueError, match=message):
        layer(value[..., :query_depth], value[..., :key_depth])


def test_a_shared_window_must_fit():
    window = ka.LocalPredictiveWindow(2)
    query, value = np.zeros((B, T, DEPTH)), np.zeros((B, S, DEPTH))
    ka.Attention(ka.AdditiveScore(3), window=window)(query, value)

    with pytest.raises(ValueError, match=r"same depth of queries, 7.* Received: 5"):
        ka.Attention(ka.AdditiveScore(3), window=window)(query[..., :5], value)
