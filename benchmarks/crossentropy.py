"""The cross-entropy of a large vocabulary, in blocks and of all logits.

Prints the median time of the output layer and its loss, forward and backward, and by
how much the steps raise the largest memory of the process, for 8,000 tokens of 128
features and a vocabulary of 8,000, label smoothing 0.1: `linear_crossentropy`; the same
loss of all logits, by `sequence_crossentropy`; and the loss of Keras for one-hot
targets, which is the one that smooths. Every candidate runs in a process of its own on
all cores; they take turns over several rounds, so that noise meets all of them.

    python benchmarks/crossentropy.py --rounds 5 --steps 3
"""

import statistics

import workers

TOKENS, DEPTH, WORDS, SMOOTHING = 8000, 128, 8000, 0.1
CANDIDATES = ("linear_crossentropy", "sequence_crossentropy", "Keras")


def build_step(name):
    """The step of a candidate."""
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
        for found in both(*tensors):
            tf.reshape(found, (-1,))[:1].numpy()

    return step


def main():
    parser = workers.command_line(__doc__)
    arguments = workers.parse(parser, build_step, rounds=5, steps=3)
    print(f"{TOKENS} tokens, depth {DEPTH}, {WORDS} words, {workers.CORES} cores\n")
    print("| loss | time | time / ours | memory |")
    print("|---|---:|---:|---:|")
    found = workers.take_turns(__file__, CANDIDATES, arguments.rounds, arguments.steps)
    times = {name: statistics.median(x.times) for name, x in found.items()}
    for name, time in times.items():
        ratio = time / times[CANDIDATES[0]]
        memory = f"{found[name].memory / 2**20:.0f} MiB"
        print(f"| {name} | {1000 * time:.0f} ms | {ratio:.2f} | {memory} |")


if __name__ == "__main__":
    main()
