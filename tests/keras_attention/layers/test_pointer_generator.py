import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import assert_close, draw, numpy, sigmoid, softmax
from attention_testing.models import fit, reloaded

# Rows, steps, positions, vocabulary, extra ids, depth of the state.
B, T, S, N, X, U = 2, 3, 5, 7, 4, 11


@pytest.fixture
def inputs(rng):
    source_ids = rng.integers(0, N + X, (B, S))
    # The first row has one word twice, and two extra ids.
    source_ids[0] = [2, N + 1, 2, N, 0]
    return {
        "logits": draw(rng, (B, T, N)),
        "weights": softmax(draw(rng, (B, T, S))),
        "source_ids": source_ids.astype("int32"),
        "state": draw(rng, (B, T, U)),
        "context": draw(rng, (B, T, 2)),
        "inputs": draw(rng, (B, T, 3)),
    }


def reference(layer, inputs):
    """Probabilities `(B, T, N + X)` and p_gen, as in the paper."""
    kernel, bias = numpy(layer.switch.weights)
    features = [inputs[name] for name in ("state", "context", "inputs")]
    p_gen = sigmoid(np.concatenate(features, axis=-1) @ kernel + bias)
    generated = np.pad(softmax(inputs["logits"]), [(0, 0), (0, 0), (0, X)])
    copied = inputs["weights"] @ np.eye(N + X)[inputs["source_ids"]]
    return p_gen * generated + (1 - p_gen) * copied, p_gen[..., 0]


def test_equals_the_formula(inputs):
    layer = ka.PointerGenerator(X)
    log_probs, p_gen = layer(**inputs, return_switch=True)
    expected, expected_p_gen = reference(layer, inputs)

    np.testing.assert_allclose(np.exp(numpy(log_probs)), expected, atol=1e-6)
    np.testing.assert_allclose(numpy(p_gen), expected_p_gen, rtol=1e-5)
    # Without weight in the source, an extra id is impossible.
    assert (numpy(log_probs)[0, :, N + 2 :] == -1e9).all()


def test_targets_alone_have_the_same_log_probabilities(inputs):
    layer = ka.PointerGenerator(X)
    log_probs = numpy(layer(**inputs))

    for token in range(N + X):
        alone = layer(**inputs, targets=np.full((B, T), token))
        np.testing.assert_allclose(numpy(alone), log_probs[..., token], rtol=1e-5)
    for token in (-1, N + X):
        alone = layer(**inputs, targets=np.full((B, T), token))
        np.testing.assert_array_equal(numpy(alone), np.full((B, T), -1e9))


def test_a_single_step_is_a_step_of_the_pass(inputs):
    layer = ka.PointerGenerator(X)
    log_probs, p_gen = layer(**inputs, return_switch=True)
    step_inputs = {
        name: x if name == "source_ids" else x[:, 1] for name, x in inputs.items()
    }

    step, step_p_gen = layer(**step_inputs, return_switch=True)
    target = layer(**step_inputs, targets=np.full(B, N - 1))

    np.testing.assert_allclose(numpy(step), numpy(log_probs)[:, 1], rtol=1e-5)
    np.testing.assert_allclose(numpy(step_p_gen), numpy(p_gen)[:, 1], rtol=1e-5)
    np.testing.assert_allclose(numpy(target), numpy(log_probs)[:, 1, N - 1], rtol=1e-5)


def test_masked_positions_are_not_copied_and_the_rest_sums_to_one(inputs):
    layer = ka.PointerGenerator(X)
    mask = np.ones((B, S), "bool")
    mask[0, 1] = False
    inputs["weights"][1] = 0
    # Masked positions may have any weight.
    inputs["weights"][0, :, 1] = np.nan

    log_probs, p_gen = layer(**inputs, source_mask=mask, return_switch=True)

    probabilities = np.exp(numpy(log_probs))
    np.testing.assert_allclose(probabilities.sum(-1), np.ones((B, T)), rtol=1e-5)
    assert (probabilities[0, :, N + 1] == 0).all()
    # Where nothing can be copied, the vocabulary has the whole probability.
    expected = softmax(inputs["logits"][1])
    np.testing.assert_allclose(probabilities[1, :, :N], expected, rtol=1e-5)
    assert (numpy(p_gen)[1] < 1).all()


