"""Weightings, masks and dropout of several heads."""

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
    softmax,
)
from attention_testing.combinations import covering, quick_first
from attention_testing.layers.self_attention_reference import (
    BACKEND,
    BATCH,
    HEADS,
    KEY_DIM,
    POSITIONS,
    QUERIES,
    QUERY,
    QUERY_DIM,
    SEQUENCE,
    VALUE,
    VALUE_DEPTH,
    biased,
    biased_cross,
    both_ways,
    joined,
    projected,
    read,
    stepped,
)
from attention_testing.models import needs_tensorflow, reloaded

UNITS, CHOICES = 5, ("log_probability", "entropy", "sampled")


@keras.saving.register_keras_serializable(package="tests")
class SquaredRelu(ka.Weighting):
    """A custom weighting of one head, with a weight and a report."""

    reports = ("total",)

    def build(self, scores_shape):
        self.threshold = self.add_weight(name="threshold", initializer="zeros")
        self.built = True

    def call(self, scores, valid=None, state=None, noise=None, training=None):
        assert len(scores.shape) == 3
        weights = ops.relu(ops.cast(scores, "float32") - self.threshold) ** 2
        if valid is not None:
            weights = ops.where(valid, weights, 0.0)
        return {"weights": weights, "total": ops.sum(weights, axis=-1)}, {}


x = random_fixture(*SEQUENCE)


@pytest.fixture
def tensors(rng):
    return draw(rng, QUERY, VALUE)


def test_a_custom_weighting_receives_the_queries_of_all_heads(tensors):
    layer = biased_cross(weighting=SquaredRelu(), use_output_projection=False)
    mask = np.arange(POSITIONS) < np.array([[5], [3]])

    details = numpy(layer(*tensors, value_mask=mask, return_details=True))

    scores, values = projected(layer, *tensors)
    expected = np.maximum(scores, 0) ** 2 * mask[:, None, None]
    assert_close(details["weights"], expected, 1e-4)
    assert_close(details["total"], expected.sum(-1), 1e-4)
    assert_close(details["context"], joined(expected, values), 1e-3)


def test_every_head_chooses_its_position(tensors):
    layer = biased_cross(weighting="hard", use_output_projection=False)

    context, weights = attend(layer, *tensors)

    scores, values = projected(layer, *tensors)
    expected = np.eye(POSITIONS)[scores.argmax(-1)]
    np.testing.assert_array_equal(weights, expected)
    assert_close(context, joined(expected, values))


def test_choices_are_drawn_and_reported_for_every_head(tensors):
    query, value = (np.repeat(x[:1], 40, axis=0) for x in tensors)
    layer = biased_cross(weighting=ka.HardWeighting(soft_probability=0.3, seed=1))

    details = numpy(layer(query, value, training=True, return_details=True))

    scores, _ = projected(layer, query[:1], value[:1])
    weights, sampled = details["weights"], details["sampled"]
    # All heads and queries of an example use the softmax, or none does.
    assert (sampled == sampled[:, :1, :1]).all()
    assert 20 < sampled[:, 0, 0].sum() < 36
    probabilities = np.broadcast_to(softmax(scores), weights.shape)
    soft = ~sampled[:, 0, 0]
    assert_close(weights[soft], probabilities[soft])
    chosen = weights[~soft]
    assert set(np.unique(chosen)) == {0, 1}
    expected = np.log((probabilities[~soft] * chosen).sum(-1))
    assert_close(details["log_probability"][~soft], expected, 1e-4)
    # Heads and examples have different choices.
    positions = chosen.argmax(-1)
    assert (positions != positions[:1]).any(axis=0).mean() > 0.9
    expected = -(probabilities * np.log(probabilities)).sum(-1)
    assert_close(details["entropy"], expected, 1e-4)


def test_every_head_learns_a_temperature(tensors):
    layer = biased_cross(weighting=ka.SoftmaxWeighting(2.0, learn_temperature=True))
    before = attend(layer, *tensors)[1]
    temperatures = np.arange(1, HEADS + 1, dtype="float32")

    layer.step.weighting.log_temperature.assign(np.log(temperatures)[:, None, None])

    scores, _ = projected(layer, *tensors)
    assert_close(before, softmax(scores / 2))
    context, weights = attend(layer, *tensors)
    assert_close(weights, softmax(scores / temperatures[:, None, None]))
    assert_close(read(layer, *tensors), context)


@pytest.mark.parametrize("dtype", quick_first(["float32", "mixed_float16"]))
def test_every_head_has_its_mask(tensors, rng, dtype):
    layer = biased_cross(use_output_projection=False, dtype=dtype)
    mask = rng.random((BATCH, HEADS, QUERIES, POSITIONS)) < 0.6
    # One head, then all heads, have no valid position.
    mask[0, 1, 2] = mask[1, :, 0] = False

    weights = attend(layer, *tensors, attention_mask=mask)[1]

    scores, values = projected(layer, *tensors)
    expected = softmax(scores, mask)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    assert_close(weights, expected, tolerance)
    assert (weights[~mask] == 0).all()
    for context in both_ways(layer, *tensors, attention_mask=mask):
        assert (context[1, 0] == 0).all()
        heads = context.reshape(BATCH, QUERIES, HEADS, -1)
        assert (heads[0, 2, 1] == 0).all()
        assert_close(context, joined(expected, values), tolerance)


