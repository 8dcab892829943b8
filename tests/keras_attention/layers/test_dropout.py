import keras
import numpy as np
import pytest

from attention_testing.arrays import assert_close, numpy
from keras_attention import Dropout

RATE = 0.3


@pytest.fixture
def ones():
    return np.ones((200, 50), "float32")


@pytest.mark.parametrize("noise_shape", [None, (None, 1), (1, None)])
def test_masks_are_those_of_keras(ones, noise_shape):
    ours = Dropout(RATE, noise_shape, seed=3)
    theirs = keras.layers.Dropout(RATE, noise_shape, seed=3)
    # The generators of both move on.
    for _ in range(2):
        assert_close(ours(ones, training=True), theirs(ones, training=True), 0)
    assert_close(ours(ones), ones, 0)


def test_rates_at_both_ends(ones):
    assert_close(Dropout(0)(ones, training=True), ones, 0)
    assert_close(Dropout(1)(ones, training=True), 0 * ones, 0)


def test_a_layer_is_restored_with_its_options():
    layer = Dropout(RATE, (None, 1), seed=3)
    restored = Dropout.from_config(layer.get_config())
    assert restored.get_config() == layer.get_config()


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="XLA on JAX has a generator of JAX"
)
def test_xla_does_not_derive_a_key_for_every_number(ones):
    import tensorflow as tf

    layer = Dropout(RATE, seed=3)
    call = tf.function(lambda x: layer(x, training=True), jit_compile=True)
    first, second = numpy(call(ones)), numpy(call(ones))
    for output in (first, second):
        assert_close(output[output != 0], 1 / (1 - RATE), 1e-6)
        assert np.mean(output == 0) == pytest.approx(RATE, abs=0.03)
    both = np.mean((first == 0) & (second == 0))
    assert both == pytest.approx(RATE**2, abs=0.03)
    program = call.experimental_get_compiler_ir(ones)(stage="hlo")
    assert "rng-bit-generator" in program
    assert "StatelessRandomGetKeyCounter" not in program
