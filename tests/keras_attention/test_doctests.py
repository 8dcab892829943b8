"""The examples in the docstrings run and print what they show."""

import pytest

import keras_attention
from attention_testing.doctests import check_examples, modules_with_examples


@pytest.mark.parametrize("name", modules_with_examples(keras_attention))
def test_examples(name):
    check_examples(name)
