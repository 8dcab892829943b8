"""Importing when something is needed, so that no command waits for the rest."""

import importlib
import operator


def imported(name):
    """Return the object of a `"module:name"`."""
    module, _, attribute = name.partition(":")
    return operator.attrgetter(attribute)(importlib.import_module(module))
