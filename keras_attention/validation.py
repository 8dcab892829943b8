"""Checks of arguments and shapes that raise `ValueError`."""

import inspect
import math
import numbers
import operator
from collections.abc import Callable, Container, Iterable
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from keras_attention.sizes import known_sizes
from keras_attention.typing import Nested, Seed, Shape, Tensor

# Greatest number of units, heads, positions or rows of a layer. A larger one is a
# mistake, for which backends fail late: out of memory, or with 32-bit overflows.
MAX_SIZE = 2**20
# Greatest number in float32, and the smallest above zero that no backend rounds to it.
MAX_FLOAT32 = float(np.finfo("float32").max)
MIN_FLOAT32 = float(np.finfo("float32").tiny)


def check_number(
    name: str,
    value: Any,
    expected: str,
    holds: Callable[[Any], bool],
    maximum: float = MAX_FLOAT32,
) -> None:
    """Raise `ValueError` unless an argument is a number for which `holds` is true.

    Args:
        expected: Description of such numbers, for the message.
        holds: Function of the number.
        most: Largest absolute value of a finite number.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and holds(value)):
        raise ValueError(f"{name} must be {expected}. Received: {value!r}")
    # Integers of Python have no limit, and its floats have that of float64.
    if maximum < abs(value) < math.inf:
        raise ValueError(f"{name} must be at most {maximum:.2g}. Received: {value!r}")


def check_positive(name: str, value: Any) -> None:
    """Raise `ValueError` unless an argument is a positive number."""
    expected = "positive and finite"
    check_number(name, value, expected, lambda x: 0 < x < math.inf)
    if value < MIN_FLOAT32:
        raise ValueError(
            f"{name} must be at least {MIN_FLOAT32:.2g}, since float32 has nothing "
            f"smaller. Received: {value!r}"
        )


def check_fraction(name: str, value: Any) -> None:
    """Raise `ValueError` unless an argument is a number from 0 to 1."""
    check_number(name, value, "between 0 and 1", lambda x: 0 <= x <= 1)


def check_dropout(rate: float) -> None:
    """Raise `ValueError` unless a rate of dropout leaves something."""
    check_number("dropout", rate, "in [0, 1)", lambda x: 0 <= x < 1)


def check_boolean(name: str, value: Any) -> None:
    """Raise `ValueError` unless an argument is a boolean."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be a boolean. Received: {value!r}")


def check_positive_integer(
    name: str, value: Any, *, optional: bool = False, maximum: int = MAX_SIZE
) -> Any:
    """Return an integer from 1 to `maximum` as an `int`, or raise `ValueError`.

    With `optional`, `None` is returned as it is.
    """
    if optional and value is None:
        return None
    number = as_integer(value)
    if number is None or number < 1:
        either = " or None" if optional else ""
        raise ValueError(
            f"{name} must be a positive integer{either}. Received: {value!r}"
        )
    if number > maximum:
        raise ValueError(f"{name} must be at most {maximum:,}. Received: {number:,}")
    return number


def check_integer(name: str, value: Any, *, optional: bool = False) -> Any:
    """Return an integer of 32 bits as an `int`, or raise `ValueError`.

    With `optional`, `None` is returned as it is.
    """
    if optional and value is None:
        return None
    number = as_integer(value)
    if number is None or not -(2**31) <= number < 2**31:
        either = " or None" if optional else ""
        raise ValueError(
            f"{name} must be an integer of 32 bits{either}. Received: {value!r}"
        )
    return number


def check_seed(seed: Any) -> Seed:
    """Return a seed that every backend takes, or raise `ValueError`."""
    if seed is None or isinstance(seed, keras.random.SeedGenerator):
        return seed
    number = as_integer(seed)
    if number is None or not 0 <= number < 2**32:
        raise ValueError(
            f"seed must be an integer from 0 to {2**32 - 1:,}, a SeedGenerator or "
            f"None. Received: {seed!r}"
        )
    return number


