"""Bidirectional recurrent encoders, next to those of Keras.

Prints, for every kind of cell, the median time of a forward and backward pass over 128
sentences of up to 24 words, with inputs of 256 and cells of 320 units. The candidates
are `RecurrentEncoder`, `keras.layers.Bidirectional` around `keras.layers.RNN`, and
their matrix products alone. The gradients are those of the inputs and of all weights.

Every candidate runs in its own process on all cores. The candidates of a cell take
turns over several rounds, so that noise affects all of them equally.

    python benchmarks/encoder.py --rounds 9 --steps 3
    python benchmarks/encoder.py "normalised GRU" --mode XLA
"""

import statistics

import numpy as np
import workers

BATCH, STEPS, DEPTH, UNITS = 128, 24, 256, 320
GATES = {"GRU": 3, "LSTM": 4, "normalised GRU": 3, "normalised LSTM": 4}
OURS, PEER, PRODUCTS = "ours", "peer", "products"
MODES = ("graph", "XLA")


def build_step(name):
    """Return the step of a candidate such as `"GRU|ours|graph"`."""
    import tensorflow as tf

    case, whose, mode = name.split("|")
    if whose == PRODUCTS:
        run = tf.function(matrix_products(GATES[case] * UNITS))
    else:
        run = tf.function(passes(case, whose), jit_compile=mode == "XLA")

    def step():
        for output in run():
            output[..., :1].numpy()

    return step


def passes(case, whose):
    """Return the function that runs an encoder forward and backward."""
    import keras
    import tensorflow as tf

    from keras_attention import LayerNormGRUCell, LayerNormLSTMCell, RecurrentEncoder

    make_cell = {
        "GRU": keras.layers.GRUCell,
        "LSTM": keras.layers.LSTMCell,
        "normalised GRU": LayerNormGRUCell,
        "normalised LSTM": LayerNormLSTMCell,
    }[case]
    cells = make_cell(UNITS), make_cell(UNITS)
    if whose == OURS:
        encode = RecurrentEncoder(*cells)
    else:
        directions = [
            keras.layers.RNN(cell, return_sequences=True, go_backwards=backwards)
            for cell, backwards in zip(cells, (False, True), strict=True)
        ]
        encode = keras.layers.Bidirectional(directions[0], backward_layer=directions[1])
    inputs = tf.random.normal((BATCH, STEPS, DEPTH))
    upstream = tf.random.normal((BATCH, STEPS, 2 * UNITS))
    lengths = np.random.default_rng(0).integers(STEPS // 2, STEPS + 1, BATCH)
    mask = tf.sequence_mask(lengths, STEPS)
    encode(inputs[:, :1])
    variables = [variable.value for variable in encode.trainable_variables]

    def both():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = encode(inputs, mask=mask)
        return tape.gradient(outputs, [inputs, *variables], upstream)

    return both


def matrix_products(width):
    """Return the matrix products of `passes`, kernel gradients after the loop."""
    import tensorflow as tf

    rows = BATCH * STEPS
    # States and sums keep their size from step to step.
    scale = {"recurrent": UNITS**-0.5, "transposed": width**-0.5}
    # Tensors of their own for each direction: equal products would be computed once.
    directions = [
        {
            name: tf.random.normal(shape, stddev=scale.get(name, 1))
            for name, shape in {
                "inputs": (rows, DEPTH),
                "kernel": (DEPTH, width),
                "states": (rows, UNITS),
                "recurrent": (UNITS, width),
                "transposed": (width, UNITS),
                "sums": (rows, width),
            }.items()
        }
        for _ in range(2)
    ]

    def run():
        results = []
        for x in directions:
            results.append(tf.matmul(x["inputs"], x["kernel"]))
            results.append(tf.matmul(x["sums"], x["kernel"], transpose_b=True))
            results.append(tf.matmul(x["inputs"], x["sums"], transpose_a=True))
            results.append(tf.matmul(x["states"], x["sums"], transpose_a=True))

            def step(t, state, sums, x=x):
                products = tf.matmul(state, x["recurrent"])
                return t + 1, tf.matmul(sums, x["transposed"]), products

            first = x["states"][:BATCH], x["sums"][:BATCH]
            results += tf.while_loop(lambda t, *_: t < STEPS, step, (0, *first))[1:]
        return results

    return run


def report(case, mode, rounds, steps):
    names = [f"{case}|{whose}|{mode}" for whose in (OURS, PEER, PRODUCTS)]
    results = workers.take_turns(__file__, names, rounds, steps)
    times = [1000 * statistics.median(results[name].times) for name in names]
    cells = [case, mode, *(f"{time:.0f} ms" for time in times)]
    cells += [f"{times[1] / times[0]:.2f}", f"{times[0] / times[2]:.2f}"]
    print(f"| {' | '.join(cells)} |", flush=True)


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("--mode", choices=MODES, default=MODES[0])
    arguments = workers.parse(parser, build_step, rounds=9, steps=3, cases=GATES)
    sizes = f"batch {BATCH}, {STEPS} steps, depth {DEPTH}, 2 x {UNITS} units"
    print(f"{sizes}, float32, {workers.CORES} cores; products as a graph\n")
    print("| cell | mode | ours | peer | products | peer / ours | ours / products |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for case in arguments.cases:
        report(case, arguments.mode, arguments.rounds, arguments.steps)


if __name__ == "__main__":
    main()
