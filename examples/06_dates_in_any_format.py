# %% [markdown]
# # Dates in any format: a sequence-to-sequence model
#
# "3rd of May 1999", "May 3, 99", "Mon, 3 May 1999": a model reads a date character by
# character and writes 1999-05-03. We train it with Bahdanau's and with Luong's
# attention, see which characters each digit comes from, and export it to a file that
# runs without Keras.

# %%
import datetime

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from keras import ops

from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    AttentionDecoder,
    LuongAttention,
    RecurrentEncoder,
    attention_heatmap,
    beam_search,
    convert_to_litert,
)

plt.rc("figure", dpi=100)

# %% [markdown]
# ## Dates as people write them
#
# There are ten formats. The years are 1950 to 2049, so that two digits are enough. The
# day comes before the month where both are numbers.


# %%
def ordinal(day):
    suffixes = {1: "st", 2: "nd", 3: "rd"}
    return f"{day}{'th' if 10 < day < 14 else suffixes.get(day % 10, 'th')}"


FORMATS = (
    lambda d: f"{d.day} {d:%B} {d.year}",
    lambda d: f"{ordinal(d.day)} of {d:%B} {d.year}",
    lambda d: f"{d:%B} {d.day}, {d.year}",
    lambda d: f"{d:%B} {ordinal(d.day)}, '{d:%y}",
    lambda d: f"{d:%b} {d.day}, {d:%y}",
    lambda d: f"{d:%a}, {d.day} {d:%b} {d.year}",
    lambda d: f"{d:%d-%b-%y}",
    lambda d: f"{d.day}.{d.month}.{d.year}",
    lambda d: f"{d:%d/%m/%y}",
    lambda d: f"{d:%A}, {d.day} {d:%b} '{d:%y}",
)
FIRST, LAST = datetime.date(1950, 1, 1), datetime.date(2049, 12, 31)
SOURCE_LENGTH, TARGET_LENGTH = 22, 11  # the longest text; the ISO date and its end

PAD, START, END = range(3)
CHARACTERS = " ',-./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
IDS = {character: number for number, character in enumerate(CHARACTERS, start=3)}


def encode(texts, length):
    """Return token ids `(B, length)`, padded with `PAD`."""
    token_ids = np.full((len(texts), length), PAD, "int32")
    for row, text in enumerate(texts):
        token_ids[row, : len(text)] = [IDS[character] for character in text]
    return token_ids


def decode(token_ids):
    """Return the text before the first `END`."""
    tokens = [int(token) for token in token_ids]
    tokens = tokens[: tokens.index(END)] if END in tokens else tokens
    return "".join(CHARACTERS[token - 3] if token > END else "?" for token in tokens)


rng = np.random.default_rng(6)
days = rng.permutation((LAST - FIRST).days + 1)  # every date once
dates = [FIRST + datetime.timedelta(int(day)) for day in days]
texts = [FORMATS[rng.integers(len(FORMATS))](date) for date in dates]
answers = [date.isoformat() for date in dates]
for text, answer in zip(texts[:4], answers[:4], strict=True):
    print(f"{text:34} {answer}")

# %% [markdown]
# The last 500 dates are held out: the model never sees them in any format.

# %%
TRAINING = 8_000
source = encode(texts, SOURCE_LENGTH)
target = encode(answers, TARGET_LENGTH)
target[:, -1] = END
previous = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=START)
held_out = slice(-500, None)

# %% [markdown]
# ## Two models that differ in one line
#
# The encoder reads in both directions, so the **annotation** of a character knows the
# characters around it. The decoder is an RNN cell with attention to the annotations:
#
# - **Bahdanau**: the state before the step is the query, and the context is an input of
#   the cell.
# - **Luong**: the cell runs first, and its new state is the query. The attentional
#   vector, made of context and state, is an input of the next step (input feeding).
#
# `call` runs over whole training sequences. `translate` takes one step at a time, with
# the same weights, in a beam search.

# %%
UNITS, VOCABULARY = 64, len(CHARACTERS) + 3


def make_cell(name):
    cell = keras.layers.GRUCell(UNITS)
    if name == "Bahdanau":
        return AttentionCell(cell, AdditiveAttention(UNITS))
    return AttentionCell(
        cell,
        LuongAttention("general"),
        order="current",
        input_feeding=True,
        attentional_vector=UNITS,
    )


