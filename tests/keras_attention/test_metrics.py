import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_attention.metrics import AlignmentErrorRate, PointingAccuracy

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, STEPS, POSITIONS = 2, 3, 5

METRICS = {"alignment": AlignmentErrorRate, "pointing": PointingAccuracy}
every_metric = pytest.mark.parametrize("metric_class", METRICS.values(), ids=METRICS)


@pytest.fixture
def weights(rng):
    return rng.dirichlet(np.ones(POSITIONS), size=(BATCH, STEPS)).astype("float32")


@pytest.fixture
def reference(rng):
    """Links of every kind, and a row without links."""
    reference = rng.integers(3, size=(BATCH, STEPS, POSITIONS))
    reference[1, 2] = 0
    return reference


def value_of(metric, *batches):
    for batch in batches:
        metric.update_state(*batch)
    return float(metric.result())


def error_rate(*batches):
    """Return the alignment error rate by sets of links `(sentence, target, source)`."""
    sure, possible, links = set(), set(), set()
    for number, (reference, weights) in enumerate(batches):
        for b, t, s in np.ndindex(reference.shape):
            if reference[b, t, s] == 2:
                sure.add((number, b, t, s))
            if reference[b, t, s] >= 1:
                possible.add((number, b, t, s))
            if weights[b, t, s] == max(weights[b, t]) > 0:
                links.add((number, b, t, s))
    right = len(links & sure) + len(links & possible)
    return 1 - right / (len(links) + len(sure))


def accuracy(*batches):
    """Return the share of maps that point inside, of those with an inside."""
    hits = []
    for inside, maps in batches:
        for row in np.ndindex(maps.shape[:-1]):
            if inside[row].any():
                best = np.argmax(maps[row])
                hits.append(inside[row][best] and maps[row][best] > 0)
    return np.mean(hits)


def test_error_rate_is_that_of_the_corpus(reference, weights, rng):
    batches = [
        (reference, weights),
        (reference[:1, ::-1], weights[1:]),
        (rng.integers(3, size=(1, 7, 11)), rng.random((1, 7, 11))),
    ]

    actual = value_of(AlignmentErrorRate(), *batches)

    expected = error_rate(*batches)
    assert actual == pytest.approx(expected, rel=1e-5)
    single = [error_rate(batch) for batch in batches]
    assert abs(np.mean(single) - expected) > 1e-3


def test_booleans_are_sure_links(reference, weights):
    sure = reference == 2

    value = value_of(AlignmentErrorRate(), (sure, weights))

    assert value == pytest.approx(error_rate((2 * sure, weights)), rel=1e-5)
    # Neither all right nor all wrong, and links are missing.
    assert 0 < value < 1
    assert sure.sum() != BATCH * STEPS


def test_pointing_follows_its_definition(reference, weights, rng):
    batches = [
        (reference > 1, weights),
        (rng.random((7, 11)) < 0.5, rng.random((7, 11))),
        (rng.random((2, 3, 5, 7)) < 0.1, rng.random((2, 3, 5, 7))),
    ]

    actual = value_of(PointingAccuracy(), *batches)

    expected = accuracy(*batches)
    assert 0 < expected < 1
    assert actual == pytest.approx(expected, rel=1e-6)


def test_attention_that_looks_nowhere_links_nothing(reference, weights):
    # Were the first position taken instead, it would hit.
    reference[0, 1] = reference[1, 0] = [2, 0, 0, 0, 0]
    weights[0, 1] = weights[1, 0] = 0

    for metric, expected, batch in (
        (AlignmentErrorRate(), error_rate, (reference, weights)),
        (PointingAccuracy(), accuracy, (reference > 0, weights)),
    ):
        assert value_of(metric, batch) == pytest.approx(expected(batch), rel=1e-5)


@every_metric
def test_weights_of_zero_leave_rows_out(metric_class, reference, weights):
    mask = np.array([[1, 0, 1], [1, 1, 0]], "bool")
    unmasked = reference[mask][None], weights[mask][None]

    expected = value_of(metric_class(), unmasked)
    reference[~mask], weights[~mask] = 2, np.nan
    actual = value_of(metric_class(), (reference, weights, mask))

    assert 0 < expected < 1
    assert actual == pytest.approx(expected, rel=1e-6)