def test_ids_outside_of_the_extended_vocabulary_are_never_copied(inputs):
    layer = ka.PointerGenerator(X)
    mask = np.ones((B, S), "bool")
    mask[:, [1, 3, 4]] = False
    expected = numpy(layer(**inputs, source_mask=mask))
    inputs["source_ids"][:, [1, 3, 4]] = N + X, -1, N + X + 1

    actual = numpy(layer(**inputs))
    target = numpy(layer(**inputs, targets=np.full((B, T), 2)))

    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    np.testing.assert_allclose(target, expected[..., 2], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
@pytest.mark.parametrize("form", ["all", "targets"])
def test_gradients_are_finite_where_probabilities_are_zero(
    inputs, gradients, form, dtype
):
    layer = ka.PointerGenerator(X, dtype=dtype)
    inputs["weights"][0, 0] = [1, 0, 0, 0, 0]
    inputs["weights"][0, 1] = 0
    inputs["weights"][0, 2] = [1e-40, 1e-7, 0, 0, 1]
    inputs["logits"][0, 0] = [200, *[-200] * (N - 1)]
    inputs["weights"] = inputs["weights"].astype(dtype.removeprefix("mixed_"))
    # One target is in the source, one is impossible.
    targets = np.array([[2, N, N + 1], [0, 1, 2]])
    layer(**inputs)

    def loss(logits, weights, state):
        all_inputs = {**inputs, "logits": logits, "weights": weights, "state": state}
        log_probs = layer(**all_inputs, targets=targets if form == "targets" else None)
        return ops.sum(ops.maximum(log_probs, -100.0))

    arrays = [inputs[name] for name in ("logits", "weights", "state")]
    grads = gradients(loss, arrays, layer.trainable_variables)

    assert all(np.isfinite(x).all() for x in grads)
    assert all(x.any() for x in grads)


def test_half_precision_gives_nearly_the_same(inputs):
    layer, half = ka.PointerGenerator(X), ka.PointerGenerator(X, dtype="mixed_float16")
    expected = numpy(layer(**inputs))
    half(**inputs)
    half.set_weights(layer.get_weights())

    actual = half(**inputs)

    assert keras.backend.standardize_dtype(actual.dtype) == "float32"
    np.testing.assert_allclose(numpy(actual), expected, atol=1e-2)


def model_of(inputs):
    symbols = {
        name: keras.Input(x.shape[1:], dtype=str(x.dtype), name=name)
        for name, x in inputs.items()
    }
    return keras.Model(symbols, ka.PointerGenerator(X)(**symbols))


def test_a_model_comes_back_from_its_file(inputs, tmp_path):
    model = model_of(inputs)
    assert model.output_shape == (None, T, N + X)
    restored = reloaded(model, tmp_path)

    np.testing.assert_allclose(numpy(restored(inputs)), numpy(model(inputs)), rtol=1e-5)


@pytest.mark.exhaustive
def test_compiled_training_is_finite_and_reaches_the_weights(inputs):
    model = model_of(inputs)
    before = model.get_weights()

    fit(model, inputs, np.full((B, T), 2), loss=ka.PointerCrossentropy())

    assert all((x != y).any() for x, y in zip(before, model.get_weights(), strict=True))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights": np.zeros((B, T, S + 1))}, r"weights .*Received: \(2, 3, 6\)"),
        ({"source_ids": np.zeros((B + 1, S))}, r"source_ids .*Received: \(3, 5\)"),
        ({"state": np.zeros((B, U))}, r"state, .*Received: \(2, 11\)"),
        ({"targets": np.zeros((B, T + 1))}, r"targets .*Received: \(2, 4\)"),
        ({"source_mask": np.zeros((S, B))}, r"source_mask .*Received: \(5, 2\)"),
        ({"source_mask": np.full((B, S), -1e9)}, "source_mask must be boolean"),
        ({"logits": np.zeros(N)}, r"logits .*Received: \(7,\)"),
    ],
)
def test_shapes_that_do_not_fit(inputs, changes, said):
    with pytest.raises(ValueError, match=said):
        ka.PointerGenerator(X)(**{**inputs, **changes})


def test_beam_search_over_the_extended_vocabulary_equals_the_pass(rng):
    """The log-probabilities of a search are those of the decoder on its result."""
    embed = keras.layers.Embedding(N, U)
    cell = ka.AttentionCell(
        keras.layers.GRUCell(U), ka.AdditiveAttention(3, coverage=True)
    )
    decoder, classify = ka.AttentionDecoder(cell), keras.layers.Dense(N)
    readout = ka.PointerGenerator(X)
    value = draw(rng, (B, S, 2))
    source_ids = np.array([[N, N, N + 1, N, 5], [N + 3, 2, 4, 4, N]], "int32")

    def known(token_ids):
        return ops.where(token_ids < N, token_ids, 3)

    def read(token_ids, outputs):
        features = (outputs["output"], outputs["context"], embed(known(token_ids)))
        logits = classify(outputs["output"])
        return readout(logits, outputs["weights"], source_ids, *features)

    def step(token_ids, state):
        outputs, state = cell(embed(known(token_ids)), state, memory)
        return read(token_ids, outputs), state, outputs["weights"]

    previous = np.zeros((B, 6), "int32")
    read(previous, decoder(embed(previous), value))
    # The source is copied nearly always.
    readout.switch.bias.assign([-3.0])
    memory = cell.attention.memory(value)
    state = cell.get_initial_state(batch_size=B, memory=memory)
    actual = ka.beam_search(step, state, start=0, end=1, max_length=6, beam_size=3)
    best = numpy(actual["token_ids"])[:, 0]
    previous = np.concatenate([np.zeros((B, 1), "int32"), best[:, :-1]], axis=1)
    log_probs = numpy(read(previous, decoder(embed(known(previous)), value)))

    assert (best >= N).any()
    used = np.arange(6) < numpy(actual["lengths"])[:, :1]
    expected = np.take_along_axis(log_probs, best[..., None], axis=-1)[..., 0]
    token_log_probs = numpy(actual["token_log_probs"])[:, 0]
    assert_close(token_log_probs[used], expected[used], 1e-4)


def test_a_frozen_generator_has_no_trainable_weights(inputs):
    layer = ka.PointerGenerator(X, trainable=False)

    # Without the optional arguments.
    layer(*(inputs[x] for x in ("logits", "weights", "source_ids", "state")))

    assert len(layer.weights) == 2 and layer.trainable_weights == []
