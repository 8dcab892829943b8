# %% [markdown]
# # Which months a forecast looks at
#
# A recurrent network that reads a time series has to carry in its state everything
# that it will need. With attention it can go back: the decoder looks at the month that
# matters when it needs it. We forecast the next twelve months of a product's sales from
# the last three years, with and without attention, and then look at the lags that the
# attention has found.
#
# ## The data
#
# We generate sales of several thousand products, so that the best possible forecast is
# known. Each product has its own **seasonal pattern**, which changes from year to year:
#
# $$\text{season}_{y,m} = 0.9 \; \text{season}_{y-1,m} + \varepsilon_{y,m} \qquad
#   \text{sales}_{y,m} = \text{season}_{y,m} + \text{noise}$$
#
# Only the same month of earlier years says anything about a month: lags 12, 24 and 36.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    AttentionDecoder,
    RecurrentEncoder,
)

plt.rc("figure", dpi=100)
plt.rc("figure.constrained_layout", use=True)
plt.rc("axes.spines", top=False, right=False)

PAST, AHEAD = 36, 12
PERSISTENCE, NOISE = 0.9, 0.3


def make_products(count, rng):
    """Return sales (count, 48) and the calendar month of each of them, from 0."""
    season = rng.normal(size=(count, 4, 12))
    for year in range(1, 4):
        season[:, year] *= np.sqrt(1 - PERSISTENCE**2)
        season[:, year] += PERSISTENCE * season[:, year - 1]
    sales = season + NOISE * rng.normal(size=season.shape)
    months = (rng.integers(12, size=(count, 1)) + np.arange(PAST + AHEAD)) % 12
    return sales.reshape(count, -1).astype("float32"), months


def as_inputs(sales, months):
    return [sales[:, :PAST, None], months[:, :PAST], months[:, PAST:]]


rng = np.random.default_rng(1)
sales, months = make_products(2560, rng)
test_sales, test_months = make_products(1000, rng)
test_inputs, test_targets = as_inputs(test_sales, test_months), test_sales[:, PAST:]


def rmse(forecast):
    return float(np.sqrt(np.mean((forecast - test_targets) ** 2)))


# %% [markdown]
# There are two reference forecasts. The simplest forecast repeats the last year. The
# best one is a weighted sum of the same month in all three years; its weights follow
# from the covariances of the process.

# %%
covariance = PERSISTENCE ** np.abs(np.subtract.outer([1, 2, 3], [1, 2, 3]))
best_weights = np.linalg.solve(
    covariance + NOISE**2 * np.eye(3), PERSISTENCE ** np.array([1, 2, 3])
)
years_before = test_sales[:, :PAST].reshape(-1, 3, 12)[:, ::-1]
results = {
    "last year": [rmse(years_before[:, 0])],
    "best possible": [rmse(np.einsum("pym,y->pm", years_before, best_weights))],
}
print("best weights of lags 12, 24, 36:", best_weights.round(2))

# %% [markdown]
# ## The model
#
# The encoder is a GRU over the past. The decoder is a GRU over the months ahead, which
# starts with the encoder's last state. Its inputs are the calendar months only.
#
# - *Without attention*, the last state is all that the decoder knows of the past.
# - *With attention*, each step of the decoder also reads a weighted sum of all states
#   of the encoder. The query consists of the decoder's state and the month that is to
#   be forecast (`input_in_query`).
#
# Everything else is the same.


# %%
def build(with_attention):
    past_sales = keras.Input((PAST, 1))
    past_months = keras.Input((PAST,), dtype="int32")
    next_months = keras.Input((AHEAD,), dtype="int32")
    one_hot = keras.layers.Embedding(
        12, 12, embeddings_initializer="identity", trainable=False
    )
    past = keras.layers.Concatenate()([past_sales, one_hot(past_months)])
    encoder = RecurrentEncoder(keras.layers.GRUCell(32), return_state=True)
    states, last_state = encoder(past)
    if with_attention:
        cell = AttentionCell(
            keras.layers.GRUCell(32), AdditiveAttention(32), input_in_query=True
        )
        steps = AttentionDecoder(cell)(
            one_hot(next_months), states, {"cell": [last_state]}
        )
        read = keras.layers.Concatenate()([steps["output"], steps["context"]])
    else:
        decoder = keras.layers.GRU(32, return_sequences=True)
        read = decoder(one_hot(next_months), initial_state=last_state)
    inputs = [past_sales, past_months, next_months]
    forecast = keras.layers.Dense(1)(read)
    model = keras.Model(inputs, keras.layers.Reshape((AHEAD,))(forecast))
    # The same layers, with the weights as output.
    return model, keras.Model(inputs, steps["weights"]) if with_attention else None


