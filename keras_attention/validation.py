"""Checks of arguments and shapes that raise `ValueError`."""

import math
import numbers
import operator

import keras
import numpy as np
from keras import ops, tree

from keras_attention.sizes import known_sizes


def check_number(name, value, expected, holds):
    """Raise `ValueError` unless an argument is a number for which `holds` is true.

    Args:
        expected: Description of such numbers, for the message.
        holds: Function of the number.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and holds(value)):
        raise ValueError(f"{name} must be {expected}. Received: {value!r}")


def check_positive(name, value):
    """Raise `ValueError` unless an argument is a positive number."""
    expected = "positive and finite"
    check_number(name, value, expected, lambda x: 0 < x < math.inf)


def check_fraction(name, value):
    """Raise `ValueError` unless an argument is a number from 0 to 1."""
    check_number(name, value, "between 0 and 1", lambda x: 0 <= x <= 1)


def check_boolean(name, value):
    """Raise `ValueError` unless an argument is a boolean."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be a boolean. Received: {value!r}")


def check_positive_integer(name, value, *, optional=False):
    """Return a positive integer as an `int` (or `None`), or raise `ValueError`."""
    if optional and value is None:
        return None
    number = as_integer(value)
    if number is None or number < 1:
        either = " or None" if optional else ""
        raise ValueError(
            f"{name} must be a positive integer{either}. Received: {value!r}"
        )
    return number


def as_integer(value):
    """Return an integer of any type, such as NumPy's, as an `int`, or else `None`."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_positions(positions):
    """Return a number of positions as an `int`; a tensor or `None` as it is."""
    number = as_integer(positions)
    is_tensor = "int" in str(getattr(positions, "dtype", ""))
    if number is None and (is_tensor or positions is None):
        return positions
    if number is None or number < 0:
        raise ValueError(
            "positions must be an integer, not negative, or None. "
            f"Received: {positions!r}"
        )
    return number


def check_not_negative(name, value):
    """Raise `ValueError` unless the value is a finite number and not negative."""
    expected = "finite and not negative"
    check_number(name, value, expected, lambda x: 0 <= x < math.inf)


def check_choice(name, value, choices):
    """Raise `ValueError` unless an argument is one of its choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, choices))}. "
            f"Received: {value!r}"
        )


def may_be_equal(shape, other):
    """Return whether two shapes agree in every size that is known."""
    shape, other = known_sizes(shape), known_sizes(other)
    return len(shape) == len(other) and all(
        a == b or a is None or b is None for a, b in zip(shape, other, strict=True)
    )


def shapes_of(nested):
    """Return the shapes of nested tensors, for an error message."""
    return tree.map_structure(
        lambda x: tuple(x.shape) if hasattr(x, "shape") else x, nested
    )


def check_rank(name, shape, ranks, expected):
    """Raise `ValueError` unless a shape has one of these numbers of axes."""
    if len(shape) not in ranks:
        raise ValueError(
            f"{name} must have the shape {expected}. Received: {tuple(shape)}"
        )


def check_mask(name, mask, *shapes, broadcasts=False):
    """Raise `ValueError` for a mask of another shape, or an additive mask.

    A list is refused, too: Keras does not count it as a tensor of the call, and would
    pass implicit masks to the wrong arguments.

    Args:
        broadcasts: Whether any axis of the mask may be of size 1.
    """
    if mask is None:
        return
    check_shape(name, mask, *shapes, broadcasts=broadcasts)
    if "float" not in keras.backend.standardize_dtype(mask.dtype):
        return
    # In a graph, the values are not known.
    values = values_of(mask)
    if values is not None and not ((values == 0) | (values == 1)).all():
        raise ValueError(
            f"{name} must be boolean, `True` where a position is valid, or hold 0 and "
            "1 only. An additive mask, such as 0 and -1e9, is passed as mask == 0. "
            f"Received: {mask.dtype} from {values.min()} to {values.max()}"
        )


def values_of(x):
    """Return the values of a tensor, or `None` in a graph, where they are not known."""
    try:
        return np.asarray(ops.convert_to_numpy(x))
    except (NotImplementedError, TypeError, RuntimeError, ValueError):
        return None


def check_shape(name, x, *shapes, broadcasts=False):
    """Raise `ValueError` unless a tensor may have one of these shapes."""
    if not hasattr(x, "shape"):
        raise ValueError(f"{name} must be a tensor or an array. Received: {x!r}")
    found = tuple(x.shape)
    if found in shapes:
        return
    sizes = [None if broadcasts and size == 1 else size for size in found]
    if not any(may_be_equal(sizes, shape) for shape in shapes):
        expected = " or ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(f"{name} must have the shape {expected}. Received: {found}")
