"""Lazy imports, so that a command loads only the modules that it needs."""

import importlib
import operator

from keras_attention_apps.common.errors import UserError


def lazy_attributes(package, modules):
    """Return `__all__` and `__getattr__` of a package that imports its names lazily.

    Args:
        package: Name of the package.
        modules: Dict from names to the modules of the package that define them.
    """

    def get_attribute(name):
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return imported(f"{package}.{modules[name]}:{name}")

    return list(modules), get_attribute


def imported(name):
    """Return the object of a `"module:name"`.

    Raises:
        UserError: If KERAS_BACKEND names no backend of Keras.
    """
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ValueError as error:
        # Keras reads the name of its backend when it is imported.
        if not str(error).startswith("Unable to import backend"):
            raise
        raise UserError(
            "expected a backend of Keras: set KERAS_BACKEND=tensorflow, jax or torch. "
            f"{error}"
        ) from error
    return operator.attrgetter(attribute)(found)
