# %% [markdown]
# # What a message is about: attention pooling
#
# A classifier of texts turns many word vectors into one. The usual way is their mean,
# in which every word counts the same. `AttentionPooling` learns which words count: it
# scores every position, and returns the weighted mean.
#
# $$\text{scores}_s = \text{scale} \cdot \tanh(W x_s + b) \qquad
#   \text{pooled} = \sum_s \text{softmax}(\text{scores})_s \, x_s$$
#
# It replaces one line of your model, and its weights show what the model read.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_attention import AttentionPooling, PointingAccuracy, attention_text

plt.rc("figure", dpi=100)
plt.rc("figure.constrained_layout", use=True)

# %% [markdown]
# ## Messages to a shop
#
# Every message has one complaint, and we want to know its topic. Around the complaint,
# people are polite, and mention things that are fine. So the things alone decide
# nothing: "the parcel came on time my login is broken" is about the account.

# %%
TOPICS = {
    "payment": "invoice, bill, refund, payment, receipt, fee, discount, charge",
    "delivery": "parcel, courier, shipment, package, driver, box, tracking, order",
    "account": "password, login, profile, username, address, account, name, email",
    "website": "page, button, search, menu, checkout, link, picture, map",
}
BAD = (
    "is wrong, is missing, does not work, never came, is broken, looks strange, "
    "has disappeared, still makes trouble"
)
FINE = (
    "is right, is perfect, works well, came on time, is fine now, looks good, "
    "was as promised, never makes trouble"
)
CHAT = (
    "thank you for your patience, I hope you are well, it is raining here today, "
    "my neighbour recommended your shop, I have been a customer for years, "
    "this is my second message, my sister says hello, please answer soon"
)
NAMES = list(TOPICS)


def choose(rng, phrases):
    return rng.choice(phrases.split(", "))


def write_message(rng, others):
    """Return the words of a message, its topic, and which words are the complaint."""
    topic = rng.integers(len(NAMES))

    def say(topic, what):
        article = choose(rng, "the, my")
        return f"{article} {choose(rng, TOPICS[NAMES[topic]])} {choose(rng, what)}"

    clauses = [say(topic, BAD)]
    for _ in range(others):
        other = (topic + rng.integers(1, len(NAMES))) % len(NAMES)
        is_fine = rng.random() < 0.6
        clauses.append(say(other, FINE) if is_fine else choose(rng, CHAT))
    order = rng.permutation(len(clauses))
    words = [(word, i == 0) for i in order for word in clauses[i].split()]
    return [word for word, _ in words], topic, [inside for _, inside in words]


def write_messages(count, others, seed):
    """Return messages whose number of other clauses is drawn from a range."""
    rng = np.random.default_rng(seed)
    return [write_message(rng, rng.integers(*others)) for _ in range(count)]


training = write_messages(300, (1, 5), seed=1)
for words, topic, _ in training[:3]:
    print(f"{NAMES[topic]:9}", " ".join(words))

# %% [markdown]
# Words become numbers: 0 is padding, 1 is a word that is not in the training data.

# %%
vocabulary = sorted({word for words, *_ in training for word in words})
ids = {word: number for number, word in enumerate(vocabulary, start=2)}


def encode(messages):
    """Return token ids `(B, S)`, topics `(B,)`, and the complaints `(B, S)`."""
    shape = len(messages), max(len(words) for words, *_ in messages)
    token_ids, complaint = np.zeros(shape, "int32"), np.zeros(shape, "bool")
    for row, (words, _, inside) in enumerate(messages):
        token_ids[row, : len(words)] = [ids.get(word, 1) for word in words]
        complaint[row, : len(words)] = inside
    return token_ids, np.array([topic for _, topic, _ in messages]), complaint


# %% [markdown]
# ## Two models that differ in one line
#
# A convolution reads each word with its neighbours, so a position can know that
# something is wrong, and what. Both models get the same mask of the padding.


