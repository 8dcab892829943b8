# %% [markdown]
# # Attention by hand
#
# An attention layer is a soft look-up. A **query** says what is sought, every position
# has a **key** that says what it offers, and a **value** that is read if it is chosen:
#
# $$\text{scores}_{ts} = \text{score}(q_t, k_s) \qquad
#   \text{weights}_{ts} = \frac{\exp \text{scores}_{ts}}
#                              {\sum_{j} \exp \text{scores}_{tj}} \qquad
#   \text{context}_t = \sum_s \text{weights}_{ts} \, v_s$$
#
# We compute two small examples in NumPy, one with dot products and one with additive
# scores, and get the same digits from the layers of this package. Then we look at the
# most frequent mistake in tables of attention weights, and at a test that finds it.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_attention import (
    AdditiveAttention,
    LuongAttention,
    SelfAttention,
    attention_heatmap,
)

plt.rc("figure", dpi=100)
plt.rc("figure.constrained_layout", use=True)
np.set_printoptions(suppress=True)


def softmax(scores, axis=-1):
    odds = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return odds / odds.sum(axis=axis, keepdims=True)


# %% [markdown]
# ## Scaled dot products
#
# Many tutorials use the same example: four "words" with three features, and three
# integer matrices that map each word to its query, its key and its value.

# %%
words = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
names = ["word_1", "word_2", "word_3", "word_4"]

np.random.seed(42)
W_query = np.random.randint(3, size=(3, 3))
W_key = np.random.randint(3, size=(3, 3))
W_value = np.random.randint(3, size=(3, 3))

query, key, value = words @ W_query, words @ W_key, words @ W_value
scores = query @ key.T
weights = softmax(scores / np.sqrt(3))
context = weights @ value

print("scores\n", scores)
print("weights\n", weights.round(4))
print("context\n", context)

# %% [markdown]
# Each row of weights is a distribution over the words. `word_3` is the sum of `word_1`
# and `word_2`, so its key has the largest products: three of the four words attend
# mostly to it. The query of `word_2` scores `word_1` and `word_3` equally.


# %%
def draw_numbers(axis, numbers, rows, columns, title, form="{:.2f}", **options):
    """Draw a matrix as a heat map with a number in every cell."""
    image = axis.imshow(numbers, cmap="Blues", **options)
    for (row, column), number in np.ndenumerate(numbers):
        dark = image.norm(number) > 0.5
        axis.text(
            column,
            row,
            form.format(number),
            ha="center",
            va="center",
            color="white" if dark else "0.2",
        )
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title(title)


figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), width_ratios=[4, 4, 3])
short = ["1", "2", "3", "4"]
draw_numbers(axes[0], scores, names, short, "scores: query · key", "{:.0f}")
draw_numbers(axes[1], weights, short, short, "weights: softmax of scores / √3")
draw_numbers(axes[2], context, short, ["a", "b", "c"], "context: weights · value")
axes[0].set_ylabel("query of")
axes[0].set_xlabel("key of")
axes[1].set_xlabel("value of")
axes[2].set_xlabel("feature")
plt.show()

# %% [markdown]
# `SelfAttention` computes the same. We take one head without biases and without an
# output projection, and replace its random matrices by those above. A batch of one
# example has the shape `(1, 4, 3)`. (Keras computes in float32 by default, which has
# seven digits; we ask for float64 to compare all digits that the tutorials print.)

# %%
layer = SelfAttention(
    num_heads=1,
    key_dim=3,
    use_bias=False,
    use_output_projection=False,
    dtype="float64",
)
layer.build((1, 4, 3))
layer.set_weights([W_key, W_value, W_query])

layer_context, layer_weights = layer(words[None], return_attention_scores=True)
layer_context = keras.ops.convert_to_numpy(layer_context)[0]
layer_weights = keras.ops.convert_to_numpy(layer_weights)[0, 0]
print(layer_context)

# The digits that are printed in the tutorials.
printed = [
    [0.98522025, 1.74174051, 0.75652026],
    [0.90965265, 1.40965265, 0.5],
    [0.99851226, 1.75849334, 0.75998108],
    [0.99560386, 1.90407309, 0.90846923],
]
assert np.abs(context - printed).max() < 5e-9

# The other backends compute some or all of it in float32.
tolerance = 5e-9 if keras.backend.backend() == "tensorflow" else 1e-6
assert np.abs(layer_context - printed).max() < tolerance
assert np.abs(layer_weights - weights).max() < tolerance

