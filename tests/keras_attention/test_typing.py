import functools
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest

import keras_attention

PUBLIC = [name for name in keras_attention.__all__ if name != "__version__"]


def functions_of(name):
    """Yield the public functions of a name: itself, or the methods of a class.

    The methods of base classes count if they are those of the library.
    """
    member = getattr(keras_attention, name)
    if not inspect.isclass(member):
        yield name, member
        return
    for base in member.__mro__:
        if base.__module__.split(".")[0] != "keras_attention":
            continue
        for method, value in vars(base).items():
            if method in ("__init__", "__call__") or not method.startswith("_"):
                function = unwrapped(value)
                if inspect.isfunction(function):
                    yield f"{base.__name__}.{method}", function


def unwrapped(value):
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    return inspect.unwrap(getattr(value, "__func__", value))


def missing_annotations(name, function):
    """Return the parameters without annotation, and "return" for the result."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if "." in name and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    missing = [x.name for x in parameters if x.annotation is inspect.Parameter.empty]
    if signature.return_annotation is inspect.Signature.empty:
        missing.append("return")
    return missing


@pytest.mark.parametrize("name", PUBLIC)
def test_public_signatures_are_annotated(name):
    functions = dict(functions_of(name))
    assert functions or inspect.isclass(getattr(keras_attention, name))
    missing = {
        function: unannotated
        for function, value in functions.items()
        if (unannotated := missing_annotations(function, value))
    }

    assert missing == {}


def test_the_search_shows_the_options_of_its_class():
    signature = inspect.signature(keras_attention.beam_search)

    assert signature.parameters["beam_size"].annotation is int
    assert signature.return_annotation == dict[str, Any]


def test_type_checkers_are_told_to_read_the_hints():
    (folder,) = importlib.util.find_spec("keras_attention").submodule_search_locations
    assert Path(folder, "py.typed").exists()