def as_integer(value: Any) -> int | None:
    """Return an integer of any type, such as NumPy's, as an `int`, or else `None`."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_positions(positions: Any) -> Any:
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


def check_not_negative(name: str, value: Any) -> None:
    """Raise `ValueError` unless the value is a finite number and not negative."""
    expected = "finite and not negative"
    check_number(name, value, expected, lambda x: 0 <= x < math.inf)


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise `ValueError` unless an argument is one of its choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, choices))}. "
            f"Received: {value!r}"
        )


def may_be_equal(shape: Shape, other: Shape) -> bool:
    """Return whether two shapes agree in every size that is known."""
    shape, other = known_sizes(shape), known_sizes(other)
    return len(shape) == len(other) and all(
        a == b or a is None or b is None for a, b in zip(shape, other, strict=True)
    )


def shapes_of(nested: Nested) -> Any:
    """Return the shapes of nested tensors, for an error message."""
    return tree.map_structure(
        lambda x: tuple(x.shape) if hasattr(x, "shape") else x, nested
    )


def check_rank(name: str, shape: Shape, ranks: Container[int], expected: str) -> None:
    """Raise `ValueError` unless a shape has one of these numbers of axes."""
    if len(shape) not in ranks:
        raise ValueError(
            f"{name} must have the shape {expected}. Received: {tuple(shape)}"
        )


def check_mask(name: str, mask: Any, *shapes: Any, broadcasts: bool = False) -> None:
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


def values_of(x: Any) -> np.ndarray | None:
    """Return the values of a tensor, or `None` in a graph, where they are not known."""
    try:
        return np.asarray(ops.convert_to_numpy(x))
    except (NotImplementedError, TypeError, RuntimeError, ValueError):
        return None


def check_tensor(name: str, x: Any) -> None:
    """Raise `ValueError` unless an argument is a tensor or an array of numbers."""
    dtype = getattr(x, "dtype", "no tensor" if not hasattr(x, "shape") else "")
    if not any(kind in str(dtype) for kind in ("float", "int", "bool")):
        raise ValueError(
            f"{name} must be a tensor or an array of numbers. Received: "
            f"{str(dtype) if hasattr(x, 'shape') else repr(x):.80}"
        )


def as_tensor(name: str, x: Any) -> Tensor:
    """Return an argument as a tensor, or raise `ValueError` if it is not numbers."""
    if hasattr(x, "shape"):
        check_tensor(name, x)
        return ops.convert_to_tensor(x)
    try:
        tensor = ops.convert_to_tensor(x)
        check_tensor(name, tensor)
    except Exception as error:
        raise ValueError(
            f"{name} must be a tensor or an array of numbers. Received: {x!r:.80}"
        ) from error
    return tensor


class CheckedCall:
    """Mixin of layers that explain errors of a call by `check_call_arguments`."""

    call: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        except Exception as error:
            check_call_arguments(self.call, args, kwargs, error)
            raise


def check_call_arguments(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: Exception,
) -> None:
    """Raise `ValueError` from an error of a call if an argument has a wrong type.

    Called after an error only, so that a call that succeeds costs nothing.

    Args:
        call: The method, whose arguments are tensors, nested ones, and booleans.
        args, kwargs: Arguments of the call.
    """
    parameters = inspect.signature(call).parameters
    # An unknown or missing argument is an error of Python, which names it.
    arguments = dict(zip(parameters, args, strict=False)) | kwargs
    for name, parameter in parameters.items():
        default = parameter.default
        # A cache is checked by its own layer, which names the entries that it needs.
        if name not in arguments or arguments[name] is default or name == "cache":
            continue
        try:
            if isinstance(default, bool) or name == "training":
                check_boolean(name, arguments[name])
            elif default in (parameter.empty, None):
                for x in tree.flatten(arguments[name]) or [arguments[name]]:
                    check_tensor(name, x)
        except ValueError as explanation:
            raise explanation from error


def check_shape(name: str, x: Any, *shapes: Any, broadcasts: bool = False) -> None:
    """Raise `ValueError` unless a tensor may have one of these shapes."""
    check_tensor(name, x)
    actual = tuple(x.shape)
    if actual in shapes:
        return
    sizes = [None if broadcasts and size == 1 else size for size in actual]
    if not any(may_be_equal(sizes, shape) for shape in shapes):
        expected = " or ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(f"{name} must have the shape {expected}. Received: {actual}")
