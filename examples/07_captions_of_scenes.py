# %% [markdown]
# # Where to look for each word: soft and hard attention
#
# A captioner in the manner of *Show, Attend and Tell*
# ([Xu et al., 2015](https://arxiv.org/abs/1502.03044)): a small CNN turns an image into
# a grid of regions, and an RNN attends to the regions while it writes the caption.
#
# - **Soft** attention reads the weighted mean of all regions. It learns by
#   backpropagation.
# - **Hard** attention draws one region and reads that alone. No gradient passes through
#   a draw, so it learns by REINFORCE: draws that made the caption likelier become more
#   probable.
#
# The scenes are made up, so we know where every object is, and can check both.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import ops

from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    AttentionDecoder,
    HardWeighting,
    PointingAccuracy,
    PositionEncoding,
    ReinforceLoss,
    attention_overlay,
    greedy_search,
    sequence_crossentropy,
)

plt.rc("figure", dpi=100)
plt.rc("figure.constrained_layout", use=True)

# %% [markdown]
# ## Scenes
#
# A scene has two objects, named from left to right: "a red circle and a blue square".
# The function of a shape is below 1 inside it; its coordinates run from -1 to 1.

# %%
COLOURS = {
    "red": (0.88, 0.22, 0.20),
    "green": (0.20, 0.70, 0.36),
    "blue": (0.22, 0.44, 0.90),
    "yellow": (0.96, 0.80, 0.16),
    "white": (0.97, 0.97, 0.97),
}
SHAPES = {
    "circle": lambda u, v: np.hypot(u, v),
    "square": lambda u, v: np.maximum(abs(u), abs(v)) / 0.85,
    "triangle": lambda u, v: np.maximum(v / 0.8, 1.9 * abs(u) - v),
    "cross": lambda u, v: np.maximum(
        np.minimum(abs(u), abs(v)) / 0.35, np.maximum(abs(u), abs(v))
    ),
}
WORDS = ["<start>", "<end>", "a", "and", *COLOURS, *SHAPES]
START, END = range(2)
SIZE, GRID = 48, 6  # pixels and regions along a side
LENGTH = 8  # seven words and the end


def draw_scene(rng):
    """Return an image, the words of its caption, and where each word's object is."""
    image = np.full((SIZE, SIZE, 3), rng.uniform(0.1, 0.3))
    while True:
        radius = rng.uniform(5.5, 7.5, 2)
        x, y = rng.uniform(radius, SIZE - radius, (2, 2))
        if x[0] + radius.sum() < x[1]:
            break
    rows, columns = np.mgrid[:SIZE, :SIZE] + 0.5
    corners = np.arange(GRID) * SIZE / GRID
    cell = SIZE / GRID
    words, objects = [], []
    for centre_x, centre_y, half in zip(x, y, radius, strict=True):
        colour, shape = rng.choice(list(COLOURS)), rng.choice(list(SHAPES))
        inside = SHAPES[shape]((columns - centre_x) / half, (rows - centre_y) / half)
        cover = np.clip((1 - inside) * half + 0.5, 0, 1)[..., None]
        image = cover * COLOURS[colour] + (1 - cover) * image
        # The regions into which the object reaches.
        across = (corners < centre_x + half) & (corners + cell > centre_x - half)
        down = (corners < centre_y + half) & (corners + cell > centre_y - half)
        words += ["a", colour, shape, "and"]
        objects += [np.outer(down, across).ravel()] * 4
    words[-1] = "<end>"
    return image, words, objects


def draw_scenes(count, seed):
    rng = np.random.default_rng(seed)
    images, words, objects = zip(*(draw_scene(rng) for _ in range(count)), strict=True)
    target = np.array([[WORDS.index(word) for word in row] for row in words])
    names = [WORDS.index(word) for word in (*COLOURS, *SHAPES)]
    # Only colours and shapes have a place.
    objects = np.array(objects) & np.isin(target, names)[..., None]
    previous = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    images = np.array(images, "float32")
    return {"images": images, "previous": previous}, target, objects


training, target, _ = draw_scenes(4_000, seed=0)
test, test_target, test_objects = draw_scenes(500, seed=1)

figure, axes = plt.subplots(1, 5, figsize=(10, 2.7))
for axis, image, row in zip(axes, training["images"], target, strict=False):
    axis.imshow(image)
    words = [WORDS[token] for token in row[:-1]]
    axis.set_title(" ".join(words[:4]) + "\n" + " ".join(words[4:]), fontsize=9)
    axis.set_axis_off()
plt.show()

# %% [markdown]
# ## The captioner
#
# The decoder starts from zeros, so everything it knows of the image comes through the
# attention. The query holds the previous word, too (`input_in_query`): after "red", the
# shape is sought where the red was.
#
# Soft or hard is one argument, `weighting`. Hard attention needs `ReinforceLoss` in
# addition; its reward is the log-likelihood of the caption.


