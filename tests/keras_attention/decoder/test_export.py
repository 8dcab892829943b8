"""A decoder and its beam search in a SavedModel, which needs TensorFlow alone."""

import inspect
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import assert_close, draw
from attention_testing.decoder.reference import (
    CELLS,
    CHOICES,
    INPUT_DIM,
    VALUE_DIM,
    WORDS,
)
from attention_testing.layers.cases import CASES
from attention_testing.models import needs_tensorflow

tf = pytest.importorskip("tensorflow")
pytestmark = needs_tensorflow

MAX_LENGTH, BEAM = 6, 3

# Order, recurrent cell and attention.
PARTS = {
    "Bahdanau": ("Bahdanau, gated", "normalized gru", "coverage"),
    "Luong": ("Luong, fed", "stacked lstm", "local-p"),
    "monotonic": ("Luong, fed with the context", "lstm", "monotonic"),
    "adaptive": ("adaptive", "lstm", "additive"),
}


def cell_of(name):
    choice, cell, attention = PARTS[name]
    return ka.AttentionCell(CELLS[cell](), CASES[attention].build(), **CHOICES[choice])


def check(*folders):
    """Compare what SavedModels find with the arrays in the files beside them."""
    import numpy as np
    import tensorflow as tf

    for folder in folders:
        data = np.load(folder + ".npz")
        loaded = tf.saved_model.load(folder)
        decoded = loaded.decode(tf.constant(data["value"]), tf.constant(data["mask"]))
        for name, x in decoded.items():
            np.testing.assert_allclose(x, data[name], atol=1e-5, err_msg=name)


def check_elsewhere(*folders):
    """Run `check` in a process that does not import the library."""
    program = f"""
import sys
{inspect.getsource(check)}
check(*sys.argv[1:])
assert "keras_attention" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, *folders], check=True)


class Translator(tf.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell
        self.embed = keras.layers.Embedding(WORDS, INPUT_DIM)
        self.classify = keras.layers.Dense(WORDS, kernel_initializer="random_normal")

    def search(self, value, mask):
        memory = self.cell.attention.memory(value, value_mask=mask)

        def step(token_ids, state):
            outputs, state = self.cell(self.embed(token_ids), state, memory)
            # Sharper than a model that has learned nothing.
            logits = 5 * self.classify(outputs["output"])
            return ops.log_softmax(logits), state, outputs["weights"]

        return ka.beam_search(
            step,
            self.cell.get_initial_state(ops.shape(value)[0], memory),
            start=1,
            end=2,
            max_length=MAX_LENGTH,
            beam_size=BEAM,
        )


def search_of(name):
    """A translator, a source with its mask, and what the search finds for it."""
    rng, translator = np.random.default_rng(1), Translator(cell_of(name))
    translator.search(draw(rng, (2, 5, VALUE_DIM)), np.ones((2, 5), "bool"))
    value, mask = draw(rng, (3, 11, VALUE_DIM)), rng.random((3, 11)) < 0.8
    return translator, value, mask, translator.search(value, mask)


@pytest.mark.exhaustive
def test_saved_models_find_the_same_in_other_batches_and_lengths(tmp_path):
    folders = [str(tmp_path / name) for name in PARTS]
    for name, folder in zip(PARTS, folders, strict=True):
        translator, value, mask, expected = search_of(name)
        translator.decode = tf.function(
            translator.search,
            input_signature=[
                tf.TensorSpec((None, None, VALUE_DIM), tf.float32),
                tf.TensorSpec((None, None), tf.bool),
            ],
        )
        tf.saved_model.save(translator, folder)
        np.savez(f"{folder}.npz", value=value, mask=mask, **expected)

    check_elsewhere(*folders)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["Bahdanau", "Luong", "adaptive"])
def test_the_search_compiles(name):
    translator, value, mask, expected = search_of(name)

    compiled = tf.function(translator.search, jit_compile=True)

    assert_close(compiled(tf.constant(value), tf.constant(mask)), expected, 1e-4)
