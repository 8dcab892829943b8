# %% [markdown]
# # What a bottleneck keeps
#
# An auto-encoder reconstructs its input from a small code. Whatever it keeps must be
# typical of the data, because there is no room for anything else. That is why its error
# reveals unusual inputs.
#
# Attention can ruin this. A decoder that attends to *all* states of the encoder has no
# bottleneck: every step copies its own input, and the reconstruction is perfect and
# worthless. We build both, look at what they read, and give them faulty days.
#
# ## The data
#
# A machine works in four shifts, which the models do not know of. Each shift of a day
# has a level of power of its own; each hour deviates from it a little.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_attention import AttentionPooling, LuongAttention, PositionEncoding

plt.rc("figure", dpi=100)
plt.rc("figure.constrained_layout", use=True)
plt.rc("axes.spines", top=False, right=False)

HOURS, NOISE = 24, 0.4
SHIFTS = {"night": 6, "morning": 7, "afternoon": 5, "evening": 6}
shift_of_hour = np.repeat(np.arange(4), list(SHIFTS.values()))


def make_days(count, rng):
    """Return readings (count, 24) and the levels of the four shifts (count, 4)."""
    levels = rng.normal(size=(count, 4))
    readings = levels[:, shift_of_hour] + NOISE * rng.normal(size=(count, HOURS))
    return readings.astype("float32"), levels


rng = np.random.default_rng(1)
days, _ = make_days(3000, rng)
test_days, test_levels = make_days(1000, rng)
clean = test_levels[:, shift_of_hour]

# %% [markdown]
# ## Two auto-encoders
#
# Both encode an hour as its reading plus an encoding of its position, and both decode
# with one query for each hour. They differ in the memory of the decoder:
#
# - **bottleneck**: `AttentionPooling` with four hops reads the day four times, and a
#   dense layer keeps *one number* of each hop. The decoder attends to four numbers.
# - **full attention**: the decoder attends to all 24 encoded hours.


# %%
def positions(count):
    initializer = keras.initializers.RandomNormal(stddev=0.3)
    return PositionEncoding(
        "learned", max_length=count, embeddings_initializer=initializer
    )


def build(with_bottleneck):
    day = keras.Input((HOURS, 1))
    encoded = positions(HOURS)(keras.layers.Dense(32)(day))
    outputs = {}
    if with_bottleneck:
        pooled, read = AttentionPooling(32, hops=4)(
            encoded, return_attention_scores=True
        )
        code = keras.layers.Dense(1)(pooled)
        memory = positions(4)(keras.layers.Dense(32)(code))
        outputs = {"code": code, "read": read}
    else:
        memory = encoded
    queries = positions(HOURS)(keras.ops.zeros_like(encoded))
    context, weights = LuongAttention("general")(
        queries, memory, return_attention_scores=True
    )
    reconstruction = keras.layers.Dense(1)(context)
    # The second model has the same layers, and more outputs.
    return keras.Model(day, reconstruction), keras.Model(
        day, {**outputs, "weights": weights, "reconstruction": reconstruction}
    )


def rmse(predicted, expected):
    return float(np.sqrt(np.mean((predicted - expected) ** 2)))


predictions = {}
inspect = {}
for name in ("bottleneck", "full attention"):
    keras.utils.set_random_seed(3)
    model, inspect[name] = build(with_bottleneck=name == "bottleneck")
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    model.fit(days[..., None], days[..., None], batch_size=64, epochs=15, verbose=0)
    predictions[name] = inspect[name].predict(test_days[..., None], verbose=0)
reconstructed = {name: x["reconstruction"][..., 0] for name, x in predictions.items()}

# %% [markdown]
# Full attention reproduces the readings. The bottleneck does not. But the levels, which
# it has never seen, come out *better* than in its input: the noise did not fit through.
# For comparison, PCA with four components is the best linear code of four numbers.

# %%
mean = days.mean(axis=0)
components = np.linalg.svd(days - mean, full_matrices=False)[2][:4]
reconstructed["PCA"] = mean + (test_days - mean) @ components.T @ components

print(f"{'RMSE of':16} readings  levels")
print(f"{'input':16}{0:9.2f}{rmse(test_days, clean):8.2f}")
for name, x in reconstructed.items():
    print(f"{name:16}{rmse(x, test_days):9.2f}{rmse(x, clean):8.2f}")

assert rmse(reconstructed["full attention"], test_days) < 0.1 * NOISE
assert rmse(reconstructed["bottleneck"], test_days) > 0.8 * NOISE
assert rmse(reconstructed["bottleneck"], clean) < 0.6 * NOISE

