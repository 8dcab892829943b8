"""A decoder and its beam search in a SavedModel, which needs TensorFlow alone."""

import inspect
import subprocess
import sys

import keras
import numpy as np
import pytest
from arrays import draw
from decoder.reference import INPUT_DIM, STATE_UNITS, UNITS, VALUE_DIM, WORDS
from keras import ops

from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    LayerNormGRUCell,
    LuongAttention,
    beam_search,
)

tf = pytest.importorskip("tensorflow")
pytestmark = [
    pytest.mark.usefixtures("seeded"),
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow", reason="a SavedModel needs TensorFlow"
    ),
]

MAX_LENGTH, BEAM = 6, 3

CELLS = {
    "Bahdanau": lambda: AttentionCell(
        LayerNormGRUCell(STATE_UNITS),
        AdditiveAttention(UNITS, coverage=True),
        gate=True,
    ),
    "Luong": lambda: AttentionCell(
        keras.layers.StackedRNNCells(
            [keras.layers.LSTMCell(STATE_UNITS), keras.layers.LSTMCell(STATE_UNITS)]
        ),
        LuongAttention("general", window="local-p", half_width=2),
        order="current",
        input_feeding=True,
        attentional_vector=UNITS,
    ),
    "monotonic": lambda: AttentionCell(
        keras.layers.LSTMCell(STATE_UNITS),
        AdditiveAttention(UNITS, weighting="monotonic"),
        order="current",
        input_feeding=True,
    ),
    "adaptive": lambda: AttentionCell(
        keras.layers.LSTMCell(STATE_UNITS),
        AdditiveAttention(UNITS),
        order="current",
        sentinel=True,
    ),
}


def check(folder):
    """Compare what a SavedModel finds with the arrays in the file beside it."""
    import numpy as np
    import tensorflow as tf

    data = np.load(folder + ".npz")
    loaded = tf.saved_model.load(folder)
    found = loaded.decode(tf.constant(data["value"]), tf.constant(data["mask"]))
    for name, x in found.items():
        np.testing.assert_allclose(x, data[name], atol=1e-5, err_msg=name)


def check_elsewhere(folder):
    """Run `check` in a process that does not import the library."""
    program = f"""
import sys
{inspect.getsource(check)}
check(sys.argv[1])
assert "keras_attention" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, folder], check=True)


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

        return beam_search(
            step,
            self.cell.get_initial_state(ops.shape(value)[0], memory),
            start=1,
            end=2,
            max_length=MAX_LENGTH,
            beam_size=BEAM,
        )


def search_of(name):
    """A translator, a source with its mask, and what the search finds for it."""
    rng, translator = np.random.default_rng(1), Translator(CELLS[name]())
    translator.search(draw(rng, (2, 5, VALUE_DIM)), np.ones((2, 5), "bool"))
    value, mask = draw(rng, (3, 11, VALUE_DIM)), rng.random((3, 11)) < 0.8
    return translator, value, mask, translator.search(value, mask)


@pytest.mark.parametrize(
    ("name", "compare"),
    [
        ("Bahdanau", check),
        *(
            pytest.param(name, check_elsewhere, marks=pytest.mark.exhaustive)
            for name in CELLS
        ),
    ],
)
def test_a_saved_model_finds_the_same_in_other_batches_and_lengths(
    tmp_path, name, compare
):
    translator, value, mask, expected = search_of(name)
    translator.decode = tf.function(
        translator.search,
        input_signature=[
            tf.TensorSpec((None, None, VALUE_DIM), tf.float32),
            tf.TensorSpec((None, None), tf.bool),
        ],
    )
    folder = str(tmp_path / name)

    tf.saved_model.save(translator, folder)

    np.savez(f"{folder}.npz", value=value, mask=mask, **expected)
    compare(folder)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CELLS)
def test_the_search_compiles(name):
    translator, value, mask, expected = search_of(name)

    compiled = tf.function(translator.search, jit_compile=True)

    for key, x in compiled(tf.constant(value), tf.constant(mask)).items():
        np.testing.assert_allclose(x, expected[key], atol=1e-4, err_msg=key)
