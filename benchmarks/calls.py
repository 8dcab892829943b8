"""Calls of the library's functions for one call of a layer, and the files they cross.

A reader who follows a call meets these functions in this order. The layer is built and
called eagerly:

- additive: `AdditiveAttention`, from its `__call__` to the context;
- self-attention: `SelfAttention`, from its `__call__` to the output;
- decoder step: one step of an `AttentionCell` with additive attention and an LSTM.

Run from the repository root:

    python benchmarks/calls.py
"""

import os
import sys
from pathlib import Path

import keras
import numpy as np

import keras_attention

FOLDER = Path(keras_attention.__file__).resolve().parent


def main():
    for name, call in (
        ("additive", additive()),
        ("self-attention", self_attention()),
        ("decoder step", decoder_step()),
    ):
        # The first call builds the layer.
        call()
        calls = recorded(call)
        files = list(dict.fromkeys(file for file, _ in calls))
        print(f"{name}: {len(calls)} calls in {len(files)} files")
        for file, function in calls:
            print(f"    {file}: {function}")


def recorded(call):
    """Return pairs of file and function, in the order in which they are called."""
    calls = []

    def record(frame, event, _):
        file, function = frame.f_code.co_filename, frame.f_code.co_qualname
        if event == "call" and Path(os.path.realpath(file)).is_relative_to(FOLDER):
            calls.append((Path(os.path.realpath(file)).relative_to(FOLDER), function))

    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


def additive():
    layer = keras_attention.AdditiveAttention(16)
    query, value = np.ones((2, 3, 7), "float32"), np.ones((2, 5, 11), "float32")
    return lambda: layer(query, value)


def self_attention():
    layer = keras_attention.SelfAttention(2, 8)
    query = np.ones((2, 5, 16), "float32")
    return lambda: layer(query)


def decoder_step():
    attention = keras_attention.AdditiveAttention(16)
    cell = keras_attention.AttentionCell(keras.layers.LSTMCell(13), attention)
    inputs, value = np.ones((2, 7), "float32"), np.ones((2, 5, 11), "float32")
    state = [np.zeros((2, 13), "float32")] * 2
    keras_attention.AttentionDecoder(cell)(inputs[:, None], value)
    memory = attention.memory(value)
    state = cell.complete_state({"cell": state}, memory)
    return lambda: cell(inputs, state, memory)


if __name__ == "__main__":
    main()
