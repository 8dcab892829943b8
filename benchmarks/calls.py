"""Functions of this project that one call runs, and the files that they stand in.

A reader who follows a call meets these functions in this order. Every layer is built,
and called eagerly; the commands of the programs run on LiteRT. For each call, the table
has the number of functions that run, of the files that they stand in, and of the
changes from one file to another.

`--time` prints the eager time beside the layer of Keras that computes the same: the
fastest of many rounds in which both are measured in turn.

Run from the repository root:

    python benchmarks/calls.py [--list] [--time]
"""

import argparse
import contextlib
import functools
import importlib
import io
import itertools
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np

import keras_attention
import keras_attention_apps

FOLDERS = [
    Path(package.__file__).resolve().parent
    for package in (keras_attention, keras_attention_apps)
]
PHOTO = Path(__file__).resolve().parents[1] / "docs" / "photographer.jpg"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="Print every function.")
    parser.add_argument("--time", action="store_true", help="Measure eager times, too.")
    arguments = parser.parse_args()
    for name, make in CALLS.items():
        calls = recorded(make())
        print(f"{name}: {' / '.join(map(str, counts(calls)))}")
        for file, function in calls if arguments.list else ():
            print(f"    {file}: {function}")
    for name, pair in PAIRS.items() if arguments.time else ():
        ours, keras_own = fastest(*pair())
        ratio = ours / keras_own
        print(f"{name}: {ours:.0f} and {keras_own:.0f} us, {ratio:.2f} times")


def counts(calls):
    """Return the numbers of calls, of files, and of changes of file."""
    files = [file for file, _ in calls]
    changes = sum(file != last for last, file in itertools.pairwise(files))
    return len(calls), len(set(files)), changes


def recorded(call):
    """Return pairs of file and function, in the order in which they are called."""
    calls = []

    def record(frame, event, _):
        # Imports and the methods of dataclasses are nothing to read.
        function, file = frame.f_code.co_qualname, frame.f_code.co_filename
        if event != "call" or function == "<module>" or file.startswith("<"):
            return
        file = Path(os.path.realpath(file))
        for folder in FOLDERS:
            if file.is_relative_to(folder):
                calls.append((str(file.relative_to(folder.parent)), function))

    # The first call builds the layer, or loads what stays loaded.
    call()
    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


def fastest(*calls, rounds=60, repeats=20):
    """Return the processor time of each call in microseconds, in the fastest round."""
    times = [[] for _ in calls]
    for _ in range(rounds):
        for call, call_times in zip(calls, times, strict=True):
            start = time.process_time()
            for _ in range(repeats):
                call()
            call_times.append((time.process_time() - start) / repeats * 1e6)
    return map(min, times)


def inputs():
    return np.ones((2, 3, 16), "float32"), np.ones((2, 5, 16), "float32")


def called(layer, **arguments):
    query, value = inputs()
    return lambda: layer(query, value, **arguments)


def additive():
    return called(keras_attention.AdditiveAttention(16))


def additive_with_mask():
    mask = np.ones((2, 5), "bool")
    return called(keras_attention.AdditiveAttention(16), value_mask=mask)


def dot():
    return called(keras_attention.LuongAttention("dot"))


def self_attention():
    layer = keras_attention.SelfAttention(2, 8)
    sequence, _ = inputs()
    return lambda: layer(sequence)


def decoder():
    attention = keras_attention.AdditiveAttention(16)
    cell = keras_attention.AttentionCell(keras.layers.LSTMCell(13), attention)
    layer = keras_attention.AttentionDecoder(cell)
    words, (_, value) = np.ones((2, 4, 7), "float32"), inputs()
    return lambda: layer(words, value)


def decoder_step():
    attention = keras_attention.AdditiveAttention(16)
    cell = keras_attention.AttentionCell(keras.layers.LSTMCell(13), attention)
    _, value = inputs()
    words, state = np.ones((2, 7), "float32"), [np.zeros((2, 13), "float32")] * 2
    keras_attention.AttentionDecoder(cell)(words[:, None], value)
    memory = attention.memory(value)
    state = cell.complete_state({"cell": state}, memory)
    return lambda: cell(words, state, memory)


def command(program, *arguments):
    """Return a function that runs a command of a program, and prints nothing."""
    module = importlib.import_module(f"keras_attention_apps.{program}.main")

    def call():
        with contextlib.redirect_stdout(io.StringIO()):
            assert module.main([*map(str, arguments)]) == 0

    return call


def dot_pair():
    query, value = map(keras.ops.convert_to_tensor, inputs())
    ours, keras_own = keras_attention.LuongAttention("dot"), keras.layers.Attention()
    return lambda: ours(query, value), lambda: keras_own([query, value])


def additive_pair():
    query, value = map(keras.ops.convert_to_tensor, inputs())
    ours = keras_attention.AdditiveAttention(16)
    keras_own = keras.layers.AdditiveAttention()
    of_query, of_key = (keras.layers.Dense(16, use_bias=False) for _ in range(2))
    return (
        lambda: ours(query, value),
        lambda: keras_own([of_query(query), value, of_key(value)]),
    )


CALLS = {
    "additive": additive,
    "additive, value mask": additive_with_mask,
    "dot": dot,
    "self-attention": self_attention,
    "decoder step": decoder_step,
    "decoder, 4 steps": decoder,
}
CALLS |= {
    "captioner caption PHOTO": functools.partial(
        command, "captioner", "caption", PHOTO
    ),
    "nmt translate SENTENCE": functools.partial(
        command, "nmt", "translate", "A dog runs."
    ),
}
PAIRS = {"dot beside Keras": dot_pair, "additive beside Keras": additive_pair}

if __name__ == "__main__":
    main()
