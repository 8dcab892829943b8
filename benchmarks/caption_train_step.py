"""One training step of the captioner, next to PyTorch and to its matrix products.

Prints the median time of a step on 64 captions of 22 words over 49 regions of depth
1,280, with an LSTM of 512 units, embeddings of 300, an attention of 512 and 2,539
words. The features are given, so the CNN does not run. The candidates:

- ours: `ShowAttendTell` without projection of the regions, as in the paper, compiled as
  in the training (AdamW, gradient clipping, EMA, label smoothing), as a graph, under
  XLA and on JAX;
- the peer: the same step in PyTorch, written as in the usual tutorials: a loop in
  Python that projects all regions and applies the output layer at every step;
- the matrix products of our forward and backward pass alone, in sequence, none with a
  transposed operand (which can be slower).

Every candidate runs in its own process on all cores. The candidates take turns over
several rounds, so that noise affects all of them equally.

    python benchmarks/caption_train_step.py --rounds 7 --steps 5
"""

import importlib.util
import os
import statistics
from pathlib import Path

import numpy as np
import workers

BATCH, REGIONS, DEPTH = 64, 49, 1280
WORDS = 22
STEPS = WORDS + 1  # the start token and each word predict the next token
UNITS, EMBEDDING_UNITS, ATTENTION_UNITS = 512, 300, 512
VOCABULARY = 2539
DROPOUT = 0.5


def make_batch():
    """Return features `(BATCH, REGIONS, DEPTH)` and captions `(BATCH, STEPS + 1)`."""
    random = np.random.default_rng(0)
    features = random.random((BATCH, REGIONS, DEPTH), dtype="float32")
    captions = random.integers(4, VOCABULARY, (BATCH, STEPS + 1))
    return features, captions


def our_step(jit_compile):
    """Return the step of `captioner train` with the CNN frozen."""
    import keras
    from keras import ops

    from keras_attention_apps.captioner.config import DEFAULTS, ModelConfig, TrainConfig
    from keras_attention_apps.captioner.network.networks import ShowAttendTell

    training = TrainConfig(data=(), output=Path())
    model = ModelConfig(
        region_units=0,
        embedding_units=EMBEDDING_UNITS,
        units=UNITS,
        attention_units=ATTENTION_UNITS,
        dropout=DROPOUT,
    )
    network = ShowAttendTell(
        model,
        VOCABULARY,
        label_smoothing=training.label_smoothing,
        doubly_stochastic=training.doubly_stochastic,
    )
    network.build()
    network.backbone.trainable = False
    network.compile(
        optimizer=keras.optimizers.AdamW(
            DEFAULTS["learning_rate"],
            weight_decay=training.weight_decay,
            global_clipnorm=training.clip_norm,
            use_ema=True,
        ),
        jit_compile=jit_compile,
    )
    features, captions = make_batch()
    batch = {
        "features": ops.convert_to_tensor(features),
        "captions": ops.convert_to_tensor(captions[:, None], dtype="int32"),
    }
    return lambda: network.train_on_batch(batch)


def peer_decoder():
    """Return the decoder of the PyTorch tutorials: soft attention with an LSTM cell."""
    import torch
    from torch import nn

    class SoftAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.project_regions = nn.Linear(DEPTH, ATTENTION_UNITS)
            self.project_state = nn.Linear(UNITS, ATTENTION_UNITS)
            self.score = nn.Linear(ATTENTION_UNITS, 1)

        def forward(self, regions, state):
            query = self.project_state(state).unsqueeze(1)
            hidden = torch.relu(self.project_regions(regions) + query)
            weights = torch.softmax(self.score(hidden).squeeze(2), dim=1)
            return (regions * weights.unsqueeze(2)).sum(dim=1), weights

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = SoftAttention()
            self.embedding = nn.Embedding(VOCABULARY, EMBEDDING_UNITS)
            self.cell = nn.LSTMCell(EMBEDDING_UNITS + DEPTH, UNITS)
            self.initial_output = nn.Linear(DEPTH, UNITS)
            self.initial_carry = nn.Linear(DEPTH, UNITS)
            self.gate = nn.Linear(UNITS, DEPTH)
            self.dropout = nn.Dropout(DROPOUT)
            self.readout = nn.Linear(UNITS, VOCABULARY)

        def forward(self, regions, captions, lengths):
            lengths, order = lengths.sort(descending=True)
            regions, captions = regions[order], captions[order]
            embedded = self.embedding(captions)
            mean = regions.mean(dim=1)
            output, carry = self.initial_output(mean), self.initial_carry(mean)
            steps = (lengths - 1).tolist()
            scores = torch.zeros(len(steps), max(steps), VOCABULARY)
            maps = torch.zeros(len(steps), max(steps), regions.shape[1])
            for t in range(max(steps)):
                alive = sum(length > t for length in steps)
                output, carry = output[:alive], carry[:alive]
                context, weights = self.attention(regions[:alive], output)
                context = torch.sigmoid(self.gate(output)) * context
                inputs = torch.cat([embedded[:alive, t], context], dim=1)
                output, carry = self.cell(inputs, (output, carry))
                scores[:alive, t] = self.readout(self.dropout(output))
                maps[:alive, t] = weights
            return scores, captions, steps, maps

    return Decoder()