# %% [markdown]
# ## What they read
#
# Which hours is an hour reconstructed from? With full attention these are the weights
# of the decoder. With the bottleneck there are two steps: the decoder attends to the
# numbers of the code, and each number was read from the hours, so the two matrices are
# multiplied. Full attention copies: hour 5 is read from hour 5. The bottleneck has
# found the four shifts, whose boundaries are drawn in red. (With other seeds, two
# numbers sometimes share two shifts, like x + y and x − y instead of x and y.)

# %%
inner = predictions["bottleneck"]
maps = {
    "full attention": predictions["full attention"]["weights"].mean(axis=0),
    "bottleneck": (inner["weights"] @ inner["read"]).mean(axis=0),
}

figure, axes = plt.subplots(1, 2, figsize=(8, 3.9))
for axis, (name, weights) in zip(axes, maps.items(), strict=True):
    image = axis.imshow(weights, cmap="Blues", vmin=0, vmax=weights.max())
    ends = np.cumsum(list(SHIFTS.values()))
    for end in ends[:-1]:
        axis.axhline(end - 0.5, color="tab:red", linewidth=0.5)
        axis.axvline(end - 0.5, color="tab:red", linewidth=0.5)
    axis.set(xticks=range(0, 24, 6), yticks=range(0, 24, 6))
    axis.set(title=name, xlabel="is read from hour", ylabel="reconstruction of hour")
    figure.colorbar(image, ax=axis, shrink=0.75, ticks=[0, weights.max().round(2)])
plt.show()

same_hour = np.eye(HOURS, dtype=bool)
same_shift = shift_of_hour[:, None] == shift_of_hour
shares = {
    name: (x[same_hour].sum() / HOURS, x[same_shift].sum() / HOURS)
    for name, x in maps.items()
}
for name, (hour, shift) in shares.items():
    print(f"{name:16} same hour {hour:4.0%}, same shift {shift:4.0%}")
assert shares["full attention"][0] > 0.9
assert shares["bottleneck"][0] < 0.3 and shares["bottleneck"][1] > 0.6

# %% [markdown]
# What is in the four numbers? A linear regression predicts from them the levels of the
# shifts, but not the differences between neighbouring hours of a shift. R² is the share
# of the variance that is explained.


# %%
def r_squared(code, target):
    code = np.concatenate([code, np.ones((len(code), 1))], axis=1)
    predicted = code @ np.linalg.lstsq(code, target, rcond=None)[0]
    residual = ((target - predicted) ** 2).sum(axis=0)
    return 1 - residual / ((target - target.mean(axis=0)) ** 2).sum(axis=0)


code = inner["code"][..., 0]
r_squared_of_levels = r_squared(code, test_levels)
for name, share in zip(SHIFTS, r_squared_of_levels, strict=True):
    print(f"R² of the level of the {name:9} {share:5.2f}")
differences = (test_days - clean)[:, 1:] - (test_days - clean)[:, :-1]
within = shift_of_hour[1:] == shift_of_hour[:-1]
lost = r_squared(code, differences[:, within])
print(f"R² of the differences      {lost.mean():5.2f}")
assert r_squared_of_levels.min() > 0.8
assert lost.mean() < 0.1

# %% [markdown]
# ## Faulty days
#
# On each of 1,000 other days, two hours are wrong: the power is usual in itself, but
# its sign is opposite to that of its shift. The bottleneck cannot express that, so its
# error marks the two hours. Full attention copies the fault.

# %%
faulty, levels = make_days(1000, rng)
row, start = np.arange(1000), rng.integers(HOURS - 1, size=1000)
wrong = np.zeros(faulty.shape, bool)
for hour in (start, start + 1):
    wrong[row, hour] = True
    faulty[row, hour] = -1.5 * np.sign(levels[row, shift_of_hour[hour]])

print(f"{'RMSE of readings':16}  other hours  wrong hours")
outputs, errors = {}, {}
for name, model in inspect.items():
    predicted = model.predict(faulty[..., None], verbose=0)
    outputs[name] = predicted["reconstruction"][..., 0]
    other_hours = rmse(outputs[name][~wrong], faulty[~wrong])
    errors[name] = rmse(outputs[name][wrong], faulty[wrong])
    print(f"{name:16}{other_hours:13.2f}{errors[name]:13.2f}")

figure, axis = plt.subplots(figsize=(9, 3))
axis.axvspan(start[0] - 0.5, start[0] + 1.5, color="0.93")
axis.plot(faulty[0], "o", color="0.3", markersize=7, label="readings")
for name, color in [("full attention", "tab:orange"), ("bottleneck", "tab:blue")]:
    axis.plot(outputs[name][0], color=color, label=name)
axis.set(xlabel="hour", xticks=range(0, 24, 6), ylabel="power")
axis.legend(frameon=False)
plt.show()

assert errors["bottleneck"] > 4 * NOISE
assert errors["full attention"] < 0.1 * NOISE
