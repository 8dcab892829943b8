import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import numpy
from keras_attention.search import top_k as module
from keras_attention.search.top_k import top_k_of_sums

ROWS = 3


def top_k(x, k):
    """Return the largest numbers of every row, and their positions."""
    values, parts, indices, terms = top_k_of_sums(ops.zeros((len(x), 1)), x[:, None], k)
    np.testing.assert_array_equal(numpy(terms), numpy(values))
    np.testing.assert_array_equal(numpy(parts), 0)
    return values, indices


@pytest.mark.parametrize("size", [101, 2003, 3000])
def test_sums_with_one_number_for_each_part(rng, size):
    x = rng.normal(size=(ROWS, 5, size)).astype("float32")
    offsets = (3 * rng.normal(size=(ROWS, 5))).astype("float32")

    actual = top_k_of_sums(*map(ops.convert_to_tensor, (offsets, x)), 7)

    sums = (offsets[..., None] + x).reshape(ROWS, -1)
    expected = np.argsort(-sums, axis=-1, kind="stable")[:, :7]
    values, parts, indices, terms = numpy(actual)
    expected_terms = np.take_along_axis(x.reshape(ROWS, -1), expected, axis=-1)
    np.testing.assert_array_equal(terms, expected_terms)
    np.testing.assert_array_equal(values, np.take_along_axis(sums, expected, axis=-1))
    np.testing.assert_array_equal(parts * size + indices, expected)
    assert len({*parts.ravel().tolist()}) > 1


# Few numbers; chunks of equal length; prime numbers of them; more chosen than chunks
# would be worth.
@pytest.mark.parametrize("size, k", [(101, 5), (6000, 7), (5003, 2), (5003, 300)])
@pytest.mark.parametrize("distinct", [True, False])
def test_results_equal_those_of_sorting(size, k, distinct):
    rng = np.random.default_rng(size)
    x = rng.permutation(ROWS * size).reshape(ROWS, size).astype("float32")
    if not distinct:
        x = x % 50

    values, indices = numpy(top_k(ops.convert_to_tensor(x), k))

    expected = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=-1))
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, axis=-1))
    assert indices.dtype == "int32"
    assert all(len(set(row)) == k for row in indices)
    # PyTorch finds equal numbers in any order.
    if distinct or keras.backend.backend() != "torch":
        np.testing.assert_array_equal(indices, expected)


def test_the_padding_of_the_last_chunk_is_never_found():
    x = np.full((ROWS, 5003), -np.inf, "float32")
    x[:, -1] = 0.0

    values, indices = numpy(top_k(ops.convert_to_tensor(x), 3))

    assert (indices < 5003).all()
    np.testing.assert_array_equal(indices[:, 0], 5002)
    np.testing.assert_array_equal(values, [[0.0, -np.inf, -np.inf]] * ROWS)


@pytest.mark.parametrize(
    ("size", "k", "sorts"),
    [(101, 5, 1), (4703, 300, 1), (5003, 2, 2), (40_000, 10, 2), (6000, 300, 2)],
)
def test_of_large_sizes_only_a_fraction_is_sorted(monkeypatch, size, k, sorts):
    sizes, sort = [], ops.top_k

    def record(x, k):
        sizes.append(x.shape[-1])
        return sort(x, k)

    monkeypatch.setattr(module.ops, "top_k", record)
    x = np.random.default_rng(1).normal(size=(ROWS, size)).astype("float32")
    top_k(ops.convert_to_tensor(x), k)

    assert len(sizes) == sorts
    assert (sum(sizes) < size / 2) == (sorts == 2)
