import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import assert_close, draw, numpy
from attention_testing.layers.keras_contract import restored_from_config
from attention_testing.models import fit, needs_tensorflow, reloaded
from attention_testing.rounding import rounding_bound
from keras_attention.layers.positions import PositionEncoding

BATCH, STEPS, DEPTH, LONGEST, BEAM = 2, 5, 7, 11, 3
WORDS = 13
KINDS = ("sinusoidal", "learned")
BACKEND = keras.backend.backend()


def table_of_the_paper(positions, depth):
    """Section 3.5."""
    pos, dimension = np.arange(positions)[:, None], np.arange(depth)
    angles = pos / 10000 ** (2 * (dimension // 2) / depth)
    return np.where(dimension % 2 == 0, np.sin(angles), np.cos(angles))


def table(layer):
    """The encoding of every position that a layer knows."""
    if layer.kind == "learned":
        return numpy(layer.embeddings)
    return table_of_the_paper(LONGEST, DEPTH)


def built(kind, **options):
    layer = PositionEncoding(kind, max_length=LONGEST, **options)
    layer.build((BATCH, STEPS, DEPTH))
    return layer


@pytest.mark.parametrize("depth", [1, 2, DEPTH, 8])
def test_waves_follow_the_paper(rng, depth):
    x = draw(rng, (BATCH, STEPS, depth))

    assert_close(PositionEncoding()(x), x + table_of_the_paper(STEPS, depth))


@pytest.mark.parametrize("kind", KINDS)
def test_axes_before_the_steps_share_the_positions(rng, kind):
    layer = built(kind)
    x = draw(rng, (BATCH, BEAM, STEPS, DEPTH))
    # The second row ends with the last position.
    start = np.array([1, LONGEST - STEPS])

    assert_close(layer(x), x + table(layer)[:STEPS])
    outputs = layer(x, start=start)
    for b in range(BATCH):
        assert_close(outputs[b], x[b] + table(layer)[start[b] : start[b] + STEPS])


@pytest.mark.parametrize("kind", KINDS)
def test_stepping_equals_the_full_pass(rng, kind):
    layer = built(kind)
    x = draw(rng, (BATCH, STEPS, DEPTH))
    expected = layer(x)

    for t in range(STEPS):
        for start in (t, np.int32(t), np.full(BATCH, t)):
            assert_close(layer(x[:, t], start=start), expected[:, t], 1e-6)
            assert_close(layer(x[:, t:], start=start), expected[:, t:], 1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_mixed_precision(half, kind):
    # In bfloat16, positions beyond 256 could not be told apart.
    far = 300
    layer = PositionEncoding(kind, max_length=far + STEPS, dtype=f"mixed_{half}")

    actual = layer(np.zeros((1, STEPS, DEPTH), "float32"), start=far)

    assert keras.backend.standardize_dtype(actual.dtype) == half
    expected = table_of_the_paper(far + STEPS, DEPTH)
    if kind == "learned":
        assert layer.embeddings.dtype == "float32"
        expected = numpy(layer.embeddings)
    actual = ops.cast(actual, "float32")
    assert_close(actual[0], expected[far:], rounding_bound(half, 1))


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("kind", KINDS)
def test_double_precision_by_default(rng, kind):
    layer = built(kind)
    x = draw(rng, (BATCH, STEPS, DEPTH))
    start = np.array([1, 4], "int32")

    for first, rows in ((2, [2, 2]), (start, start)):
        expected = x + [table(layer)[row : row + STEPS] for row in rows]
        assert_close(layer(x, start=first), expected)


@pytest.mark.parametrize("start", [0, np.array([1, 2], "int32")])
def test_mask_is_passed_on(rng, start):
    token_ids = rng.integers(1, WORDS, (BATCH, STEPS))
    token_ids[:, -2:] = 0
    x = keras.layers.Embedding(WORDS, DEPTH, mask_zero=True)(token_ids)

    output = PositionEncoding()(x, start=start)
    average = keras.layers.GlobalAveragePooling1D()(output)

    assert_close(average, numpy(output)[:, :-2].mean(1), 1e-6)


def test_table_is_learned(rng, gradients):
    layer = built("learned")
    x = draw(rng, (BATCH, STEPS, DEPTH))

    _, gradient = gradients(
        lambda x: ops.sum(layer(x, start=2)), [x], layer.trainable_variables
    )

    expected = np.zeros((LONGEST, DEPTH))
    expected[2 : 2 + STEPS] = BATCH
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    assert built("sinusoidal").weights == []


# Every argument with a value that is not its default.
ARGUMENTS = {
    "kind": "learned",
    "max_length": LONGEST,
    "layout": "halves",
    "max_wavelength": 100.0,
    "embeddings_initializer": keras.initializers.Constant(0.5),
    "embeddings_regularizer": keras.regularizers.L1(0.25),
    "embeddings_constraint": keras.constraints.NonNeg(),
    "dtype": "mixed_bfloat16",
    "name": "places",
    "trainable": False,
}


def test_layer_comes_back_from_its_config():
    restored = restored_from_config(PositionEncoding, ARGUMENTS)

    restored.build((BATCH, STEPS, DEPTH))
    assert (numpy(restored.embeddings) == 0.5).all()
    assert restored.trainable_variables == []
    assert not restored.embeddings.trainable
    assert type(restored.embeddings.constraint).__name__ == "NonNeg"
    restored.trainable = True
    (loss,) = restored.losses
    assert float(loss) == pytest.approx(0.25 * 0.5 * LONGEST * DEPTH)


@pytest.mark.parametrize("kind", KINDS)
def test_model_trains_compiled_and_comes_back_from_its_file(rng, tmp_path, kind):
    x, start = keras.Input((None, DEPTH)), keras.Input((), dtype="int32")
    layer = PositionEncoding(kind, max_length=LONGEST)
    outputs = keras.layers.Dense(1)(layer(x, start=start))
    model = keras.Model([x, start], outputs)
    data = [draw(rng, (BATCH, STEPS, DEPTH)), np.array([1, 3], "int32")]
    fit(model, data, np.zeros((BATCH, STEPS, 1)))

    restored = reloaded(model, tmp_path)

    assert_close(restored(data), model(data), 1e-6)


@needs_tensorflow
@pytest.mark.parametrize("kind", KINDS)
def test_exported_model_takes_any_batch_and_length(rng, tmp_path, kind):
    import tensorflow as tf

    x = keras.Input((None, DEPTH))
    model = keras.Model(x, PositionEncoding(kind, max_length=LONGEST)(x))

    model.export(tmp_path / "model", verbose=False)
    saved = tf.saved_model.load(tmp_path / "model")

    for batch, steps in ((3, 7), (1, 1), (2, LONGEST)):
        data = draw(rng, (batch, steps, DEPTH))
        assert_close(saved.serve(data), model(data))


def test_learned_positions_need_a_length():
    with pytest.raises(ValueError, match=r"max_length must be given.*Received: None"):
        PositionEncoding("learned")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("shape", "start", "message"),
    [
        ((BATCH, LONGEST + 1, DEPTH), 0, "max_length=11. Received: 12 steps from .* 0"),
        ((BATCH, STEPS, DEPTH), 7, "max_length=11. Received: 5 steps from position 7"),
        ((BATCH, DEPTH), LONGEST, "max_length=11. Received: 1 steps from position 11"),
        ((BATCH, DEPTH), -1, "start must not be negative. Received: -1"),
        ((BATCH, DEPTH), 1.5, "start must be an integer, or .* Received: 1.5"),
        ((BATCH, DEPTH), np.array([1.0, 2]), "start must be an integer, .*Received"),
        ((2, STEPS, DEPTH), np.array([[1], [2]]), "start must be an integer, .*Rec"),
        ((DEPTH,), 0, r"inputs must have the shape .*Received: \(7,\)"),
        ((BATCH, STEPS, DEPTH), np.arange(3), r"each of 2 rows\. Received: \(3,\)"),
        ((1, STEPS, DEPTH), np.arange(3), r"each of 1 rows\. Received: \(3,\)"),
    ],
)
def test_position_that_does_not_exist_is_named(kind, shape, start, message):
    layer = built(kind)

    with pytest.raises(ValueError, match=message):
        layer(np.zeros(shape, "float32"), start=start)
    with pytest.raises(ValueError, match=message):
        layer(keras.KerasTensor(shape), start=start)