# %%
def build(pooling):
    """Return a model that is trained, and the same model with the weights."""
    keras.utils.set_random_seed(5)
    words = keras.Input((None,), dtype="int32")
    mask = words != 0
    x = keras.layers.Embedding(len(vocabulary) + 2, 32)(words)
    x = keras.layers.Dropout(0.2)(x)
    x = keras.layers.Conv1D(64, 5, padding="same", activation="relu")(x)
    weights = []
    if pooling == "mean":
        x = keras.layers.GlobalAveragePooling1D()(x, mask=mask)
    else:
        x, weights = AttentionPooling(32)(
            x, value_mask=mask, return_attention_scores=True
        )
    logits = keras.layers.Dense(len(TOPICS))(x)
    model = keras.Model(words, logits)
    model.compile(
        keras.optimizers.Adam(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    token_ids, topics, _ = encode(training)
    model.fit(token_ids, topics, batch_size=32, epochs=30, verbose=0)
    return model, keras.Model(words, [logits, weights])


models = {pooling: build(pooling) for pooling in ("mean", "attention")}

# %% [markdown]
# The training messages had one to four other clauses. How do the models do on new
# messages, and on longer ones?

# %%
others = [1, 2, 4, 6, 8, 12, 16]
accuracy = {pooling: [] for pooling in models}
for count in others:
    token_ids, topics, _ = encode(write_messages(500, (count, count + 1), seed=count))
    for pooling, (model, _) in models.items():
        predicted = model.predict(token_ids, verbose=0).argmax(-1)
        accuracy[pooling].append((predicted == topics).mean())
for pooling, values in accuracy.items():
    print(f"{pooling:9}", " ".join(f"{value:6.1%}" for value in values))

figure, axis = plt.subplots(figsize=(7, 3.2))
axis.axvspan(1, 4, color="0.94")
axis.text(2.5, 1.03, "as in training", ha="center", color="0.4")
for pooling, colour in (("attention", "tab:blue"), ("mean", "tab:orange")):
    axis.plot(others, accuracy[pooling], "o-", color=colour)
    axis.text(
        others[-1] + 0.3, accuracy[pooling][-1], pooling, color=colour, va="center"
    )
axis.axhline(1 / len(TOPICS), color="0.6", lw=1, ls=":")
axis.text(1, 1 / len(TOPICS) - 0.02, "guessing", color="0.6", va="top")
axis.set(xlabel="other clauses in the message", ylabel="accuracy", ylim=(0, 1.12))
axis.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# The longer the message, the smaller the part of the complaint in the mean, and the
# other clauses drown it. Attention leaves them out, however many they are.
#
# Attention also tells us where the model read. `PointingAccuracy` counts how often the
# largest weight lies inside the complaint.

# %%
messages = write_messages(500, (1, 5), seed=0)
token_ids, topics, complaint = encode(messages)
_, weights = models["attention"][1].predict(token_ids, verbose=0)
pointing = PointingAccuracy()
pointing.update_state(complaint, weights)
print(f"largest weight inside the complaint: {float(pointing.result()):.1%}")
print(f"complaint's share of the words: {complaint.sum() / (token_ids > 0).sum():.1%}")
assert np.allclose(weights.sum(axis=1), 1, atol=1e-5)
assert (weights[token_ids == 0] == 0).all()

# %% [markdown]
# These are new messages. The darker a word, the larger its weight; the complaint is
# underlined.

# %%
chosen = [row for row in range(60) if 11 <= (token_ids[row] > 0).sum() <= 18][:6]
attention_text(
    [messages[row][0] for row in chosen],
    weights[chosen],
    vmax=1.0,
    titles=[f"topic: {NAMES[topics[row]]}" for row in chosen],
    underlined=complaint[chosen],
)

# %% [markdown]
# The model has found that one word of the complaint is enough: the convolution has put
# its neighbours into the vector of that word.

# %%
assert float(pointing.result()) > 0.9
assert min(accuracy["attention"]) > 0.9
assert accuracy["mean"][0] > 0.9
assert accuracy["mean"][-1] < 0.6
