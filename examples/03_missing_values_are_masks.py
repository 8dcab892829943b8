# %% [markdown]
# # Missing values are masks
#
# Tables have holes. A dense network needs a number in every cell, so holes are filled,
# with the mean for example. Attention over the *columns* of a row needs no filling: a
# missing cell is a masked position, its weight is exactly zero, and the weights of the
# other cells grow to sum to 1.
#
# ## The data
#
# Eight thermometers measure the air temperature. Each has an error of its own, and some
# cannot be trusted in sunshine. About 40 % of the readings are missing. We want the
# temperature, and we want to know which readings an estimate is made of.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_attention import AdditiveAttention

plt.rc("figure", dpi=100)
plt.rc("figure.constrained_layout", use=True)
plt.rc("axes.spines", top=False, right=False)

# Standard deviation of the error when it is overcast, and in sunshine.
ERRORS = {
    "roof north": (0.5, 1.5),
    "roof south": (0.5, 4.0),
    "window": (0.8, 3.0),
    "wall": (1.0, 1.0),
    "garden": (1.2, 1.2),
    "street": (2.0, 2.0),
    "car": (3.0, 4.0),
    "phone": (4.0, 4.0),
}
COLUMNS, WEATHER = list(ERRORS), ["overcast", "sunshine"]
deviations = np.array(list(ERRORS.values())).T


def make_table(rows, missing, rng):
    """Return readings with NaN where they are missing, weather, and temperature."""
    temperature = rng.normal(scale=8, size=rows)  # relative to the mean of the year
    weather = rng.integers(2, size=rows)
    readings = temperature[:, None] + deviations[weather] * rng.normal(size=(rows, 8))
    readings[rng.random((rows, 8)) < missing] = np.nan
    return readings.astype("float32"), weather, temperature.astype("float32")


rng = np.random.default_rng(1)
readings, weather, temperature = make_table(4000, 0.4, rng)
for row in range(4):
    cells = (f"{x:6.1f}" if np.isfinite(x) else "     –" for x in readings[row])
    print(f"{WEATHER[weather[row]]:9}", *cells, f" -> {temperature[row]:5.1f}")

# %% [markdown]
# ## The model
#
# The query is the weather, the keys are embeddings of the columns, the values are the
# readings themselves. So the context is a weighted mean of the readings, and it is the
# estimate:
#
# $$\text{estimate} = \sum_{c \text{ present}} \text{weights}_c \, \text{reading}_c
#   \qquad \text{weights} = \text{softmax}_{c \text{ present}}
#   (\text{score}(\text{weather}, \text{column}_c))$$
#
# `value_mask` says which cells are present. The readings go in as they are, with `NaN`
# in the holes: what is stored at a masked position has no influence.


# %%
def attention_model():
    readings = keras.Input((8,), name="readings")
    present = keras.Input((8,), dtype="bool", name="present")
    columns = keras.Input((8,), dtype="int32", name="columns")
    weather = keras.Input((), dtype="int32", name="weather")
    estimate, weights = AdditiveAttention(16)(
        keras.layers.Embedding(2, 8)(weather),
        keras.layers.Reshape((8, 1))(readings),
        keras.layers.Embedding(8, 8)(columns),
        value_mask=present,
        return_attention_scores=True,
    )
    inputs = [readings, present, columns, weather]
    return keras.Model(inputs, estimate), keras.Model(inputs, weights)


def attention_inputs(readings, weather):
    columns = np.broadcast_to(np.arange(8), readings.shape)
    return [readings, np.isfinite(readings), columns, weather]


# %% [markdown]
# The baseline is a dense network. It receives the readings with holes filled by the
# mean (zero), eight flags that say which cells are present, and the weather.


# %%
def dense_model():
    return keras.Sequential(
        [
            keras.Input((17,)),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(1),
        ]
    )


def dense_inputs(readings, weather):
    present = np.isfinite(readings)
    return np.concatenate(
        [np.where(present, readings, 0), present, weather[:, None]], axis=1
    ).astype("float32")


keras.utils.set_random_seed(1)
attend, weigh = attention_model()
dense = dense_model()
for model, inputs in [
    (attend, attention_inputs(readings, weather)),
    (dense, dense_inputs(readings, weather)),
]:
    model.compile(keras.optimizers.Adam(3e-3), "mse")
    model.fit(inputs, temperature, batch_size=64, epochs=30, verbose=0)