def peer_step():
    """Return the step of the PyTorch tutorials, with `peer_decoder`."""
    import torch
    from torch import nn
    from torch.nn.utils.rnn import pack_padded_sequence

    torch.set_num_threads(workers.CORES)
    decoder = peer_decoder()
    optimizer = torch.optim.Adam(decoder.parameters(), lr=4e-4)
    crossentropy = nn.CrossEntropyLoss()
    features, captions = (torch.tensor(x) for x in make_batch())
    lengths = torch.full((BATCH,), STEPS + 1)

    def step():
        scores, ordered, steps, maps = decoder(features, captions, lengths)
        predicted = pack_padded_sequence(scores, steps, batch_first=True).data
        targets = pack_padded_sequence(ordered[:, 1:], steps, batch_first=True).data
        loss = crossentropy(predicted, targets)
        loss = loss + ((1 - maps.sum(dim=1)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in decoder.parameters():
            parameter.grad.clamp_(-5, 5)
        optimizer.step()
        return loss.item()

    return step


def layer_products(rows, inputs, outputs, times=1, from_data=False):
    """Return the matrix products of a layer on rows `(rows, inputs)`.

    They compute the output, the gradient of the kernel and, unless the inputs are data,
    the gradient of the inputs.
    """
    products = [((rows, inputs), (inputs, outputs), times)]
    products += [((inputs, rows), (rows, outputs), times)]
    if not from_data:
        products += [((rows, outputs), (outputs, inputs), times)]
    return products


def matrix_products():
    """Return the products of our step: two shapes, and how often each is computed."""
    layer = layer_products
    rows = BATCH * STEPS
    return [
        *layer(BATCH * REGIONS, DEPTH, ATTENTION_UNITS, from_data=True),  # keys
        *layer(BATCH, DEPTH, UNITS, times=2, from_data=True),  # initial state
        # The loop: query, scores, context and its weights' gradient, gate, LSTM.
        *layer(BATCH, UNITS, ATTENTION_UNITS, times=STEPS),
        *layer(BATCH * REGIONS, ATTENTION_UNITS, 1, times=STEPS),
        ((BATCH, 1, REGIONS), (BATCH, REGIONS, DEPTH), STEPS),
        ((BATCH, 1, DEPTH), (BATCH, DEPTH, REGIONS), STEPS),
        *layer(BATCH, UNITS, 1, times=STEPS),
        *layer(BATCH, EMBEDDING_UNITS + DEPTH, 4 * UNITS, times=STEPS),
        *layer(BATCH, UNITS, 4 * UNITS, times=STEPS),
        # The readout, for all steps at once.
        *layer(rows, UNITS, EMBEDDING_UNITS),
        *layer(rows, DEPTH, EMBEDDING_UNITS),
        *layer(rows, EMBEDDING_UNITS, VOCABULARY),
    ]


def products_step(products):
    import tensorflow as tf

    # Run eagerly: a graph would compute equal products only once.
    operands = [
        (tf.random.normal(first), tf.random.normal(second), times)
        for first, second, times in products
    ]

    def step():
        for first, second, times in operands:
            for _ in range(times):
                tf.matmul(first, second)

    return step


ON_JAX, PEER, PRODUCTS = "ours, JAX", "PyTorch", "matrix products"


def all_candidates(our_step, peer_step, products):
    """Return the functions that build the step of each candidate."""

    def on_jax():
        os.environ["KERAS_BACKEND"] = "jax"
        return our_step(jit_compile=True)

    return {
        "ours, graph": lambda: our_step(jit_compile=False),
        "ours, XLA": lambda: our_step(jit_compile=True),
        ON_JAX: on_jax,
        PEER: peer_step,
        PRODUCTS: lambda: products_step(products),
    }


def report(results, sizes, products, rounds, steps):
    medians = {name: statistics.median(x.times) for name, x in results.items()}
    operations = sum(
        2 * n * np.prod(first) * second[-1] for first, second, n in products
    )
    print(
        f"{sizes}; {operations / 1e9:.1f} GFLOP in matrix products a step; "
        f"{workers.CORES} cores; medians of {rounds} rounds of {steps} steps\n"
    )
    print("| step | first step | time | peer / time | time / products |")
    print("|---|---:|---:|---:|---:|")
    for name, median in medians.items():
        to_peer = f"{medians[PEER] / median:.2f}" if PEER in medians else ""
        print(
            f"| {name} | {results[name].first:.1f} s | {1000 * median:.0f} ms "
            f"| {to_peer} | {median / medians[PRODUCTS]:.2f} |"
        )
    print("\nThe first step includes tracing and compiling.")


def main(description, script, our_step, peer_step, sizes, products):
    candidates = all_candidates(our_step, peer_step, products)
    arguments = workers.parse(
        workers.command_line(description),
        lambda name: candidates[name](),
        rounds=7,
        steps=5,
    )
    names = list(candidates)
    for name, package in ((PEER, "torch"), (ON_JAX, "jax")):
        if importlib.util.find_spec(package) is None:
            print(f"{name} is left out: pip install {package}\n")
            names.remove(name)
    results = workers.take_turns(script, names, arguments.rounds, arguments.steps)
    report(results, sizes, products, arguments.rounds, arguments.steps)


if __name__ == "__main__":
    main(
        __doc__,
        __file__,
        our_step,
        peer_step,
        f"{BATCH} captions of {WORDS} words, {REGIONS} regions of {DEPTH}",
        matrix_products(),
    )