# %% [markdown]
# If queries, keys and values are there already, `LuongAttention("scaled-dot")` is the
# shorter way: it has no matrices of its own.

# %%
attend = LuongAttention("scaled-dot", dtype="float64")
short_cut = attend(query[None], value[None], key[None])
assert np.abs(keras.ops.convert_to_numpy(short_cut)[0] - printed).max() < tolerance

# %% [markdown]
# ## Additive scores
#
# Bahdanau's attention adds the projected query and the projected key, and a vector
# $\text{scale}$ turns the hidden layer into a score:
#
# $$\text{scores}_{ts} =
#   \text{scale} \cdot \tanh(W_\text{query} q_t + W_\text{key} k_s)$$
#
# Our example translates *the black cat* to *gato negro*. The decoder has a state (the
# query) for each of its two words, the encoder has one (key and value) for each of its
# three words.

# %%
source, target = ["the", "black", "cat"], ["gato", "negro"]
encoder_states = np.array([[0.0, 0.0], [2.0, -1.0], [-1.0, 2.0]])
decoder_states = np.array([[0.0, 1.0], [1.0, 0.0]])
W_query = np.array([[-0.5, 2.0], [2.0, -1.0]])
W_key = np.eye(2)
scale = np.array([1.0, 1.0])

projected = (decoder_states @ W_query)[:, None] + (encoder_states @ W_key)[None]
scores = np.tanh(projected) @ scale
weights = softmax(scores)
context = weights @ encoder_states
print("scores\n", scores.round(3))
print("weights\n", weights.round(3), "with sums", weights.sum(axis=1))
print("context\n", context.round(3))

layer = AdditiveAttention(2, dtype="float64")
layer.build((1, 2, 2), (1, 3, 2))
layer.set_weights([W_key, scale, W_query])
layer_context, layer_weights = layer(
    decoder_states[None], encoder_states[None], return_attention_scores=True
)
assert np.abs(keras.ops.convert_to_numpy(layer_weights)[0] - weights).max() < tolerance
assert np.abs(keras.ops.convert_to_numpy(layer_context)[0] - context).max() < tolerance

# %% [markdown]
# `attention_heatmap` draws weights as an alignment: rows are target words, columns are
# source words.

# %%
attention_heatmap(weights, source, target)

# %% [markdown]
# ## How such a table goes wrong
#
# You will meet tables of attention weights whose words have sums such as 1.45. That
# cannot be: the weights of a target word are a distribution over the *source*. Two
# mistakes make such tables.
#
# - **The softmax runs over the wrong axis.** Then the weights of each *source* word sum
#   to 1. In a square table nothing else looks wrong.
# - **Numbers are rounded before they are normalised.** Below, the scores are rounded to
#   integers in the numerator, but not in the denominator.

# %%
wrong_axis = softmax(scores, axis=0)
rounded = np.exp(scores.round()) / np.exp(scores).sum(axis=1, keepdims=True)

tables = {"right": weights, "wrong axis": wrong_axis, "rounded too early": rounded}
figure, axes = plt.subplots(1, 3, figsize=(10, 2))
for axis, (title, table) in zip(axes, tables.items(), strict=True):
    draw_numbers(axis, table, target, source, title, vmin=0, vmax=1)
    for row, total in enumerate(table.sum(axis=1)):
        right = np.isclose(total, 1)
        axis.text(
            2.65,
            row,
            f"Σ = {total:.2f}",
            va="center",
            color="tab:green" if right else "tab:red",
            weight="bold",
        )
    print(f"{title:18}", "sums over the source:", table.sum(axis=1).round(2))
plt.show()

# %% [markdown]
# One line in your tests finds both mistakes: **the weights of every query sum to 1**.
# (One exception: if all positions of a query are masked, its weights are zeros.) The
# test is necessary, not sufficient. If numerator and denominator use the same rounded
# scores, the weights sum to 1 and are wrong by up to 0.12 all the same.

# %%
assert np.allclose(weights.sum(axis=1), 1)
assert not np.allclose(wrong_axis.sum(axis=1), 1)
assert np.allclose(wrong_axis.sum(axis=0), 1)
assert not np.allclose(rounded.sum(axis=1), 1)

consistent = softmax(scores.round())
print("rounded scores, then softmax\n", consistent.round(3))
assert np.allclose(consistent.sum(axis=1), 1)
assert np.abs(consistent - weights).max() > 0.1