def train(with_attention, epochs, seed):
    keras.utils.set_random_seed(seed)
    model, attention = build(with_attention)
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    model.fit(
        as_inputs(sales, months),
        sales[:, PAST:],
        batch_size=128,
        epochs=epochs,
        verbose=0,
    )
    return model.predict(test_inputs, batch_size=1000, verbose=0), attention


# %% [markdown]
# Because the model without attention learns more slowly, it gets twice as many epochs.
# Each is trained with two seeds:

# %%
forecasts = {}
for name, with_attention, epochs in [
    ("GRU, 20 epochs", False, 20),
    ("GRU with attention, 10 epochs", True, 10),
]:
    results[name] = []
    for seed in (1, 2):
        forecasts[name], attention = train(with_attention, epochs, seed)
        results[name].append(rmse(forecasts[name]))

for name, errors in results.items():
    print(f"{name:30} RMSE", *(f"{error:.3f}" for error in errors))

plain, attentive = results["GRU, 20 epochs"], results["GRU with attention, 10 epochs"]
assert max(attentive) < 0.85 * min(plain)
assert max(attentive) < 1.05 * results["best possible"][0]

# %% [markdown]
# With attention the forecast is close to the best possible one. Without it, 32 numbers
# have to carry twelve months of sales, and the GRU does worse than repeating the last
# year. (Its error still falls after 20 epochs: it can learn this, but slowly.)
#
# ## Where it looks
#
# Left: the attention of every month ahead (rows) over the past (columns), averaged over
# the test products. Nothing told the model which lags matter; it learned to look one
# year back, and a little at the year before. Right: the same weights by lag, beside
# those of the best possible forecast.

# %%
weights = keras.ops.convert_to_numpy(attention(test_inputs))
average = weights.mean(axis=0)
lags = PAST + np.arange(AHEAD)[:, None] - np.arange(PAST)
by_lag = np.array([average[lags == lag].mean() for lag in range(1, lags.max() + 1)])
print("attention to lags 12, 24, 36:", by_lag[[11, 23, 35]].round(2))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 2.9), width_ratios=[3, 2])
image = left.imshow(
    average,
    cmap="Blues",
    vmin=0,
    vmax=0.8,
    extent=(-PAST - 0.5, -0.5, AHEAD + 0.5, 0.5),
)
left.set(xlabel="month of the past", ylabel="month ahead", title="attention")
left.set(xticks=range(-36, 0, 6), yticks=[1, 6, 12])
figure.colorbar(image, ax=left, ticks=[0, 0.4, 0.8], shrink=0.8)
right.bar(np.arange(1, len(by_lag) + 1), by_lag, color="tab:blue", label="attention")
right.plot([12, 24, 36], best_weights, "o", color="tab:red", label="best weights")
right.set(xlabel="lag in months", xticks=[1, 12, 24, 36], title="weight by lag")
right.legend(frameon=False)
plt.show()

assert by_lag[11] > by_lag[23] > by_lag[35]
assert by_lag[[11, 23, 35]].sum() > 0.75

# %% [markdown]
# One product of the test set: three years of sales, what followed, and both forecasts.
# The area of the blue dots is the attention when the model forecasts its highest month
# (star).

# %%
past, ahead = np.arange(-PAST, 0), np.arange(AHEAD)
plain_forecast, forecast = (x[0] for x in forecasts.values())
peak = forecast.argmax()

figure, axis = plt.subplots(figsize=(10, 3))
axis.plot(past, test_sales[0, :PAST], color="0.6")
axis.scatter(past, test_sales[0, :PAST], 250 * weights[0, peak], color="tab:blue")
axis.plot(ahead, test_targets[0], color="black", label="what followed")
axis.plot(ahead, plain_forecast, "--", color="tab:orange", label="GRU")
axis.plot(ahead, forecast, "--", color="tab:blue", label="GRU with attention")
axis.plot(peak, forecast[peak], "*", color="tab:blue", markersize=14)
axis.axvline(-0.5, color="0.8", linewidth=1)
axis.set(xlabel="month", xticks=range(-36, 12, 6), xlim=(-37, 12), ylabel="sales")
axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
plt.show()
