"""Beam search over a long list of sentences: in batches, and through a queue.

Prints the median time of a beam search (beam width 5, length penalty 0.7) over 1,024
sentences, 64 at a time, with a GRU of 256 units that attends to 20 positions, and
10,000 words. The length of each sentence is drawn in advance (mean 13 words, standard
deviation 4, at most 40): END is improbable before that length, and probable from there
on. Both candidates are compiled once, as graphs, and have the same results:

- batches: `beam_search`, which ends when the last row of a batch is done;
- queue: `BeamSearchQueue`, which replaces finished rows by the next ones.

    python benchmarks/search.py --rounds 5
"""

import statistics

import numpy as np
import workers

SENTENCES, BATCH, POSITIONS = 1024, 64, 20
UNITS, VOCABULARY = 256, 10_000
START, END = 1, 2
OPTIONS = {
    "start": START,
    "end": END,
    "max_length": 40,
    "beam_size": 5,
    "length_penalty": 0.7,
}
CANDIDATES = "batches", "queue"
# Logits as sharp as those of a trained model.
SHARPNESS = 120.0


def make_model():
    """Return `make_step(memory)`, and the memory and the state of all sentences."""
    import keras
    from keras import ops

    from keras_attention import AdditiveAttention, AttentionCell

    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    embed = keras.layers.Embedding(VOCABULARY, UNITS)
    classify = keras.layers.Dense(VOCABULARY)
    cell = AttentionCell(keras.layers.GRUCell(UNITS), AdditiveAttention(UNITS))
    source = random.normal(size=(SENTENCES, POSITIONS, UNITS)).astype("float32")
    lengths = np.clip(np.round(random.normal(13, 4, SENTENCES)), 2, 40)
    is_end = np.arange(VOCABULARY) == END

    def make_step(memory):
        def step(token_ids, state):
            outputs, cell_state = cell(
                embed(token_ids), state["cell"], memory["attention"]
            )
            logits = SHARPNESS * classify(outputs["output"])
            length = state["length"] + 1
            due = length >= memory["length"][:, None]
            end = ops.max(logits, axis=-1) + ops.where(due, 3.0, -9.0)
            logits = ops.where(is_end, end[..., None], logits)
            state = {"cell": cell_state, "length": length}
            return ops.log_softmax(logits), state, outputs["weights"]

        return step

    memory = {
        "attention": cell.attention.memory(source),
        "length": ops.convert_to_tensor(lengths, dtype="int32"),
    }
    state = {
        "cell": cell.get_initial_state(batch_size=SENTENCES),
        "length": ops.zeros((SENTENCES,), dtype="int32"),
    }
    # Weights are made here, not inside a graph.
    first = keras.tree.map_structure(lambda x: x[:1, None], state)
    make_step(keras.tree.map_structure(lambda x: x[:1], memory))(
        np.full((1, 1), START), first
    )
    return make_step, memory, state


def candidate(name):
    """Return a function that searches the whole list and returns NumPy arrays."""
    import tensorflow as tf
    from keras import ops, tree

    from keras_attention import BeamSearchQueue, beam_search

    make_step, memory, state = make_model()
    if name == "queue":
        queue = BeamSearchQueue(
            make_step, batch_size=BATCH, compiler=tf.function, **OPTIONS
        )
        return lambda: queue(memory, state)

    @tf.function
    def search(memory, state):
        return beam_search(make_step(memory), state, **OPTIONS)

    def batches():
        results = []
        for first in range(0, SENTENCES, BATCH):
            rows = tree.map_structure(
                lambda x, first=first: x[first : first + BATCH], (memory, state)
            )
            results.append(tree.map_structure(ops.convert_to_numpy, search(*rows)))
        return tree.map_structure(lambda *parts: np.concatenate(parts), *results)

    return batches


def main():
    arguments = workers.parse(workers.command_line(__doc__), candidate, rounds=5)
    results = workers.take_turns(__file__, CANDIDATES, arguments.rounds, 1)
    medians = {name: statistics.median(x.times) for name, x in results.items()}
    print(
        f"| {SENTENCES} sentences, medians of {arguments.rounds} | s | batches / time |"
    )
    print("|---|---:|---:|")
    for name, seconds in medians.items():
        print(f"| {name} | {seconds:.2f} | {medians['batches'] / seconds:.2f} |")


if __name__ == "__main__":
    main()
