"""Quantised models come back from their files."""

import gc

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import draw
from attention_testing.models import reloaded

pytestmark = pytest.mark.usefixtures("seeded")

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS = 2, 3, 5
QUERY_DIM, VALUE_DIM, UNITS, STATE_UNITS, WORDS = 7, 11, 13, 17, 19


@keras.saving.register_keras_serializable(package="test_quantization")
class DenseCell(keras.layers.Layer):
    """Recurrent cell with a sublayer that Keras quantises."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = units
        self.dense = keras.layers.Dense(units, "tanh", name="dense")

    def build(self, inputs_shape):
        self.dense.build((None, inputs_shape[-1] + self.units))

    def call(self, inputs, states, training=None):
        output = self.dense(ops.concatenate([inputs, states[0]], axis=-1))
        return output, [output]

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def step_of_a_cell(query, value):
    options = {"order": "current", "attentional_vector": UNITS, "gate": True}
    attention = ka.LuongAttention("general")
    cell = ka.AttentionCell(keras.layers.GRUCell(STATE_UNITS), attention, **options)
    start = keras.layers.Dense(STATE_UNITS)(query[:, 1])
    outputs, state = cell(query[:, 0], {"cell": [start]}, cell.attention.memory(value))
    return outputs["output"], state["cell"]


def decoder(query, value):
    first, second = ka.AdditiveAttention(UNITS), ka.MultiHeadAttention(2, 3)
    gate = keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(1, "sigmoid")])
    options = {"attentional_vector": UNITS, "input_feeding": True, "gate": gate}
    cell = ka.AttentionCell(
        keras.layers.StackedRNNCells([DenseCell(5), ka.LayerNormGRUCell(STATE_UNITS)]),
        [first, second, ka.AdditiveAttention(5)],
        **options,
    )
    return ka.AttentionDecoder(cell)(query, value)["output"]


def sampling_decoder(query, value):
    embed = keras.layers.Embedding(WORDS, QUERY_DIM, name="embed")
    sampling = ka.ScheduledSampling(embed, None)
    attention = ka.AdditiveAttention(UNITS)
    cell = ka.AttentionCell(keras.layers.GRUCell(STATE_UNITS), attention)
    embedded = embed(ops.cast(query[..., 0] > 0, "int32"))
    return ka.AttentionDecoder(cell, sampling=sampling)(embedded, value)["output"]


MODELS = {
    "additive": lambda q, v: ka.AdditiveAttention(UNITS, coverage=True)(q, v),
    "general": lambda q, v: ka.LuongAttention("general", use_bias=True)(q, v),
    "location": lambda q, v: ka.LuongAttention("location", positions=POSITIONS)(q, v),
    "local-p": lambda q, v: ka.LuongAttention(
        "concat", units=UNITS, window="local-p", half_width=1
    )(q, v),
    "parts": lambda q, v: ka.Attention(ka.GeneralScore(), keras.layers.Dense(UNITS))(
        q, v
    ),
    "heads": lambda q, v: ka.MultiHeadAttention(2, 3)(q, v),
    "self-attention": lambda q, v: ka.SelfAttention(2, 3)(q),
    "pooling": lambda q, v: ka.AttentionPooling(UNITS, hops=2)(v),
    "encoder": lambda q, v: ka.RecurrentEncoder(
        DenseCell(STATE_UNITS), DenseCell(STATE_UNITS)
    )(ka.PositionEncoding()(v)),
    "cell": step_of_a_cell,
    "decoder": decoder,
    "scheduled sampling": sampling_decoder,
}


def model_of(names):
    """A model of several models, which are quantised and saved together."""
    query, value = keras.Input((QUERIES, QUERY_DIM)), keras.Input((None, VALUE_DIM))
    return keras.Model([query, value], [MODELS[name](query, value) for name in names])


def outputs_of(model, data):
    outputs = keras.tree.flatten(model(data))
    return np.concatenate([ops.convert_to_numpy(x).ravel() for x in outputs])


def modes_of(model):
    """Return the modes of all layers that are quantised."""
    modes = [layer.quantization_mode for layer in model._flatten_layers()]
    return [mode for mode in modes if mode is not None]


@pytest.fixture(autouse=True)
def few_objects_to_collect():
    """Hide earlier objects from the garbage collector.

    Keras runs it for every weight that is quantised, which takes seconds each time in a
    process with the objects of many tests.
    """
    gc.freeze()
    yield
    gc.unfreeze()


# Which weights are quantised does not depend on the mode.
SOME = ["local-p", "self-attention", "decoder"]


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("int8", ["pooling"]),
        pytest.param("int8", list(MODELS), marks=pytest.mark.exhaustive),
        pytest.param("int4", SOME, marks=pytest.mark.exhaustive),
        pytest.param("float8", SOME, marks=pytest.mark.exhaustive),
    ],
)
def test_quantised_models_come_back_from_their_file(mode, names, rng, tmp_path):
    shapes = (BATCH, QUERIES, QUERY_DIM), (BATCH, POSITIONS, VALUE_DIM)
    model, data = model_of(names), draw(rng, *shapes)
    model.quantize(mode)
    expected = outputs_of(model, data)
    restored = reloaded(model, tmp_path)

    np.testing.assert_allclose(outputs_of(restored, data), expected, atol=1e-6)
    assert set(modes_of(model)) == {mode}
    assert modes_of(restored) == modes_of(model)


def model_with(weighting):
    value = keras.Input((POSITIONS, VALUE_DIM))
    layer = ka.AdditiveAttention(UNITS, weighting=weighting)
    return keras.Model(value, layer(value, value))


@pytest.mark.parametrize("weighting", ["hard", "sparsemax", "entmax", "mocha"])
def test_coarse_quantisation_of_a_layer_that_selects_positions_warns(weighting):
    model = model_with(weighting)

    with pytest.warns(UserWarning, match="may select other.*Received: mode='int4'"):
        model.quantize("int4")


@pytest.mark.parametrize(
    ("mode", "weighting"),
    [("int8", "hard"), ("int4", "softmax"), ("int4", "monotonic")],
)
def test_other_quantisation_does_not_warn(mode, weighting):
    model_with(weighting).quantize(mode)
