"""Lazy imports, so that a command loads only the modules that it needs."""

import importlib
import operator


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
    """Return the object of a `"module:name"`."""
    module, _, attribute = name.partition(":")
    return operator.attrgetter(attribute)(importlib.import_module(module))