# %% [markdown]
# ## How good the estimates are
#
# With Gaussian errors the best weighted mean is known: the weights are proportional to
# $1 / \sigma^2$ of the readings that are present. We compare on new rows, for several
# shares of missing cells. The networks were trained with 40 % missing. The dense
# network could represent the best estimate, too. But it has to learn from examples what
# the softmax over present cells does by construction.


# %%
def best_weights(readings, weather):
    precision = np.isfinite(readings) / deviations[weather] ** 2
    return precision / np.maximum(precision.sum(axis=1, keepdims=True), 1e-9)


def rmse(estimate, temperature):
    return float(np.sqrt(np.mean((np.ravel(estimate) - temperature) ** 2)))


shares = [0.0, 0.15, 0.3, 0.45, 0.6]
errors = {"mean of the row": [], "dense network": [], "attention": [], "best": []}
for share in shares:
    table, sky, truth = make_table(4000, share, rng)
    filled = np.nan_to_num(table)
    present = np.isfinite(table)
    mean = filled.sum(axis=1) / np.maximum(present.sum(axis=1), 1)
    for name, estimate in {
        "mean of the row": mean,
        "dense network": dense.predict(dense_inputs(table, sky), verbose=0),
        "attention": attend.predict(attention_inputs(table, sky), verbose=0),
        "best": (best_weights(table, sky) * filled).sum(axis=1),
    }.items():
        errors[name].append(rmse(estimate, truth))

print(f"{'missing':16}", *(f"{share:6.0%}" for share in shares))
for name, values in errors.items():
    print(f"{name:16}", *(f"{value:6.2f}" for value in values))

figure, axis = plt.subplots(figsize=(6, 3.2))
colors = ["0.6", "tab:orange", "tab:blue", "tab:red"]
styles = ["o-", "o-", "o-", "--"]
for (name, values), color, style in zip(errors.items(), colors, styles, strict=True):
    axis.plot(shares, values, style, color=color, label=name)
axis.set(xlabel="share of missing readings", ylabel="RMSE in °C")
axis.xaxis.set_major_formatter("{x:.0%}")
axis.legend(frameon=False)
plt.show()

for attention, dense_error, best in zip(
    errors["attention"], errors["dense network"], errors["best"], strict=True
):
    assert attention < 1.05 * best
    assert attention < dense_error

# %% [markdown]
# ## What a row looked at
#
# Six rows of a new table; a cross is a missing cell. When it is overcast the estimate
# comes from the roof, if there are readings of the roof. In sunshine it comes from the
# wall and the garden. The network has found the best weights from the temperatures
# alone.

# %%
table, sky, truth = make_table(6, 0.4, np.random.default_rng(3))
order = np.argsort(sky, kind="stable")
table, sky = table[order], sky[order]
learned = weigh.predict(attention_inputs(table, sky), verbose=0)
best = best_weights(table, sky)

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
for axis, weights, title in zip(
    axes, [learned, best], ["attention", "best: 1 / σ²"], strict=True
):
    axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    rows, columns = np.nonzero(np.isnan(table))
    axis.plot(columns, rows, "x", color="0.6")
    for row, column in np.argwhere(weights > 0.005):
        color = "white" if weights[row, column] > 0.5 else "0.2"
        text = f"{weights[row, column]:.2f}"
        axis.text(column, row, text, ha="center", va="center", color=color)
    axis.set_xticks(range(8), COLUMNS, rotation=45, ha="right")
    axis.set_yticks(range(6), [WEATHER[x] for x in sky])
    axis.set_title(title)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
plt.show()

assert np.all(learned[np.isnan(table)] == 0)
assert np.allclose(learned.sum(axis=1), 1)
assert np.abs(learned - best).max() < 0.15

# %% [markdown]
# A row without any reading has no valid position. Its weights and its context are
# zeros, not `NaN`: the estimate is the mean of the year.

# %%
empty = attention_inputs(np.full((1, 8), np.nan, "float32"), np.array([0]))
print("estimate of an empty row:", attend.predict(empty, verbose=0))
assert attend.predict(empty, verbose=0) == 0
