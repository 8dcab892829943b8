"""Decoders learn tasks with a known alignment of every word."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from attention_testing.combinations import quick_first

LENGTH, SYMBOLS, UNITS, START = 5, 17, 32, 0

# For every step, the position whose symbol comes next.
TASKS = {
    "copy": lambda source: np.broadcast_to(np.arange(LENGTH), source.shape),
    "reverse": lambda source: np.broadcast_to(np.arange(LENGTH)[::-1], source.shape),
    "sort": lambda source: np.argsort(source, axis=-1),
}

ATTENTIONS = {
    "additive": lambda: ka.AdditiveAttention(UNITS),
    "entmax": lambda: ka.AdditiveAttention(UNITS, weighting="entmax"),
    "general": lambda: ka.LuongAttention("general"),
    "location": lambda: ka.LuongAttention("location", positions=LENGTH),
    "local-p": lambda: ka.LuongAttention("general", window="local-p", half_width=3),
    "local-m": lambda: ka.LuongAttention("general", window="local-m", half_width=1),
    "monotonic": lambda: ka.AdditiveAttention(
        UNITS, weighting=ka.MonotonicWeighting(score_bias=-1.0)
    ),
}
LUONG = {"order": "current", "attentional_vector": UNITS}
ORDERS = {
    "Bahdanau": {},
    "Luong": LUONG,
    "Luong, fed": {**LUONG, "input_feeding": True},
}

# Location scores do not depend on the symbols, so they cannot sort; local-m and
# monotonic attention move forward only, so they cannot reverse.
CASES = [
    ("reverse", "general", "Luong"),
    ("copy", "location", "Luong, fed"),
    ("copy", "local-m", "Luong, fed"),
    ("copy", "local-p", "Luong, fed"),
    ("copy", "monotonic", "Bahdanau"),
    ("sort", "entmax", "Luong, fed"),
]
if keras.backend.backend() == "jax":
    CASES = [("reverse", "additive", "Bahdanau"), ("copy", "monotonic", "Luong, fed")]
if keras.backend.backend() == "torch":
    # Every operation of every step is a call of its own.
    CASES = [("reverse", "general", "Luong")]


def examples(task, count):
    """Sources without repetitions, their targets, and where those stand."""
    rng = np.random.default_rng(1)
    symbols = np.arange(1, SYMBOLS)
    source = np.stack([rng.permutation(symbols)[:LENGTH] for _ in range(count)])
    alignment = TASKS[task](source)
    return source, np.take_along_axis(source, alignment, axis=-1), alignment


def build_model(attention, order):
    source = keras.Input((LENGTH,), dtype="int32")
    target = keras.Input((LENGTH,), dtype="int32")
    embed = keras.layers.Embedding(SYMBOLS, UNITS)
    values = ka.PositionEncoding()(embed(source))
    cell = keras.layers.GRUCell(UNITS)
    cell = ka.AttentionCell(cell, ATTENTIONS[attention](), **ORDERS[order])
    steps = ka.AttentionDecoder(cell)(embed(target), values)
    read = keras.layers.Concatenate()([steps["output"], steps["context"]])
    outputs = {"logits": keras.layers.Dense(SYMBOLS)(read), "weights": steps["weights"]}
    return keras.Model([source, target], outputs)


def train(model, arrays, target, epochs, batch_size):
    steps = epochs * len(target) // batch_size
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-2, steps)),
        {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        # TensorFlow would take longer to compile than to train.
        jit_compile=keras.backend.backend() == "jax",
    )
    targets = {"logits": target}
    model.fit(arrays, targets, batch_size=batch_size, epochs=epochs, verbose=0)


@pytest.mark.parametrize("case", quick_first(CASES), ids="-".join)
def test_learns_the_alignment(case):
    task, attention, order = case
    source, target, alignment = examples(task, 2304)
    before = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    model = build_model(attention, order)
    test, taught = slice(-256, None), slice(None, -256)

    train(model, [source[taught], before[taught]], target[taught], 12, 64)

    outputs = model.predict([source[test], before[test]], verbose=0)
    right = outputs["weights"].argmax(-1) == alignment[test]
    assert right.mean() >= 0.99
