"""Masks of every kind for 3 queries and 5 positions, and their gradients."""

import numpy as np


def masks(rng):
    """Return masks of every kind; query 0 of row 1 sees no position."""
    all_masks = {
        "query_mask": np.array([[1, 0, 1], [1, 1, 1]], "bool"),
        "value_mask": np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]], "bool"),
        "key_mask": np.array([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]], "bool"),
        "attention_mask": rng.random((2, 3, 5)) < 0.7,
    }
    all_masks["attention_mask"][1, 0] = [0, 0, 0, 0, 1]
    return all_masks


def combined(query_mask, value_mask, key_mask, attention_mask):
    """Return which positions each query sees, `(batch, queries, positions)`."""
    memory_mask = (value_mask & key_mask)[:, None, :]
    return query_mask[:, :, None] & memory_mask & attention_mask


def spoil(arrays, masks):
    """Write NaN or infinity to the masked positions of query, value and key."""
    bad = {"query": np.nan, "value": np.inf, "key": np.nan}
    for array, name in zip(arrays, bad, strict=True):
        array[~masks[f"{name}_mask"]] = bad[name]


def assert_zero_where_masked(gradients, masks):
    """Assert that gradients are finite and not zero, but zero at masked positions.

    Args:
        gradients: Gradients of query, value and key, then those of the weights.
        masks: Dict that `masks` returned.
    """
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert (gradient != 0).any()
    for gradient, name in zip(gradients, ("query", "value", "key"), strict=False):
        assert (gradient[~masks[f"{name}_mask"]] == 0).all()
