"""Models that share their layers with the scheduled sampling of their decoder."""

import inspect
import json

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import assert_close, draw, numpy
from attention_testing.combinations import quick_first
from attention_testing.models import COMPILES, reloaded

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, STEPS, DEPTH, UNITS, WORDS = 2, 5, 7, 11, 13

LINEAR = keras.optimizers.schedules.PolynomialDecay(0.0, 4, 1.0)


@keras.saving.register_keras_serializable(package="keras_attention_tests")
class Decoder(ka.AttentionDecoder):
    """A decoder that attends to its own inputs and returns its output only."""

    def __init__(self, sampling, **kwargs):
        attention = ka.AdditiveAttention(DEPTH)
        cell = ka.AttentionCell(keras.layers.GRUCell(UNITS), attention)
        super().__init__(cell, sampling=sampling, **kwargs)

    def build(self, inputs_shape):
        super().build(inputs_shape, inputs_shape)

    def call(self, inputs, training=None):
        return super().call(inputs, inputs, training=training)["output"]

    @classmethod
    def from_config(cls, config):
        config.pop("cell")
        sampling = keras.saving.deserialize_keras_object(config.pop("sampling"))
        return cls(sampling, **config)


@keras.saving.register_keras_serializable(package="keras_attention_tests")
class Readout(keras.layers.Layer):
    """Words of all steps, or of the rows of one; with dropout."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(WORDS)
        self.dropout = keras.layers.Dropout(0.5)

    def build(self, inputs_shape, outputs_shape):
        self.dense.build((None, UNITS))

    def call(self, inputs, outputs):
        return self.dense(self.dropout(outputs["output"])) + inputs[..., :1]


def model_of(readout=True, compiles=False, **options):
    """A functional model that shares its layers with the sampling of its decoder."""
    ids = keras.Input((None,), dtype="int32")
    embed = keras.layers.Embedding(WORDS, DEPTH, name="embed")
    predict = Readout(name="readout")
    function = predict if readout else lambda *arguments: predict(*arguments)
    decoder = Decoder(ka.ScheduledSampling(embed, function, **options), name="decoder")
    inputs = embed(ids)
    logits = predict(inputs, {"output": decoder(inputs)})
    model = keras.Model(ids, logits)
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=compiles,
    )
    model.optimizer.build(model.trainable_variables)
    return model


def ids_of(rng):
    return rng.integers(WORDS, size=(3, BATCH, STEPS))


@pytest.mark.parametrize("compiles", quick_first([False, COMPILES]))
def test_trains_and_counts_the_passes(rng, compiles):
    model = model_of(rate=ka.InverseSigmoidRate(2), compiles=compiles)
    before = [numpy(x) for x in model.trainable_variables]
    ids = ids_of(rng).reshape(-1, STEPS)

    history = model.fit(ids, ids, batch_size=BATCH, epochs=2, verbose=0)
    model.predict(ids, verbose=0)

    assert np.isfinite(history.history["loss"]).all()
    assert int(model.get_layer("decoder").sampling.passes) == 2 * 3
    for variable, old in zip(model.trainable_variables, before, strict=True):
        assert (numpy(variable) != old).any(), variable.path


def test_borrows_without_owning():
    model = model_of()
    decoder = model.get_layer("decoder")

    # Three of its cell, three of its attention.
    assert len(decoder.trainable_variables) == 6
    assert len(model.trainable_variables) == 1 + 6 + 2
    decoder.trainable = False
    assert len(model.trainable_variables) == 1 + 2


@pytest.mark.parametrize("rate", [LINEAR, 0.5])
@pytest.mark.exhaustive
def test_model_comes_back_from_its_file_and_trains_on(rng, tmp_path, rate):
    model = model_of(rate=rate, seed=3)
    ids = ids_of(rng)
    model.fit(ids[0], ids[0], verbose=0)
    expected = model.predict(ids[1], verbose=0)

    restored = reloaded(model, tmp_path)

    np.testing.assert_allclose(restored.predict(ids[1], verbose=0), expected, 1e-5)
    decoder = restored.get_layer("decoder")
    shared = restored.get_layer("embed"), restored.get_layer("readout")
    assert decoder.sampling._functions() == shared
    assert int(decoder.sampling.passes) == 1
    restored.fit(ids[1], ids[1], verbose=0)
    assert int(decoder.sampling.passes) == 2
    old, new = model.get_layer("decoder").sampling, decoder.sampling
    assert json.dumps(old.get_config()) == json.dumps(new.get_config())


@pytest.mark.exhaustive
def test_functions_are_set_anew_after_loading(rng, tmp_path):
    model = model_of(readout=False)
    ids = ids_of(rng)
    expected = model.predict(ids[0], verbose=0)

    restored = reloaded(model, tmp_path)

    np.testing.assert_allclose(restored.predict(ids[0], verbose=0), expected, 1e-5)
    sampling = restored.get_layer("decoder").sampling
    with pytest.raises(ValueError, match=r"predict is missing.*set_functions.*None"):
        sampling.draw(STEPS, (BATCH,))
    sampling.set_functions(restored.get_layer("embed"), restored.get_layer("readout"))
    restored.fit(ids[0], ids[0], verbose=0)


@keras.saving.register_keras_serializable(package="keras_attention_tests")
def of_the_output(inputs, outputs):
    return outputs["output"]


def test_registered_functions_and_the_rate_come_back_from_a_config():
    embed = keras.layers.Embedding(WORDS, DEPTH)
    rate = ka.InverseSigmoidRate(5)
    sampling = ka.ScheduledSampling(embed, of_the_output, rate, seed=3)

    config = json.loads(json.dumps(keras.saving.serialize_keras_object(sampling)))
    restored = keras.saving.deserialize_keras_object(config)

    embed, predict = restored._functions()
    assert predict is of_the_output
    assert type(embed) is keras.layers.Embedding
    assert restored.rate.k == 5
    arguments = set(inspect.signature(ka.ScheduledSampling).parameters) - {"kwargs"}
    assert set(sampling.get_config()) == {"name", "trainable", "dtype"} | arguments


class Classifier(keras.Model):
    """A model without a graph, with dropout after its decoder."""

    def __init__(self):
        super().__init__()
        self.embed, self.readout = keras.layers.Embedding(WORDS, DEPTH), Readout()
        self.last = keras.layers.Dropout(0.5)
        self.decoder = Decoder(ka.ScheduledSampling(self.embed, self.readout))

    def call(self, ids):
        inputs = self.embed(ids)
        output = self.last(ops.ones_like(self.decoder(inputs)))
        self.readout(inputs, {"output": output})
        return output


def test_layers_after_the_decoder_stay_in_training_mode(rng):
    model, ids = Classifier(), ids_of(rng)[0]
    model(ids)

    outputs = numpy(model(ids, training=True))

    assert set(np.unique(outputs)) == {0, 2}
    assert (numpy(model(ids, training=False)) == 1).all()


def test_words_are_sampled_without_dropout(rng):
    outputs = {"output": draw(rng, (1, UNITS))}
    readout = Readout()
    inputs = np.zeros((1, DEPTH), "float32")
    logits = numpy(readout(inputs, outputs))
    seen = []

    class Decoding(keras.layers.Layer):
        def call(self, inputs, training=None):
            noise = {"use_sample": ops.ones(1, "bool"), "uniform": ops.zeros(1)}
            return sampling.choose(noise, inputs, inputs, outputs)

    def predict(*arguments):
        seen.append(readout(*arguments))
        return seen[-1]

    embed = keras.layers.Embedding(WORDS, DEPTH)
    embed.build((None,))
    sampling = ka.ScheduledSampling(embed, predict)
    for _ in range(3):
        Decoding()(inputs, training=True)

    np.testing.assert_allclose(numpy(seen), [logits] * 3, rtol=1e-6)


def test_a_file_with_sampling_loads_without_it(rng, tmp_path):
    model, ids = Classifier(), ids_of(rng)[0]
    expected = model(ids)
    model.save_weights(tmp_path / "model.weights.h5")

    other = Classifier()
    other.decoder.sampling = None
    other(ids)
    other.load_weights(tmp_path / "model.weights.h5")

    assert_close(other(ids), expected, atol=0)
    assert_close(other.trainable_variables, model.trainable_variables, atol=0)