# %%
class Captioner(keras.Model):
    def __init__(self, weighting="softmax"):
        super().__init__()
        options = {"strides": 2, "padding": "same", "activation": "relu"}
        self.look = keras.Sequential(
            [keras.layers.Conv2D(units, 3, **options) for units in (24, 48, 64)]
            + [keras.layers.Reshape((GRID * GRID, 64))]
        )
        self.places = PositionEncoding("learned", max_length=GRID * GRID)
        self.embed = keras.layers.Embedding(len(WORDS), 32)
        attention = AdditiveAttention(64, weighting=weighting)
        self.decoder = AttentionDecoder(
            AttentionCell(keras.layers.GRUCell(64), attention, input_in_query=True)
        )
        self.classify = keras.layers.Dense(len(WORDS))
        self.reinforce = None if weighting == "softmax" else ReinforceLoss()

    def regions(self, images):
        return self.places(self.look(images))

    def call(self, inputs, training=None):
        steps = self.decoder(
            self.embed(inputs["previous"]),
            self.regions(inputs["images"]),
            training=training,
        )
        names = ["weights"]
        if self.reinforce:
            names += ["log_probability", "entropy"]
        logits = self.classify(steps["output"])
        return {"logits": logits, **{name: steps[name] for name in names}}

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        losses = sequence_crossentropy(y, y_pred["logits"])
        if self.reinforce:
            losses = self.reinforce(
                -losses,
                y_pred["log_probability"],
                y_pred["entropy"],
                training=training,
            )
        else:
            losses = ops.sum(losses, axis=1)
        return ops.mean(losses)

    def caption(self, images):
        """Return token ids `(B, T)` and weights `(B, T, S)` of a greedy search."""
        cell = self.decoder.cell
        memory = cell.attention.memory(self.regions(images))

        def step(token_ids, state):
            outputs, state = cell(self.embed(token_ids), state, memory)
            log_probs = ops.log_softmax(self.classify(outputs["output"]))
            return log_probs, state, outputs["weights"]

        state = cell.get_initial_state(batch_size=len(images))
        hypotheses = greedy_search(step, state, start=START, end=END, max_length=LENGTH)
        names = ("token_ids", "weights")
        return [ops.convert_to_numpy(hypotheses[name])[:, 0] for name in names]


def train(model, epochs, rate, batch=64):
    rate = keras.optimizers.schedules.CosineDecay(rate, epochs * len(target) // batch)
    model.compile(keras.optimizers.Adam(rate))
    model.fit(training, target, batch_size=batch, epochs=epochs, verbose=0)


# %% [markdown]
# Hard attention that starts from random weights finds only by chance where it pays to
# look. It is much quicker to train soft attention first, and to continue from there.

# %%
keras.utils.set_random_seed(7)
soft = Captioner()
train(soft, epochs=16, rate=4e-3)

hard = Captioner(HardWeighting(seed=7))
hard({name: x[:1] for name, x in training.items()})  # creates its weights
for layer in ("look", "places", "embed", "decoder", "classify"):
    getattr(hard, layer).set_weights(getattr(soft, layer).get_weights())
train(hard, epochs=4, rate=1e-3)

# %% [markdown]
# ## Are the captions right, and where do the models look?
#
# `PointingAccuracy` is the share of colours and shapes whose largest weight is on a
# region into which their object reaches.

# %%
results, captions = {}, {}
for name, model in {"soft": soft, "hard": hard}.items():
    captions[name] = model.caption(test["images"])
    token_ids, weights = captions[name]
    right = token_ids == test_target
    pointing = PointingAccuracy()
    pointing.update_state(test_objects, weights)
    results[name] = right.all(axis=1).mean(), float(pointing.result())
    print(f"{name} attention")
    print(f"    captions without a mistake {results[name][0]:.1%}")
    colours, shapes = right[:, [1, 5]].mean(), right[:, [2, 6]].mean()
    print(f"    colours {colours:.1%}, shapes {shapes:.1%}")
    print(f"    pointing {results[name][1]:.1%}")
chance = test_objects[test_objects.any(axis=-1)].mean()
print(f"pointing by chance {chance:.1%}")

# %% [markdown]
# The maps of one scene. Soft attention spreads over several regions, hard attention
# chooses one.

# %%
both = (captions["soft"][0] == test_target) & (captions["hard"][0] == test_target)
row = np.argmax(both.all(axis=1))  # the first scene that both caption rightly
words = [WORDS[token] for token in test_target[row, :-1]]


def draw(name):
    weights = captions[name][1][row, : len(words)]
    title = f"{name} attention"
    return attention_overlay(
        test["images"][row], words, weights, title=title, columns=len(words) + 1
    )


draw("soft")

# %%
draw("hard")

# %% [markdown]
# Words without an object, such as "and", may look anywhere: nothing depends on it.

# %%
for exact, pointing in results.values():
    assert exact > 0.7
    assert pointing > 0.8 > 2 * chance
assert ((captions["hard"][1] == 0) | (captions["hard"][1] == 1)).all()
