# %% [markdown]
# # A transformer, step by step
#
# A language model is trained on whole sequences at once, and writes one token after the
# other. Here we build one from `SelfAttention` and `TransformerEncoderLayer`, train it
# on a game of memory, and let it play. While it writes, a **cache** keeps the keys and
# values of the tokens so far, so that a step costs one token instead of the whole
# sequence.

# %%
import itertools
import time

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from keras import ops, tree

from keras_attention import (
    PositionEncoding,
    Prefix,
    SelfAttention,
    SequenceCrossentropy,
    TransformerEncoderLayer,
    greedy_search,
    sample_search,
)

plt.rc("figure", dpi=100)
plt.rc("figure.constrained_layout", use=True)
keras.utils.set_random_seed(8)

# %% [markdown]
# ## The game
#
# "I pack my bag, and in it I put ..." Every round repeats the list of the round before
# and adds one item. A game starts with one to three items and has two to four rounds.

# %%
items = "map cup pen hat key fig kite lamp rope book drum coin"
WORDS = ["<pad>", "<start>", "<end>", ".", *items.split()]
PAD, START, END, STOP = range(4)
LENGTH = 23  # of the longest game, with its end


def play(rng):
    """Return the token ids of a game."""
    first, rounds = rng.integers(1, 4), rng.integers(2, 5)
    items = rng.permutation(np.arange(STOP + 1, len(WORDS)))
    sizes = range(first, first + rounds)
    return [token for size in sizes for token in (*items[:size], STOP)]


def is_valid(text):
    """Return whether a game follows the rules."""
    *rounds, rest = (part.split() for part in text.split("."))
    if rest or not 2 <= len(rounds) <= 4 or not 1 <= len(rounds[0]) <= 3:
        return False
    repeats = all(new[:-1] == old for old, new in itertools.pairwise(rounds))
    return repeats and len(set(rounds[-1])) == len(rounds[-1])


def to_text(token_ids):
    """Return the words before the end."""
    words = [WORDS[token] for token in token_ids]
    return " ".join(words[: words.index("<end>")] if "<end>" in words else words)


rng = np.random.default_rng(8)
games = [play(rng) for _ in range(8_000)]
inputs = np.full((len(games), LENGTH), PAD)
targets = np.full((len(games), LENGTH), PAD)
for row, game in enumerate(games):
    inputs[row, : len(game) + 1] = [START, *game]
    targets[row, : len(game) + 1] = [*game, END]

for row in targets[:3]:
    print(to_text(row))
    assert is_valid(to_text(row))
assert not is_valid("map . map map .")
assert not is_valid("map . cup pen .")

# %% [markdown]
# ## A block, and a model
#
# A `TransformerEncoderLayer` adds two things to its input: what its attention reads,
# and what a small network, the feed-forward network, makes of that. Both read a
# normalised input (pre-norm), so a further normalisation follows the last block. Its
# attention may have any option; `causal=True` hides the tokens that come later. (The
# decoder of a translator also reads the source: `TransformerDecoderLayer` has a second
# attention for it.) The padding of shorter games is masked: `Embedding(mask_zero=True)`
# makes the mask, and Keras passes it on as `mask`.
#
# Attention alone does not see the order of its input, so `PositionEncoding` adds it.
# With caches, the first token of the call has the position `length` of the cache.

# %%
DEPTH, HEADS, BLOCKS = 64, 4, 2


