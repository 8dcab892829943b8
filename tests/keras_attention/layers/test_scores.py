"""Scores as parts of an attention of one's own."""

import keras
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import assert_close, draw, softmax
from attention_testing.layers.keras_contract import restored_from_json

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS, DEPTH = 2, 3, 5, 7
SCORES = {
    "dot": lambda: ka.DotScore(scaled=True),
    "general": lambda: ka.GeneralScore(use_bias=True, kernel_regularizer="l2"),
    "additive": lambda: ka.AdditiveScore(11, coverage=True, normalize=True),
    "location": lambda: ka.LocationScore(13, bias_initializer="ones"),
}


@pytest.mark.parametrize("name", SCORES)
def test_a_score_comes_back_from_its_config(name, rng):
    score = SCORES[name]()
    copy = restored_from_json(score)

    query, value = draw(rng, (BATCH, QUERIES, DEPTH), (BATCH, POSITIONS, DEPTH))
    layers = ka.Attention(score=score), ka.Attention(score=copy)
    for layer in layers:
        layer(query, value)
    layers[1].set_weights(layers[0].get_weights())
    assert_close(*(layer(query, value) for layer in layers), 1e-6)
    assert keras.saving.serialize_keras_object(layers[0])["config"]["score"]


PARTS = {
    "additive": {"score": lambda **frozen: ka.AdditiveScore(11, **frozen)},
    "general": {"score": ka.GeneralScore},
    "location": {"score": lambda **frozen: ka.LocationScore(13, **frozen)},
    "window": {"score": ka.DotScore, "window": ka.LocalPredictiveWindow},
}


@pytest.mark.parametrize("name", PARTS)
def test_a_frozen_part_does_not_train(name, rng):
    parts = {
        part_name: part(trainable=False) for part_name, part in PARTS[name].items()
    }
    layer = ka.Attention(**parts)

    layer(*rng.normal(size=(2, BATCH, POSITIONS, DEPTH)))

    assert layer.weights and layer.trainable_weights == []


@keras.saving.register_keras_serializable(package="tests")
class Distance(ka.Score):
    """A score without weights."""

    def call(self, query, keys):
        difference = ops.expand_dims(query, -2) - ops.expand_dims(keys, -3)
        return -ops.sum(difference**2, axis=-1)


def test_a_score_without_weights_needs_its_call_alone(rng):
    query, value = draw(rng, (BATCH, QUERIES, DEPTH), (BATCH, POSITIONS, DEPTH))
    layer = ka.Attention(Distance())

    _, weights = layer(query, value, return_attention_scores=True)

    distances = ((query[:, :, None] - value[:, None]) ** 2).sum(-1)
    assert_close(weights, softmax(-distances), 1e-5)
    restored_from_json(layer)