def test_a_mask_per_head_is_broadcast_and_combined(x, rng):
    layer = biased(causal=True)
    mask = rng.random((1, HEADS, 1, POSITIONS)) < 0.7
    whole = np.broadcast_to(mask, (BATCH, HEADS, POSITIONS, POSITIONS))
    valid = np.arange(POSITIONS) < np.array([[5], [4]])

    actual = attend(layer, x, attention_mask=mask, query_mask=valid)

    expected = attend(layer, x, attention_mask=whole, query_mask=valid)
    assert_close(actual, expected, 1e-6)
    triangle = np.tri(POSITIONS, dtype="bool")
    assert (actual[1][~(whole & triangle)] == 0).all()
    of_steps = {"query_mask": valid, "attention_mask": whole.swapaxes(1, 2)}
    output, _, _ = stepped(layer, x, POSITIONS, **of_steps)
    assert_close(output, expected[0])


def test_one_query_has_a_mask_per_head(tensors, rng):
    layer = biased_cross()
    query, value = tensors
    mask = rng.random((BATCH, HEADS, QUERIES, POSITIONS)) < 0.6

    outputs = layer(query[:, 0], value, attention_mask=mask[:, :, 0])

    assert_close(outputs, layer(query, value, attention_mask=mask)[:, 0])
    with pytest.raises(ValueError, match=r"or \(2, 7, 3, 5\). Received: \(2, 2, 3, 5"):
        layer(query, value, attention_mask=mask[:, :2])


def test_a_call_may_be_causal(x):
    layer, causal = biased(), biased(causal=True)
    causal.build(SEQUENCE)
    layer.build(SEQUENCE)
    causal.set_weights(layer.get_weights())

    for outputs in both_ways(layer, x, use_causal_mask=True):
        assert_close(outputs, read(causal, x))
    with pytest.raises(ValueError, match=r"One query.*Received: \(2, 11\)"):
        biased_cross()(x[:, 0], x, use_causal_mask=True)


@pytest.mark.parametrize(
    ("options", "order"),
    covering(
        [{"weighting": "hard"}, {"dropout": 0.5}], ["previous", "current"], strength=1
    ),
)
def test_heads_draw_in_a_decoder(options, order, rng):
    attention = biased_cross(output_dim=UNITS, seed=1, **options)
    cell = ka.AttentionCell(keras.layers.GRUCell(UNITS), attention, order=order)
    decoder = ka.AttentionDecoder(cell)
    inputs, value = draw(rng, QUERY, VALUE)

    outputs = [decoder(inputs, value, training=x) for x in (True, False)]

    trained, used = numpy([x["weights"] for x in outputs])
    if "dropout" in options:
        np.testing.assert_allclose(used.sum(-1), 1, atol=1e-5)
        assert (abs(trained.sum(-1) - 1) > 1e-3).mean() > 0.9
    else:
        # Means over the choices of the heads.
        assert_close(trained * HEADS, (trained * HEADS).round(), 1e-4)
        for output in outputs:
            shapes = [tuple(output[name].shape) for name in CHOICES]
            assert shapes == [(BATCH, QUERIES, HEADS)] * 3
        assert ops.convert_to_numpy(outputs[0]["sampled"]).all()


@pytest.mark.parametrize(
    "weighting",
    quick_first([SquaredRelu, lambda: ka.SparsemaxWeighting(learn_temperature=True)]),
)
def test_a_layer_with_its_weighting_comes_back_from_a_file(
    weighting, tensors, tmp_path
):
    symbols = [keras.Input((None, depth)) for depth in (QUERY_DIM, VALUE_DEPTH)]
    layer = ka.MultiHeadAttention(HEADS, KEY_DIM, weighting=weighting())
    model = keras.Model(symbols, layer(*symbols))
    (weight,) = layer.step.weighting.trainable_weights
    weight.assign(np.full(weight.shape, 0.1))

    restored = reloaded(model, tmp_path)

    assert_close(restored(tensors), model(tensors), 1e-6)


@pytest.mark.exhaustive
@needs_tensorflow
def test_weightings_of_heads_are_exported(tensors, rng, tmp_path):
    tf = pytest.importorskip("tensorflow")
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    layer = biased_cross(weighting=SquaredRelu())
    mask = rng.random((BATCH, HEADS, QUERIES, POSITIONS)) < 0.6
    named = dict(zip(("a", "b", "c"), (*tensors, mask), strict=True))
    expected = read(layer, *tensors, attention_mask=mask)

    def attend_with(a, b, c):
        return {"context": layer(a, b, attention_mask=c)}

    specs = {name: tf.TensorSpec(x.shape, x.dtype) for name, x in named.items()}
    model = ka.convert_to_litert({"attend": (attend_with, specs)}, quantize=None)
    run = interpreter.Interpreter(model_content=model).get_signature_runner("attend")
    assert_close(run(**named)["context"], expected)

    symbols = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in named.values()]
    output = layer(*symbols[:2], attention_mask=symbols[2])
    keras.Model(symbols, output).export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    assert_close(served.serve(list(named.values())), expected)


@pytest.mark.parametrize(
    "weighting", ["hard", ka.HardWeighting()], ids=["name", "layer"]
)
def test_a_weighting_has_the_dtype_of_its_layer(weighting, x):
    layer = ka.SelfAttention(1, KEY_DIM, weighting=weighting, dtype="float64")

    actual = layer(x, return_details=True)["probabilities"]

    expected = "float32" if BACKEND == "jax" else "float64"
    assert keras.backend.standardize_dtype(actual.dtype) == expected
