import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import (
    assert_close,
    attend,
    draw,
    numpy,
    random_fixture,
    sigmoid,
    softmax,
)
from attention_testing.combinations import quick_first
from attention_testing.layers.weightings_reference import monotonic_by_the_paper
from attention_testing.models import reloaded

BATCH, QUERIES, POSITIONS, DEPTH = 2, 3, 5, 7

value = random_fixture(BATCH, POSITIONS, DEPTH)
query = random_fixture(BATCH, QUERIES, DEPTH)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        (ka.SparsemaxWeighting(), [0, 0.25, 0.75]),
        (ka.EntmaxWeighting(), [0, 0.326, 0.674]),
        (ka.SoftmaxWeighting(), softmax(np.array([-2, 0, 0.5]))),
        (ka.SoftmaxWeighting(0.5), softmax(np.array([-4, 0, 1]))),
        (ka.SparsemaxWeighting(0.25), [0, 0, 1]),
    ],
)
def test_weights_worked_by_hand(weighting, expected):
    scores = np.array([[[-2, 0, 0.5]]], "float32")

    outputs, state = weighting(scores)

    weights = ops.convert_to_numpy(outputs["weights"])
    np.testing.assert_allclose(weights[0, 0], expected, atol=1e-3)
    assert state == {}


def test_hard_attention_may_use_the_expectation_in_inference(query, value):
    weighting = ka.HardWeighting(inference="expectation")
    layer = ka.LuongAttention("dot", weighting=weighting)

    details = numpy(layer(query, value, return_details=True))

    assert_close(details["weights"], softmax(query @ value.swapaxes(1, 2)), 1e-6)
    assert not details["sampled"].any()
    assert (details["log_probability"] == 0).all()


def test_positions_are_drawn_in_proportion_to_their_weights():
    layer = ka.LuongAttention("dot", weighting=ka.HardWeighting(seed=2))
    draws = 20_000
    query = np.ones((1, draws, 1), "float32")
    p = np.array([0.5, 0.3, 0.2], "float32")
    value = np.log(p)[None, :, None]

    details = numpy(layer(query, value, training=True, return_details=True))

    (weights,), (logs,) = details["weights"], details["log_probability"]
    assert set(np.unique(weights)) == {0, 1}
    np.testing.assert_allclose(weights.mean(axis=0), p, atol=4 * 0.5 / np.sqrt(draws))
    np.testing.assert_allclose(np.exp(logs), p[weights.argmax(-1)], 1e-4)
    np.testing.assert_allclose(details["entropy"], -(p * np.log(p)).sum(), rtol=1e-5)


def test_every_query_of_a_step_draws_a_position_of_its_own():
    layer = ka.LuongAttention("dot", weighting=ka.HardWeighting(seed=2))
    query, value = np.ones((2, 9, 1), "float32"), np.ones((2, 99, 1), "float32")
    layer(query, value)

    outputs, _ = layer.step(query, layer.memory(value), training=True)

    chosen = numpy(outputs["weights"]).argmax(axis=-1)
    assert chosen.shape == (2, 9) and all(len(set(row)) > 4 for row in chosen)


def test_all_hops_of_an_example_are_soft_or_hard():
    weighting = ka.HardWeighting(soft_probability=0.5, seed=5)
    layer = ka.AttentionPooling(4, hops=3, weighting=weighting)
    value = np.ones((200, POSITIONS, 2), "float32")

    details = numpy(layer(value, training=True, return_details=True))

    sampled, weights = details["sampled"], details["weights"]
    assert (sampled == sampled[:, :1]).all()
    assert 60 < sampled[:, 0].sum() < 140
    # Each hop draws its own position.
    drawn = weights[sampled[:, 0]].argmax(axis=-1)
    assert (drawn != drawn[:, :1]).any()


