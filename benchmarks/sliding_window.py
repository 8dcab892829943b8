"""Sliding windows, beside full self-attention.

Runs causal self-attention with a sliding window, and the same layer without one, for
each number of positions. Prints the median time of the forward pass and of forward and
backward pass together, and the increase of the peak memory of the process.

Every candidate runs in its own process on all cores, as a graph. The two of a row take
turns over several rounds, so that noise affects both equally. Full attention to 16,384
positions needs 1 GiB for each copy of its weights, hence one head.

    python benchmarks/sliding_window.py --rounds 3 --steps 1
    python benchmarks/sliding_window.py 1024
"""

import statistics

import workers

DEPTH, WINDOW = 64, 128
LENGTHS = ("1024", "16384")
SLIDING, FULL = "sliding", "full"
PASSES = ("forward", "both")


def build_step(name):
    """Return the step of a candidate such as `"1024|sliding|both"`."""
    import tensorflow as tf

    from keras_attention import SelfAttention

    length, which, passes = name.split("|")
    window = WINDOW if which == SLIDING else None
    layer = SelfAttention(1, DEPTH, causal=True, window_size=window)
    x = tf.random.normal((1, int(length), DEPTH))
    layer.build(x.shape)
    variables = [v.value for v in layer.trainable_variables]

    def both(x):
        with tf.GradientTape() as tape:
            outputs = layer(x)
        return tape.gradient(outputs, variables)

    run = tf.function(both if passes == "both" else layer)

    def step():
        for output in tf.nest.flatten(run(x)):
            output[..., :1].numpy()

    return step


def main():
    parser = workers.command_line(__doc__)
    arguments = workers.parse(parser, build_step, rounds=3, steps=1, cases=LENGTHS)
    print(f"depth {DEPTH}, one head, window {WINDOW}, {workers.CORES} cores\n")
    print("| positions | passes | sliding | full | full / sliding | memory | of full |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for length in arguments.cases:
        for passes in PASSES:
            names = [f"{length}|{which}|{passes}" for which in (SLIDING, FULL)]
            rounds, steps = arguments.rounds, arguments.steps
            results = workers.take_turns(__file__, names, rounds, steps)
            times = [1000 * statistics.median(results[name].times) for name in names]
            cells = [length, passes, *(f"{time:.1f} ms" for time in times)]
            cells += [f"{times[1] / times[0]:.1f}"]
            cells += [f"{results[name].memory / 2**20:.0f} MiB" for name in names]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