@every_metric
def test_a_weight_of_two_counts_twice(metric_class, rng):
    # As many examples as steps: they must not be mistaken for each other.
    reference, weights = rng.integers(3, size=(3, 3, 5)), rng.random((3, 3, 5))
    of_examples = np.array([1, 2, 0])
    of_steps = rng.integers(3, size=(3, 3))

    for weight in (of_examples, of_steps):
        count = np.broadcast_to(weight.reshape(3, -1), (3, 3))
        rows = [
            np.repeat(x.reshape(9, 5), count.ravel(), 0) for x in (reference, weights)
        ]

        actual = value_of(metric_class(), (reference, weights, weight))

        expected = value_of(metric_class(), [x[None] for x in rows])
        assert actual == pytest.approx(expected, rel=1e-6)


@every_metric
def test_metric_is_rebuilt_from_its_config(metric_class):
    metric = metric_class(name="found", dtype="float64")

    again = keras.metrics.deserialize(keras.metrics.serialize(metric))

    assert type(again) is metric_class
    assert again.get_config() == metric.get_config()
    assert (again.name, again.dtype) == ("found", "float64")
    words = re.findall("[A-Z][a-z]+", metric_class.__name__)
    assert metric_class().name == "_".join(words).lower()


@every_metric
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_counts_every_row(metric_class, dtype):
    # Counted one by one in bfloat16, ones stop adding up at 256.
    metric = metric_class(dtype=dtype)
    reference = np.array([[[True, False]]])
    # A wrong link and a missing one, or one hit.
    is_rate = metric_class is AlignmentErrorRate
    weights = ops.cast(reference != is_rate, dtype)
    gain = 1 + is_rate
    metric.numerator.assign(5000)
    metric.denominator.assign(8001)

    metric.update_state(reference, weights)

    assert float(metric.numerator) == 5000 + gain
    assert float(metric.denominator) == 8001 + gain
    assert keras.backend.standardize_dtype(metric.result().dtype) == dtype


@every_metric
def test_metric_in_compile(metric_class, reference, weights):
    # Sources of any length, and targets that are padded.
    inputs = keras.Input((STEPS, None))
    model = keras.Model(inputs, keras.layers.ReLU()(inputs))
    metric = metric_class(name="weighted")
    model.compile(
        loss="mse", metrics=[metric_class(name="plain")], weighted_metrics=[metric]
    )
    mask = np.array([[1, 1, 0], [1, 0, 0]], "float32")
    reference[0, 1] = reference[1, 0] = 2

    options = {"batch_size": 1, "verbose": 0, "return_dict": True}
    actual = model.evaluate(weights, reference, sample_weight=mask, **options)

    for name, batch in (("plain", ()), ("weighted", (mask,))):
        expected = value_of(metric_class(), (reference, weights, *batch))
        assert actual[name] == pytest.approx(expected, rel=1e-6)
    assert actual["plain"] != actual["weighted"]


@every_metric
@pytest.mark.parametrize("shape", [(2, 3, 7), (3, 5), (1, 3, 5)])
def test_reference_of_another_shape_is_named(metric_class, weights, shape):
    message = re.escape(f"the same shape. Received: {shape} and {weights.shape}")

    with pytest.raises(ValueError, match=f"y_true and y_pred must have {message}"):
        metric_class().update_state(np.zeros(shape), weights)


@every_metric
def test_sample_weights_may_have_one_more_axis(metric_class, weights, reference):
    reference = reference == 2
    for shape in ((BATCH,), (BATCH, STEPS)):
        share = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
        value = value_of(metric_class(), (reference, weights, share))
        again = value_of(metric_class(), (reference, weights, share[..., None]))
        assert again == value
        assert value != value_of(metric_class(), (reference, weights))


def test_sample_weights_of_maps_alone_may_have_one_more_axis():
    inside = np.array([[1, 0], [0, 1], [1, 0]], "bool")
    weights = np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]])
    share = np.array([1.0, 2.0, 3.0])

    for sample_weight in (share, share[:, None]):
        value = value_of(PointingAccuracy(), (inside, weights, sample_weight))
        assert value == pytest.approx(1 / 6)


@every_metric
def test_sample_weights_of_another_shape_are_named(metric_class, weights, reference):
    with pytest.raises(ValueError, match=r"sample_weight must have .* Received: \(3,"):
        metric_class().update_state(reference, weights, np.ones(STEPS))


@every_metric
def test_weights_of_nan_are_not_hidden(metric_class):
    reference = np.array([[[2, 0], [2, 0]]])
    weights = np.array([[[0.7, 0.3], [np.nan, 0.5]]])

    assert np.isnan(value_of(metric_class(), (reference, weights)))
    valid = np.array([[True, False]])
    value = value_of(metric_class(), (reference, weights, valid))
    assert value == (0 if metric_class is AlignmentErrorRate else 1)
