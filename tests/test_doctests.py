"""The examples in the docstrings run and print what they show."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_attention


def modules_with_examples():
    packages = [keras_attention]
    # The library is tested without the apps, too; on other backends, it alone is.
    on_tensorflow = keras.backend.backend() == "tensorflow"
    if on_tensorflow and importlib.util.find_spec("keras_attention_apps"):
        packages.append(importlib.import_module("keras_attention_apps"))
    for package in packages:
        prefix = f"{package.__name__}."
        for info in pkgutil.walk_packages(package.__path__, prefix):
            source = Path(importlib.util.find_spec(info.name).origin)
            if ">>> " in source.read_text(encoding="utf-8"):
                yield info.name


# Their examples load a preset, which other tests do, too.
SLOW = {
    "keras_attention_apps.captioner.inference",
    "keras_attention_apps.nmt.inference",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in SLOW else [])
        for name in sorted(modules_with_examples())
    ],
)
def test_examples(name):
    module = importlib.import_module(name)
    public = {name: getattr(keras_attention, name) for name in keras_attention.__all__}
    tests = doctest.DocTestFinder().find(
        module, extraglobs={"np": np, "keras": keras, **public}
    )
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