def transformer_block():
    attention = SelfAttention(HEADS, DEPTH // HEADS, causal=True)
    return TransformerEncoderLayer(attention, 2 * DEPTH, activation="gelu")


class LanguageModel(keras.Model):
    def __init__(self):
        super().__init__()
        # As large as the position encoding, which is added to it.
        normal = keras.initializers.RandomNormal(stddev=1.0)
        self.embed = keras.layers.Embedding(len(WORDS), DEPTH, normal, mask_zero=True)
        self.positions = PositionEncoding()
        self.blocks = [transformer_block() for _ in range(BLOCKS)]
        self.norm = keras.layers.LayerNormalization()
        self.classify = keras.layers.Dense(len(WORDS))

    def call(self, token_ids):
        x = self.positions(self.embed(token_ids))
        for block in self.blocks:
            x = block(x)
        return self.classify(self.norm(x))

    def step(self, token_ids, caches):
        """Return the logits of the next tokens, the next caches and the weights."""
        x = self.positions(self.embed(token_ids), start=caches[0]["length"])
        following = []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, weights, cache = block(x, cache=cache, return_attention_scores=True)
            following.append(cache)
        return self.classify(self.norm(x)), following, weights

    def empty_caches(self, batch_size, length):
        return [block.get_initial_cache(batch_size, length) for block in self.blocks]


EPOCHS, BATCH = 6, 64
rate = keras.optimizers.schedules.CosineDecay(5e-3, EPOCHS * len(games) // BATCH)
model = LanguageModel()
model.compile(keras.optimizers.Adam(rate), SequenceCrossentropy())
history = model.fit(inputs, targets, BATCH, EPOCHS, verbose=0).history
print("loss", np.round(history["loss"], 3))

# %% [markdown]
# ## Step by step equals the full pass
#
# Training ran over whole games. Now the tokens arrive one by one, and each step sees
# the earlier ones through the caches only. The logits are the same.

# %%
some = inputs[:8]
full = ops.convert_to_numpy(model(some))

caches, steps = model.empty_caches(len(some), LENGTH), []
for t in range(LENGTH):
    logits, caches, _ = model.step(some[:, t : t + 1], caches)
    steps.append(ops.convert_to_numpy(logits))
steps = np.concatenate(steps, axis=1)

real = some != PAD
difference = np.abs(steps - full)[real].max()
print(f"largest difference of a logit: {difference:.1e}")
assert difference < 1e-3

# %% [markdown]
# The masks promise two more things: what comes later does not matter, and padding does
# not matter.

# %%
changed = some.copy()
changed[:, 5:] = STOP
np.testing.assert_allclose(model(changed)[:, :5], full[:, :5], atol=1e-4)

padded = np.pad(some, ((0, 0), (0, 9)), constant_values=PAD)
np.testing.assert_allclose(model(padded)[:, :LENGTH][real], full[real], atol=1e-3)

# %% [markdown]
# ## How much a cache saves
#
# Without a cache, every new token needs a full pass over all tokens before it. We write
# 128 tokens in 16 rows both ways, compiled, and measure the processor time, which does
# not depend on what else the machine does. (The games are shorter, but for the time it
# does not matter what the tokens say.)

# %%
ROWS, TOKENS, RUNS = 16, 128, 3


@tf.function(input_signature=[tf.TensorSpec((ROWS, None), tf.int32)])
def without_cache(token_ids):
    return model(token_ids)[:, -1]


@tf.function
def with_cache(token_ids, caches):
    logits, caches, _ = model.step(token_ids, caches)
    return logits[:, -1], caches


def seconds_of_steps(cached):
    """Return the processor time of each step of a greedy search, and its tokens."""
    tokens = np.full((ROWS, 1), START, "int32")
    caches = model.empty_caches(ROWS, TOKENS)
    seconds = []
    for _ in range(TOKENS):
        begin = time.process_time()
        if cached:
            logits, caches = with_cache(tokens[:, -1:], caches)
        else:
            logits = without_cache(tokens)
        logits = ops.convert_to_numpy(logits)
        seconds.append(time.process_time() - begin)
        # Never the padding, which would be masked.
        best = 1 + logits[:, 1:].argmax(-1).astype("int32")
        tokens = np.concatenate([tokens, best[:, None]], axis=1)
    return seconds, tokens


fastest, written = {}, {}
for cached in (False, True):
    runs = [seconds_of_steps(cached) for _ in range(RUNS)]
    fastest[cached] = 1e3 * np.min([seconds for seconds, _ in runs], axis=0)
    written[cached] = runs[0][1]
slow, quick = fastest[False].sum(), fastest[True].sum()
print(f"{TOKENS} tokens: {slow:.0f} ms by full passes, {quick:.0f} ms with the cache")
print(f"ratio: {slow / quick:.1f}")
assert (written[True] == written[False]).mean() > 0.99
assert slow > 1.5 * quick

figure, axis = plt.subplots(figsize=(7, 3))
for cached, label, colour in (
    (False, "full pass", "tab:orange"),
    (True, "one step with cache", "tab:blue"),
):
    axis.plot(fastest[cached], color=colour)
    axis.text(TOKENS + 1, fastest[cached][-9:].mean(), label, color=colour, va="center")
axis.set(xlabel="tokens so far", ylabel="milliseconds per token", ylim=(0, None))
axis.set_xlim(0, TOKENS)
axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## Play
#
# Every search of this package needs one function: last tokens and state in,
# log-probabilities, next state and weights out. The state is our list of caches. A
# search has several samples or hypotheses for each row; the cache knows one batch axis,
# so we join the two axes and separate them again.


# %%
def step(token_ids, state):
    leading = ops.shape(token_ids)
    caches = tree.map_structure(lambda x: ops.reshape(x, (-1, *x.shape[2:])), state)
    logits, caches, weights = model.step(ops.reshape(token_ids, (-1, 1)), caches)
    log_probs = ops.log_softmax(logits)

    def separate(x):
        return ops.reshape(x, (*leading, *x.shape[1:]))

    state = tree.map_structure(separate, caches)
    weights = ops.mean(weights, axis=1)  # over the heads
    return separate(log_probs[:, 0]), state, separate(weights[:, 0])


options = {"start": START, "end": END, "max_length": LENGTH}
one_row = model.empty_caches(1, LENGTH)

greedy = greedy_search(step, one_row, **options)
game = to_text(ops.convert_to_numpy(greedy["token_ids"])[0, 0])
print(game)
assert is_valid(game)

# %% [markdown]
# Greedy search always plays the same game. Samples differ, and the temperature decides
# how much: low temperatures play safe, high ones forget the list.

# %%
SAMPLES = 200
valid = {}
for temperature in (0.5, 1.0, 1.5, 2.0):
    samples = sample_search(
        step, one_row, samples=SAMPLES, temperature=temperature, seed=1, **options
    )
    played = [to_text(row) for row in ops.convert_to_numpy(samples["token_ids"])[0]]
    valid[temperature] = np.mean([is_valid(game) for game in played])
    print(f"{temperature}: {valid[temperature]:4.0%} valid:", played[0])
assert valid[0.5] > 0.8
assert valid[2.0] < valid[0.5]

# %% [markdown]
# `Prefix` fixes the first tokens, and the model goes on from there. The weights of the
# last block show how it remembers: to write an item, it looks at an earlier mention of
# that item (the red frames). It can find the mention because two blocks work together:
# the first can note at each place what stands before it, and the second looks for the
# place that has the last item before it. The pair is called an induction head
# ([Olsson et al., 2022](https://arxiv.org/abs/2209.11895)).

# %%
opening = "drum fig lamp ."
constraint = Prefix([[WORDS.index(word) for word in opening.split()]])
hypothesis = greedy_search(step, one_row, constraints=[constraint], **options)
game = to_text(ops.convert_to_numpy(hypothesis["token_ids"])[0, 0])
print(game)
assert game.startswith(opening)

game = game.split()
weights = ops.convert_to_numpy(hypothesis["weights"])[0, 0]
count = len(game)
figure, axis = plt.subplots(figsize=(7, 6.2))
image = axis.imshow(weights[:count, :count], cmap="Blues", vmin=0, vmax=1)
axis.set_xticks(range(count), ["<start>", *game[:-1]], rotation=90)
axis.set_yticks(range(count), game)
axis.xaxis.tick_top()
axis.set_xlabel("attends to")
axis.xaxis.set_label_position("top")
axis.set_ylabel("writes")
axis.tick_params(length=0)
on_mentions = []
for row, word in enumerate(game):
    # The column of a word that was written is one further: the first is <start>.
    mentions = [place + 1 for place in range(row) if game[place] == word != "."]
    for column in mentions:
        frame = plt.Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec="tab:red")
        axis.add_patch(frame)
    if mentions:
        on_mentions.append(weights[row, mentions].sum())
figure.colorbar(image, label="attention", shrink=0.5)
plt.show()

print(f"attention on earlier mentions: {np.mean(on_mentions):.0%}")
assert np.mean(on_mentions) > 0.5
