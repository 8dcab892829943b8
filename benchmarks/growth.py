"""Growth of time and memory with the length, the batch and the vocabulary.

Every case has a size that it starts from, and is timed for 1, 2, 4, 8 and 16 times that
size, in processes that take turns. The table has the time of a step and the increase of
the peak memory with the first step, which also traces the graph. For both it has the
exponent p of the least-squares fit of `a + b * size ** p`: 1 is linear growth, 2 is
quadratic. The overhead `a` drops out, since the fit is to the increases from each size
to the next. The steps are those of graphs: forward and backward pass of layers and
losses, and whole searches.

    python benchmarks/growth.py
    python benchmarks/growth.py "self-attention, length" --rounds 5
"""

import statistics

import numpy as np
import workers

FACTORS = 1, 2, 4, 8, 16
DEPTH, WINDOW, WORDS, BEAM_SIZE = 64, 128, 1000, 5
# The layer or search of a case, the size that grows, and the sizes that it starts from.
CASES = {
    "additive attention, length": ("additive", "length", (1, 128)),
    "additive attention, batch": ("additive", "batch", (1, 256)),
    "self-attention, length": ("full", "length", (1, 256)),
    "self-attention, batch": ("full", "batch", (1, 512)),
    "self-attention with a window, length": ("window", "length", (1, 1024)),
    "self-attention with a window, batch": ("window", "batch", (1, 1024)),
    "beam search, length": ("search", "length", (4, 16, WORDS)),
    "beam search, batch": ("search", "batch", (4, 16, WORDS)),
    "beam search, vocabulary": ("search", "vocabulary", (4, 16, WORDS)),
    "cross-entropy, length": ("crossentropy", "length", (1, 512, WORDS)),
    "cross-entropy, batch": ("crossentropy", "batch", (1, 512, WORDS)),
    "cross-entropy, vocabulary": ("crossentropy", "vocabulary", (1, 512, WORDS)),
}
AXES = "batch", "length", "vocabulary"


def build_step(name):
    """Return the step of a candidate such as `"self-attention, length|4"`."""
    import tensorflow as tf

    case, factor = name.split("|")
    kind, axis, sizes = CASES[case]
    sizes = list(sizes)
    sizes[AXES.index(axis)] *= int(factor)
    build = {"search": search, "crossentropy": crossentropy}.get(kind)
    run = build(*sizes) if build else attention(kind, *sizes)

    def step():
        for output in tf.nest.flatten(run()):
            tf.reshape(output, (-1,))[:1].numpy()

    return step


def with_gradients(function, tensors):
    """Return a graph of the result of a function, and its gradients."""
    import tensorflow as tf

    @tf.function
    def both():
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = function(*tensors)
        return outputs, tape.gradient(outputs, tensors)

    return both


def attention(kind, batch, length):
    """Return the step of an attention layer, from a sequence to itself."""
    import tensorflow as tf

    from keras_attention import AdditiveAttention, SelfAttention

    if kind == "additive":
        additive = AdditiveAttention(DEPTH)

        def layer(x):
            return additive(x, x)
    else:
        window = WINDOW if kind == "window" else None
        layer = SelfAttention(1, DEPTH, causal=True, window_size=window)
    x = tf.random.normal((batch, length, DEPTH))
    layer(x[:, :1])
    return with_gradients(layer, [x])


def crossentropy(batch, length, words):
    """Return the step of the output layer and its loss."""
    import tensorflow as tf

    from keras_attention import linear_crossentropy

    targets = tf.random.uniform((batch, length), 0, words, tf.int32)
    inputs = tf.random.normal((batch, length, DEPTH))
    embeddings = tf.random.normal((words, DEPTH)) / 10
    return with_gradients(
        lambda *tensors: linear_crossentropy(targets, *tensors), [inputs, embeddings]
    )


def search(batch, length, words):
    """Return a beam search with an `AttentionCell`, whose hypotheses never end."""
    import tensorflow as tf
    from keras import layers, ops

    from keras_attention import AdditiveAttention, AttentionCell, Ban, beam_search

    embedding = layers.ReversibleEmbedding(words, DEPTH)
    cell = AttentionCell(layers.GRUCell(DEPTH), AdditiveAttention(DEPTH))
    value = tf.random.normal((batch, 16, DEPTH))
    cell(
        embedding(tf.zeros((1,), tf.int32)),
        cell.get_initial_state(batch_size=1),
        cell.attention.memory(value[:1]),
    )

    @tf.function
    def run():
        memory = cell.attention.memory(value)

        def step(token_ids, state):
            outputs, state = cell(embedding(token_ids), state, memory)
            logits = embedding(outputs["output"], reverse=True)
            return ops.log_softmax(logits), state, outputs["weights"]

        return beam_search(
            step,
            cell.get_initial_state(batch_size=batch),
            start=0,
            end=1,
            max_length=length,
            beam_size=BEAM_SIZE,
            constraints=[Ban([1])],
        )

    return run


def exponent(values):
    """Return the exponent of the growth of values, without their constant overhead.

    It is fitted to the increases from each size to the next, and not a number if a
    value decreases.
    """
    increases = np.diff(values)
    if min(increases) <= 0:
        return float("nan")
    return np.polyfit(np.log(FACTORS[1:]), np.log(increases), 1)[0]


def main():
    parser = workers.command_line(__doc__)
    arguments = workers.parse(parser, build_step, rounds=3, steps=1, cases=[*CASES])
    print(f"{workers.CORES} cores; factors {', '.join(map(str, FACTORS))}\n")
    print("| case | ms | exponent | MiB | exponent |")
    print("|---|---|---:|---|---:|")
    for case in arguments.cases:
        names = [f"{case}|{factor}" for factor in FACTORS]
        results = workers.take_turns(__file__, names, arguments.rounds, arguments.steps)
        times = [1000 * statistics.median(results[name].times) for name in names]
        memory = [results[name].memory / 2**20 for name in names]
        cells = [case]
        for values, digits in (times, 1), (memory, 0):
            cells.append(", ".join(f"{x:,.{digits}f}" for x in values))
            cells.append(f"{exponent(values):.2f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
