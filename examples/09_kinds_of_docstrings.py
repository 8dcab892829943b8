# %% [markdown]
# # Which words decide: a classifier of docstrings
#
# A small text classifier on real text: the first sentences of Keras' own documentation.
# It learns whether a sentence describes a layer, a metric or an operation.
# `AttentionPooling` turns the word vectors of a sentence into one vector, and its
# weights show which words the prediction was computed from.

# %%
import inspect
import re

import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_attention import AttentionPooling, attention_text

plt.rc("figure", dpi=100)
plt.rc("figure.constrained_layout", use=True)
keras.utils.set_random_seed(1)

# %% [markdown]
# ## Sentences and labels
#
# The documentation is installed with Keras. Every sixth sentence is kept for the test.

# %%
kinds = ["layers", "metrics", "ops"]
texts, labels = [], []
for label, kind in enumerate(kinds):
    for name, public in vars(getattr(keras, kind)).items():
        if name.startswith("_"):
            continue
        summary = (inspect.getdoc(public) or "").split("\n\n")[0]
        texts.append(re.findall("[a-z]+", summary.lower())[:40])
        labels.append(label)

vocabulary = sorted({word for text in texts for word in text})
ids = {word: number for number, word in enumerate(vocabulary, start=1)}
x = np.array([[*map(ids.get, text), *[0] * (40 - len(text))] for text in texts])
y = np.array(labels)
test = np.arange(len(y)) % 6 == 0
print(f"{len(texts)} sentences, {len(vocabulary)} words")

# %% [markdown]
# ## The model
#
# Zero is padding. With `mask_zero=True`, the embedding says so, and padding has a
# weight of exactly zero. The layer returns its weights beside the pooled vector.

# %%
words = keras.Input((40,), dtype="int32")
vectors = keras.layers.Embedding(len(ids) + 1, 64, mask_zero=True)(words)
pooled, weights = AttentionPooling(64)(vectors, return_attention_scores=True)
model = keras.Model(words, keras.layers.Dense(len(kinds))(pooled))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
model.fit(x[~test], y[~test], epochs=10, verbose=0)
accuracy = model.evaluate(x[test], y[test], verbose=0)[1]
most_frequent = np.bincount(y).max() / len(y)
print(f"accuracy {accuracy:.2f}; always the most frequent kind: {most_frequent:.2f}")
assert accuracy > most_frequent + 0.15

# %% [markdown]
# ## What the model reads
#
# A second model shares the trained layers and returns the weights.

# %%
reader = keras.Model(words, weights)
predicted = reader.predict(x, verbose=0)
assert not predicted[x == 0].any()
attention_text(texts[:20], predicted[:20])

# %% [markdown]
# Which words have the largest weights on average? Words that name the kind, such as
# "computes" or "layer", should be among them, and articles should not.

# %%
sums, counts = np.zeros(len(ids) + 1), np.zeros(len(ids) + 1)
np.add.at(sums, x, predicted * (x > 0).sum(axis=1, keepdims=True))
np.add.at(counts, x, x > 0)
frequent = np.flatnonzero(counts >= 12)
means = sums[frequent] / counts[frequent]
order = np.argsort(means)
shown = [*order[:8], *order[-8:]]
names = [vocabulary[frequent[i] - 1] for i in shown]
plt.barh(names, means[shown])
plt.axvline(1, color="grey")
plt.xlabel("mean weight, relative to equal weights")
plt.show()
print("largest:", ", ".join(names[:-9:-1]))
assert means[order[-1]] > 1.5 > 1 > means[order[0]]

# %% [markdown]
# ## What the weights mean
#
# Here, each vector belongs to one word, so the weights say which words the prediction
# was computed from. Over the states of an LSTM they do not: each state has read its
# neighbours, in both directions the whole text, so the decision may be made in the LSTM
# and be read off anywhere. In a test with a bidirectional LSTM, the word that decided
# had a weight of 0.03, and the full stop 0.11.
#
# Pool embeddings, or a convolution over few words. Take `weighting="sparsemax"` for
# weights of exactly zero, or teach the weights with `attention_supervision`, and
# measure them with `PointingAccuracy`. Weights of any layer show where a model reads,
# not that it would decide otherwise without these words
# ([Jain and Wallace, 2019](https://aclanthology.org/N19-1357),
# [Wiegreffe and Pinter, 2019](https://aclanthology.org/D19-1002)).