@pytest.mark.parametrize("estimator", ["score-function", "straight-through"])
def test_gradient_of_a_choice_is_that_of_its_estimator(
    query, value, gradients, estimator
):
    hard = ka.LuongAttention("dot", weighting=ka.HardWeighting(estimator))
    soft = ka.LuongAttention("dot")
    readout = np.cos(np.arange(DEPTH)).astype("float32")

    def through(layer):
        def read(query):
            weights = layer(query, value, return_attention_scores=True)[1]
            return ops.sum(ops.multiply(ops.matmul(weights, value), readout))

        return gradients(read, [query])[0]

    expected = through(soft) if estimator == "straight-through" else 0 * query
    np.testing.assert_allclose(through(hard), expected, atol=1e-5)


@pytest.mark.parametrize("relaxation", [0.5, 1.0])
def test_a_drawn_choice_learns_from_its_gumbel_softmax(rng, gradients, relaxation):
    scores, readout = rng.normal(size=(2, BATCH, QUERIES, POSITIONS)).astype("float32")
    weighting = ka.HardWeighting("straight-through", relaxation=relaxation)
    uniform = ops.convert_to_tensor(rng.random(scores.shape), "float32")
    noise = {"uniform": uniform, "soft": ops.zeros((BATCH, QUERIES, 1), "bool")}
    noisy = scores - np.log(-np.log(numpy(uniform)))
    soft = softmax(noisy / relaxation)

    def read(scores):
        outputs, _ = weighting(scores, noise=noise, training=True)
        return ops.sum(ops.multiply(outputs["weights"], readout))

    (gradient,) = gradients(read, [scores])

    mean = (soft * readout).sum(-1, keepdims=True)
    assert_close(gradient, soft * (readout - mean) / relaxation)
    outputs, _ = weighting(scores, noise=noise, training=True)
    chosen = ops.convert_to_numpy(outputs["weights"])
    np.testing.assert_array_equal(chosen, np.eye(POSITIONS)[noisy.argmax(-1)])


@pytest.mark.parametrize("mode", ["recursive", "parallel"])
def test_monotonic_attention_starts_at_the_previous_position(query, value, mode):
    weighting = ka.MonotonicWeighting(mode, score_bias=-0.5)
    layer = ka.LuongAttention("dot", weighting=weighting)
    p = sigmoid(query @ value.swapaxes(1, 2) - 0.5)

    _, weights = attend(layer, query, value)

    previous = np.eye(POSITIONS)[[0] * BATCH]
    for t in range(QUERIES):
        previous = monotonic_by_the_paper(p[:, t], previous)
        assert_close(weights[:, t], previous, 1e-4)


@pytest.mark.parametrize(
    "options", [{"mode": "hard"}, {"inference": "hard"}], ids=["mode", "inference"]
)
def test_hard_monotonic_attention_never_goes_back(rng, options):
    layer = ka.LuongAttention(
        "dot", weighting=ka.MonotonicWeighting(**options, score_bias=0.0)
    )
    query, value = draw(rng, (BATCH, 6, DEPTH), (BATCH, 29, DEPTH))

    _, weights = attend(layer, query, value)

    for b in range(BATCH):
        position = 0
        for t in range(6):
            after = range(position, 29)
            position = next(s for s in after if value[b, s] @ query[b, t] > 0)
            np.testing.assert_array_equal(weights[b, t], np.eye(29)[position])


def test_a_masked_query_does_not_change_the_state(query, value):
    layer = ka.AdditiveAttention(
        DEPTH, coverage=True, weighting=ka.MonotonicWeighting(score_bias=0.0)
    )
    padded = np.insert(query, 1, 9.0, axis=1)
    query_mask = np.array([[1, 0, 1, 1]] * BATCH, "bool")

    outputs = attend(layer, padded, value, query_mask=query_mask)

    unpadded = [x[:, [0, 2, 3]] for x in outputs]
    assert_close(unpadded, attend(layer, query, value), 1e-6)


