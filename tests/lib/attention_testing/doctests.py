"""The examples in the docstrings of a package."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import keras
import numpy as np

import keras_attention


def modules_with_examples(package):
    """Return the names of the modules of a package whose docstrings have examples."""
    names = [
        x.name for x in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    sources = {name: Path(importlib.util.find_spec(name).origin) for name in names}
    return [
        x for x in sorted(names) if ">>> " in sources[x].read_text(encoding="utf-8")
    ]


def check_examples(name):
    """Run the examples of a module, with the public names of the library."""
    module = importlib.import_module(name)
    public = {name: getattr(keras_attention, name) for name in keras_attention.__all__}
    tests = doctest.DocTestFinder().find(
        module, extraglobs={"np": np, "keras": keras, **public}
    )
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
