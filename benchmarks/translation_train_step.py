"""One training step of a translator, next to PyTorch and to its matrix products.

Prints the median time of a step on 64 pairs of 60 source and 60 target words. The model
has embeddings of 256, a bidirectional GRU of 256 units, a GRU of 256 with additive
attention of 256, a readout of 256 and 10,000 words. The candidates:

- ours: Keras layers around `RecurrentEncoder` and `AttentionDecoder`, Adam with
  gradient clipping, as a graph, under XLA and on JAX;
- the peer: the same model in PyTorch, with PyTorch's own bidirectional GRU and a loop
  in Python over the steps of the decoder; the keys are projected once;
- the matrix products of the forward and backward pass alone.

Every candidate runs in its own process on all cores. The candidates take turns over
several rounds, so that noise affects all of them equally.

    python benchmarks/translation_train_step.py --rounds 5 --steps 2
"""

import caption_train_step
import numpy as np

BATCH, SOURCE, TARGET = 64, 60, 60
EMBEDDING_UNITS, UNITS, ATTENTION_UNITS, READOUT = 256, 256, 256, 256
VOCABULARY = 10_000


def make_batch():
    """Return source words `(BATCH, SOURCE)`, target words `(BATCH, TARGET + 1)`."""
    random = np.random.default_rng(0)
    return (
        random.integers(4, VOCABULARY, (BATCH, SOURCE)),
        random.integers(4, VOCABULARY, (BATCH, TARGET + 1)),
    )


def build_model():
    import keras

    from keras_attention import (
        AdditiveAttention,
        AttentionCell,
        AttentionDecoder,
        RecurrentEncoder,
    )

    source = keras.Input((SOURCE,), dtype="int32")
    target = keras.Input((TARGET,), dtype="int32")
    embedded = keras.layers.Embedding(VOCABULARY, EMBEDDING_UNITS)(source)
    cells = keras.layers.GRUCell(UNITS), keras.layers.GRUCell(UNITS)
    annotations = RecurrentEncoder(*cells)(embedded)
    first = keras.layers.Dense(UNITS, "tanh")(annotations[:, 0, UNITS:])
    words = keras.layers.Embedding(VOCABULARY, EMBEDDING_UNITS)(target)
    cell = AttentionCell(
        keras.layers.GRUCell(UNITS), AdditiveAttention(ATTENTION_UNITS)
    )
    steps = AttentionDecoder(cell)(words, annotations, {"cell": [first]})
    read = keras.layers.Concatenate()([steps["output"], steps["context"], words])
    hidden = keras.layers.Dense(READOUT, "tanh")(read)
    return keras.Model([source, target], keras.layers.Dense(VOCABULARY)(hidden))


def our_step(jit_compile):
    import keras
    from keras import ops

    from keras_attention import SequenceCrossentropy

    model = build_model()
    model.compile(
        keras.optimizers.Adam(4e-4, global_clipnorm=1.0),
        SequenceCrossentropy(),
        jit_compile=jit_compile,
    )
    source, target = (ops.convert_to_tensor(x, dtype="int32") for x in make_batch())
    return lambda: model.train_on_batch([source, target[:, :-1]], target[:, 1:])


def peer_step():
    import torch
    import workers
    from torch import nn

    torch.set_num_threads(workers.CORES)

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.source = nn.Embedding(VOCABULARY, EMBEDDING_UNITS)
            self.target = nn.Embedding(VOCABULARY, EMBEDDING_UNITS)
            self.encoder = nn.GRU(
                EMBEDDING_UNITS, UNITS, batch_first=True, bidirectional=True
            )
            self.bridge = nn.Linear(UNITS, UNITS)
            self.key = nn.Linear(2 * UNITS, ATTENTION_UNITS, bias=False)
            self.query = nn.Linear(UNITS, ATTENTION_UNITS, bias=False)
            self.energy = nn.Linear(ATTENTION_UNITS, 1, bias=False)
            self.cell = nn.GRUCell(EMBEDDING_UNITS + 2 * UNITS, UNITS)
            self.hidden = nn.Linear(3 * UNITS + EMBEDDING_UNITS, READOUT)
            self.readout = nn.Linear(READOUT, VOCABULARY)

        def forward(self, source, target):
            annotations, _ = self.encoder(self.source(source))
            state = torch.tanh(self.bridge(annotations[:, 0, UNITS:]))
            keys, words, read = self.key(annotations), self.target(target), []
            for t in range(target.shape[1]):
                hidden = torch.tanh(keys + self.query(state).unsqueeze(1))
                weights = torch.softmax(self.energy(hidden).squeeze(2), dim=1)
                context = torch.bmm(weights.unsqueeze(1), annotations).squeeze(1)
                state = self.cell(torch.cat([words[:, t], context], dim=1), state)
                read.append(torch.cat([state, context, words[:, t]], dim=1))
            return self.readout(torch.tanh(self.hidden(torch.stack(read, dim=1))))

    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4)
    crossentropy = nn.CrossEntropyLoss()
    source, target = (torch.tensor(x) for x in make_batch())

    def step():
        logits = model(source, target[:, :-1])
        loss = crossentropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def matrix_products():
    """Return the products of our step; see `caption_train_step.layer_products`."""
    layer = caption_train_step.layer_products
    rows = BATCH * TARGET
    gates, context = 3 * UNITS, 2 * UNITS
    return [
        # The encoder: inputs at once, states in the loop, both directions.
        *layer(BATCH * SOURCE, EMBEDDING_UNITS, gates, times=2),
        *layer(BATCH, UNITS, gates, times=2 * SOURCE),
        *layer(BATCH, UNITS, UNITS),
        *layer(BATCH * SOURCE, context, ATTENTION_UNITS),
        # The decoder's loop: query, scores, context and its weights' gradient, GRU.
        *layer(BATCH, UNITS, ATTENTION_UNITS, times=TARGET),
        *layer(BATCH * SOURCE, ATTENTION_UNITS, 1, times=TARGET),
        ((BATCH, 1, SOURCE), (BATCH, SOURCE, context), TARGET),
        ((BATCH, 1, context), (BATCH, context, SOURCE), TARGET),
        *layer(BATCH, EMBEDDING_UNITS + context, gates, times=TARGET),
        *layer(BATCH, UNITS, gates, times=TARGET),
        # The readout, for all steps at once.
        *layer(rows, UNITS + context + EMBEDDING_UNITS, READOUT),
        *layer(rows, READOUT, VOCABULARY),
    ]


if __name__ == "__main__":
    caption_train_step.main(
        __doc__,
        __file__,
        our_step,
        peer_step,
        f"{BATCH} pairs of {SOURCE} and {TARGET} words",
        matrix_products(),
    )