class DateReader(keras.Model):
    def __init__(self, cell):
        super().__init__()
        self.embed = keras.layers.Embedding(VOCABULARY, 32)
        cells = keras.layers.GRUCell(UNITS), keras.layers.GRUCell(UNITS)
        self.encoder = RecurrentEncoder(*cells, return_state=True)
        self.decoder = AttentionDecoder(cell)
        self.classify = keras.layers.Dense(VOCABULARY)

    def encode(self, source):
        """Return the annotations, and the first state of the decoder."""
        annotations, _, backward = self.encoder(self.embed(source), mask=source != PAD)
        return annotations, {"cell": [backward]}

    def call(self, inputs):
        annotations, state = self.encode(inputs["source"])
        steps = self.decoder(
            self.embed(inputs["previous"]),
            annotations,
            state,
            value_mask=inputs["source"] != PAD,
        )
        return self.classify(steps["output"])

    def translate(self, source, beam_size=3):
        """Return the results of a beam search, best hypothesis first."""
        cell = self.decoder.cell
        annotations, state = self.encode(source)
        memory = cell.attention.memory(annotations, value_mask=source != PAD)

        def step(token_ids, state):
            outputs, state = cell(self.embed(token_ids), state, memory)
            log_probs = ops.log_softmax(self.classify(outputs["output"]))
            return log_probs, state, outputs["weights"]

        hypotheses = beam_search(
            step,
            cell.complete_state(state, memory),
            start=START,
            end=END,
            max_length=TARGET_LENGTH,
            beam_size=beam_size,
        )
        return {name: hypotheses[name] for name in ("token_ids", "scores", "weights")}


def train(name, epochs=6, batch=64):
    keras.utils.set_random_seed(6)
    model = DateReader(make_cell(name))
    rate = keras.optimizers.schedules.CosineDecay(5e-3, epochs * TRAINING // batch)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss)
    inputs = {"source": source[:TRAINING], "previous": previous[:TRAINING]}
    model.fit(inputs, target[:TRAINING], batch, epochs, verbose=0)
    return model


models = {name: train(name) for name in ("Bahdanau", "Luong")}

# %% [markdown]
# ## Exact matches on new dates
#
# A date counts only if all ten characters are right.

# %%
exact, hypotheses = {}, {}
for name, model in models.items():
    # Compiled; it also runs eagerly.
    hypotheses[name] = tf.function(model.translate)(tf.constant(source[held_out]))
    hypotheses[name] = {key: value.numpy() for key, value in hypotheses[name].items()}
    written = [decode(best) for best in hypotheses[name]["token_ids"][:, 0]]
    right = np.array(written) == answers[held_out]
    exact[name] = right.mean()
    print(f"{name:9} exact match on held-out dates: {exact[name]:.1%}")
    for number in np.flatnonzero(~right)[:3]:
        text, answer = texts[held_out][number], answers[held_out][number]
        print(f"  {text} is {answer}. Received: {written[number]}")

# %% [markdown]
# ## Where each digit comes from
#
# A row is a character that is written, a column one that is read.


# %%
def alignment(name, number):
    """Return the characters that are read and written, and the weights."""
    text = texts[held_out][number]
    written = decode(hypotheses[name]["token_ids"][number, 0])
    weights = hypotheses[name]["weights"][number, 0, : len(written), : len(text)]
    return text, written, weights


examples = [
    next(number for number, text in enumerate(texts[held_out]) if part in text)
    for part in (" of ", "day, ", "/")
]
figure, axes = plt.subplots(3, 2, figsize=(9, 9), layout="constrained")
for row, number in zip(axes, examples, strict=True):
    for axis, name in zip(row, hypotheses, strict=True):
        text, written, weights = alignment(name, number)
        axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
        axis.set_xticks(range(len(text)), list(text))
        axis.set_yticks(range(len(written)), list(written))
        axis.xaxis.tick_top()
        axis.tick_params(length=0)
        axis.set_xlabel(name)
plt.show()

# %% [markdown]
# The year is written first and read last, so both jump to the end, where its digits
# stand. The number of the month follows from the letters of its name.
#
# `attention_heatmap` draws such a picture in one line.

# %%
text, written, weights = alignment("Luong", examples[0])
attention_heatmap(weights, text, written)

# %% [markdown]
# ## A file that runs without Keras
#
# `convert_to_litert` writes encoder, decoder and beam search to one model, which phones
# and small computers run. `Path("dates.tflite").write_bytes(content)` would save it; we
# give it to the interpreter at once. The results are those of Keras.

# %%
specs = {"source": tf.TensorSpec((1, SOURCE_LENGTH), tf.int32)}
content = convert_to_litert(
    {"translate": (models["Luong"].translate, specs)}, quantize=None
)
print(f"{len(content) / 1e3:.0f} kB")

translate = Interpreter(model_content=content).get_signature_runner("translate")
for number in range(20):
    again = translate(source=source[held_out][number : number + 1])
    for name in ("token_ids", "scores"):
        expected = hypotheses["Luong"][name][number]
        np.testing.assert_allclose(again[name][0], expected, atol=1e-3)
print(texts[held_out][0], "->", decode(hypotheses["Luong"]["token_ids"][0, 0]))

assert min(exact.values()) > 0.9
