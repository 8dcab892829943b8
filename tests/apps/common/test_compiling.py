import keras
import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network.decoder_network import (
    computing_in,
    with_cast_weights,
)
from keras_attention_apps.common.task import Task


def layer_in(precision):
    with computing_in(precision):
        layer = keras.layers.Dense(3, bias_initializer="uniform")
        layer.build((None, 5))
    return layer


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_the_weights_of_a_search_are_cast_before_its_steps(precision):
    layer, actual = layer_in(precision), {}

    def step(x, state):
        actual["dtypes"] = [
            keras.backend.standardize_dtype(weight.value.dtype)
            for weight in (layer.kernel, layer.bias)
        ]
        return layer(x), state

    x = np.random.default_rng(0).normal(size=(2, 5)).astype("float32")
    output, state = with_cast_weights(step, layer)(x, "a state")

    assert actual["dtypes"] == [precision.removeprefix("mixed_"), "float32"]
    assert state == "a state"
    output, expected = (
        keras.ops.convert_to_numpy(keras.ops.cast(y, "float32"))
        for y in (output, layer(x))
    )
    np.testing.assert_array_equal(output, expected)
    # Outside of the step, the weights are unchanged.
    step(x, state)
    assert actual["dtypes"] == ["float32", "float32"]
    assert with_cast_weights(step, layer_in("float32")) is step


def test_compiled_search_is_not_for_pytorch(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(UserError, match="jit_compile needs TensorFlow or JAX"):
        Task(config=None, tokenizer=None, network=None, jit_compile=True)