def test_coverage_is_the_sum_of_earlier_weights(query, value):
    layer = ka.AdditiveAttention(DEPTH, coverage=True)
    _, weights = attend(layer, query, value)

    score, u = layer.step.score, layer.memory.key_projection.kernel
    kernels = score.query_projection.kernel, u, score.scale, score.coverage_kernel
    w, u, v, c = numpy(list(kernels))
    total = np.zeros((BATCH, POSITIONS))
    for t in range(QUERIES):
        hidden = (query[:, t] @ w)[:, None] + value @ u + total[..., None] * c
        expected = softmax(np.tanh(hidden) @ v)
        assert_close(weights[:, t], expected)
        total += expected


def test_normalised_score_starts_with_a_scale_of_its_own_length(query, value):
    layer = ka.AdditiveAttention(11, normalize=True, scale_initializer="ones")
    plain = ka.AdditiveAttention(11, scale_initializer="ones")
    for each in (layer, plain):
        each.build(query.shape, value.shape)
    score = layer.step.score
    np.testing.assert_allclose(ops.convert_to_numpy(score.gain), np.sqrt(1 / 11))
    plain.step.score.query_projection.kernel.assign(score.query_projection.kernel)
    plain.memory.key_projection.kernel.assign(layer.memory.key_projection.kernel)
    # Eleven ones have the length sqrt(11): each becomes sqrt(1 / 11) / sqrt(11).
    plain.step.score.scale.assign(np.full(11, 1 / 11))

    assert_close(layer(query, value), plain(query, value), 1e-6)


@pytest.mark.parametrize("kind", [ka.HardWeighting, ka.MonotonicWeighting])
def test_a_seed_generator_is_saved_with_the_model(kind, tmp_path, query, value):
    seed = keras.random.SeedGenerator(3)
    inputs = [keras.Input(x.shape[1:]) for x in (query, value)]
    attention = ka.AdditiveAttention(5, weighting=kind(seed=seed))
    model = keras.Model(inputs, attention(*inputs))
    again = reloaded(model, tmp_path)
    generator = again.layers[-1].step.weighting.seed_generator
    assert isinstance(generator, keras.random.SeedGenerator)
    assert generator.get_config()["seed"] == 3
    assert_close(again([query, value]), model([query, value]), 1e-6)


@pytest.mark.parametrize(
    "weighting",
    quick_first([ka.SoftmaxWeighting, ka.EntmaxWeighting, ka.HardWeighting]),
)
def test_a_temperature_is_learned(weighting, query, value, gradients):
    options = {"inference": "expectation"} if weighting is ka.HardWeighting else {}
    layer = ka.LuongAttention(
        "dot", weighting=weighting(temperature=2.0, learn_temperature=True, **options)
    )
    fixed = ka.LuongAttention("dot", weighting=weighting(temperature=3.0, **options))
    layer(query, value)
    (logarithm,) = layer.trainable_variables
    np.testing.assert_allclose(ops.convert_to_numpy(logarithm), np.log(2), rtol=1e-6)

    logarithm.assign(np.full((1, 1), np.log(3)))

    assert_close(layer(query, value), fixed(query, value), 1e-6)

    def squares(*tensors):
        return ops.sum(layer(*tensors) ** 2)

    gradient = gradients(squares, (query, value), [logarithm])[-1]
    assert (ops.convert_to_numpy(gradient) != 0).all()


def test_every_hop_learns_a_temperature(value):
    weighting = ka.SoftmaxWeighting(learn_temperature=True)
    layer = ka.AttentionPooling(None, hops=2, weighting=weighting)
    layer(value)
    # The second hop has the scores of the first, and a very high temperature.
    scale = ops.convert_to_numpy(layer.scale)[:, :1]
    layer.scale.assign(np.repeat(scale, 2, axis=1))
    weighting.log_temperature.assign(np.array([[0.0], [20.0]]))

    _, weights = attend(layer, value)

    np.testing.assert_allclose(weights[:, 1], 1 / POSITIONS, rtol=1e-5)
    expected = softmax(np.tanh(value) @ scale[:, 0])
    np.testing.assert_allclose(weights[:, 0], expected, rtol=1e-5)
