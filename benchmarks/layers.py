"""Attention layers, next to their closest peers in Keras.

Runs every layer and its peer on the same tensors: eagerly, as a graph and under XLA,
for two lengths. Prints the median time of the forward pass and of forward and backward
pass together, and the increase of the peak memory of the process (including that of a
compiler). The gradients are those of all inputs and all weights.

Every candidate runs in its own process on all cores. The two of a pair take turns over
several rounds, so that noise affects both equally.

    python benchmarks/layers.py --rounds 5 --steps 3
    python benchmarks/layers.py additive self-attention
"""

import statistics

import workers

BATCH, DEPTH = 8, 256


def additive(queries, positions):
    """Additive attention; the peer has no projections of its own."""
    import keras

    from keras_attention import AdditiveAttention

    ours = AdditiveAttention(DEPTH)
    peer = keras.layers.AdditiveAttention()
    tensors = _tensors(queries, positions)
    return tensors, lambda q, v: ours(q, v), lambda q, v: peer([q, v]), (ours, peer)


def projected(queries, positions):
    """The peer with the two projections that ours has."""
    import keras

    from keras_attention import AdditiveAttention

    ours = AdditiveAttention(DEPTH)
    attend = keras.layers.AdditiveAttention()
    dense = [keras.layers.Dense(DEPTH, use_bias=False) for _ in range(2)]

    def theirs(query, value):
        return attend([dense[0](query), value, dense[1](value)])

    tensors = _tensors(queries, positions)
    return tensors, lambda q, v: ours(q, v), theirs, (ours, attend, *dense)


def dot(queries, positions):
    """Luong's dot score, compared with the dot-product layer of Keras."""
    import keras

    from keras_attention import LuongAttention

    ours, peer = LuongAttention("dot"), keras.layers.Attention()
    tensors = _tensors(queries, positions)
    return tensors, lambda q, v: ours(q, v), lambda q, v: peer([q, v]), (ours, peer)


def self_attention(queries, positions):
    """Eight heads, causal."""
    import keras

    from keras_attention import SelfAttention

    ours = SelfAttention(8, DEPTH // 8, causal=True)
    peer = keras.layers.MultiHeadAttention(8, DEPTH // 8)
    tensors = _tensors(queries, positions)[:1]

    def theirs(x):
        return peer(x, x, use_causal_mask=True)

    return tensors, lambda x: ours(x), theirs, (ours, peer)


def local(queries, positions):
    """Luong's local-p of 21 positions, compared with the same layer on 256 positions.

    The memory is computed beforehand: the projection of the source is not timed.
    """
    import keras

    from keras_attention import LuongAttention

    layer = LuongAttention("general", window="local-p", half_width=10)
    query, value = _tensors(queries, positions)
    short = _tensors(queries, 256)[1]
    layer.build(query.shape, value.shape)

    def look(query, value):
        memory = {"values": value, "keys": value}
        return layer.step(query, memory, return_weights=False)[0]["context"]

    def theirs(query, value):
        return look(query, short)

    return (query, value), look, theirs, (layer, keras.layers.Identity())


CASES = {
    "additive": (additive, (32, 128), (128, 512)),
    "additive, one query": (projected, (1, 49), (1, 512)),
    "dot": (dot, (32, 128), (128, 512)),
    "self-attention": (self_attention, (64, 64), (512, 512)),
    "local-p": (local, (1, 4096), (1, 16384)),
}
# The hidden layer of this one would be 8 GiB: only ours is run.
LARGE = {"additive, large": (additive, (1024, 1024))}
MODES = ("eager", "graph", "XLA")
PASSES = ("forward", "both")
OURS, PEER = "ours", "peer"


def _tensors(queries, positions):
    import tensorflow as tf

    shapes = (BATCH, queries, DEPTH), (BATCH, positions, DEPTH)
    return tuple(tf.random.normal(shape) for shape in shapes)


def build_step(name):
    """Return the step of a candidate such as `"additive|128|512|ours|graph|both"`."""
    import tensorflow as tf

    case, queries, positions, whose, mode, passes = name.split("|")
    queries, positions = int(queries), int(positions)
    make = {**CASES, **LARGE}[case][0]
    tensors, ours, theirs, layers = make(queries, positions)
    look = ours if whose == OURS else theirs
    # Creates the weights, on tensors that are not measured.
    look(*(x[:, :1] for x in tensors) if case != "local-p" else tensors)
    upstream = tf.random.normal((BATCH, queries, DEPTH))
    variables = [v.value for layer in layers for v in layer.trainable_variables]

    def both(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            output = look(*tensors)
        return tape.gradient(output, [*tensors, *variables], upstream)

    run = both if passes == "both" else look
    if mode != "eager":
        run = tf.function(run, jit_compile=mode == "XLA")

    def step():
        for output in tf.nest.flatten(run(*tensors)):
            if output is not None:
                tf.convert_to_tensor(output)[..., :1].numpy()

    return step


def report(case, lengths, rounds, steps):
    only_ours = case in LARGE
    queries, positions = lengths
    for mode in MODES:
        for passes in PASSES:
            names = [
                f"{case}|{queries}|{positions}|{whose}|{mode}|{passes}"
                for whose in ((OURS,) if only_ours else (OURS, PEER))
            ]
            results = workers.take_turns(__file__, names, rounds, steps)
            times = [1000 * statistics.median(results[name].times) for name in names]
            memory = [f"{results[name].memory / 2**20:.0f} MiB" for name in names]
            ratio = "" if only_ours else f"{times[1] / times[0]:.2f}"
            cells = [f"{case}, {queries} x {positions}", mode, passes]
            cells += [f"{time:.1f} ms" for time in times] + [""] * only_ours
            cells += [ratio, *memory, *[""] * only_ours]
            print(f"| {' | '.join(cells)} |", flush=True)


def main():
    known = {**CASES, **LARGE}
    parser = workers.command_line(__doc__)
    arguments = workers.parse(parser, build_step, rounds=5, steps=3, cases=known)
    print(f"batch {BATCH}, depth {DEPTH}, float32, {workers.CORES} cores\n")
    print(
        "| layer | mode | passes | ours | peer | peer / ours | memory | of the peer |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for case in arguments.cases:
        for lengths in known[case][1:]:
            report(case, lengths, arguments.rounds, arguments.steps)


if __name__ == "__main__":
    main()
