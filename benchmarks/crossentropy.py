"""Cross-entropy of a large vocabulary: blockwise, and with all logits at once.

Prints the median time of the output layer and its loss, forward and backward, and the
increase of the peak memory of the process. There are 8,000 tokens of 128 features, a
vocabulary of 8,000 and label smoothing 0.1. The candidates are `linear_crossentropy`;
`sequence_crossentropy`, which needs all logits; and the loss of Keras with one-hot
targets, which supports label smoothing.

Every candidate runs in its own process on all cores. The candidates take turns over
several rounds, so that noise affects all of them equally.

    python benchmarks/crossentropy.py --rounds 5 --steps 3
"""

import statistics

import workers

TOKENS, DEPTH, WORDS, SMOOTHING = 8000, 128, 8000, 0.1
CANDIDATES = ("linear_crossentropy", "sequence_crossentropy", "Keras")


def build_step(name):
    """Return the step of a candidate."""
    import keras
    import tensorflow as tf
    from keras import ops

    from keras_attention import linear_crossentropy, sequence_crossentropy

    token_ids = tf.random.uniform((TOKENS,), 0, WORDS, tf.int32)
    tensors = tf.random.normal((TOKENS, DEPTH)), tf.random.normal((WORDS, DEPTH)) / 10
    reference = keras.losses.CategoricalCrossentropy(True, SMOOTHING)

    def loss(inputs, embeddings):
        if name == "linear_crossentropy":
            return linear_crossentropy(
                token_ids, inputs, embeddings, label_smoothing=SMOOTHING
            )
        logits = ops.matmul(inputs, ops.transpose(embeddings))
        if name == "Keras":
            return reference(ops.one_hot(token_ids, WORDS), logits)
        return ops.mean(
            sequence_crossentropy(token_ids, logits, label_smoothing=SMOOTHING)
        )

    @tf.function
    def both(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total = loss(*tensors)
        return total, *tape.gradient(total, tensors)

    def step():
        for output in both(*tensors):
            tf.reshape(output, (-1,))[:1].numpy()

    return step


def main():
    parser = workers.command_line(__doc__)
    arguments = workers.parse(parser, build_step, rounds=5, steps=3)
    print(f"{TOKENS} tokens, depth {DEPTH}, {WORDS} words, {workers.CORES} cores\n")
    print("| loss | time | time / ours | memory |")
    print("|---|---:|---:|---:|")
    results = workers.take_turns(
        __file__, CANDIDATES, arguments.rounds, arguments.steps
    )
    times = {name: statistics.median(x.times) for name, x in results.items()}
    for name, time in times.items():
        ratio = time / times[CANDIDATES[0]]
        memory = f"{results[name].memory / 2**20:.0f} MiB"
        print(f"| {name} | {1000 * time:.0f} ms | {ratio:.2f} | {memory} |")


if __name__ == "__main__":
    main()
