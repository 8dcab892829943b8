"""The examples in the docstrings run and print what they show."""

import pytest

import keras_attention_apps
from attention_testing.doctests import check_examples, modules_with_examples

# Their examples load a preset, which other tests do, too.
SLOW = {
    "keras_attention_apps.captioner.inference",
    "keras_attention_apps.nmt.inference",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in SLOW else [])
        for name in modules_with_examples(keras_attention_apps)
    ],
)
def test_examples(name):
    if name.endswith(".web"):
        pytest.importorskip("gradio")
    check_examples(name)
