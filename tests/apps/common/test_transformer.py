"""The layers of the Transformer, against the equations of the paper."""

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import numpy, softmax
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network.transformer import TransformerDecoder

SOURCES, SEQUENCES, TARGET, POSITIONS = 2, 3, 5, 7
DEPTH, SOURCE_DEPTH, HEADS, UNITS = 4, 11, 2, 13


@pytest.fixture(scope="module")
def inputs():
    random = np.random.default_rng(1)
    x = random.normal(size=(SOURCES, SEQUENCES, TARGET, DEPTH)).astype("float32")
    values = random.normal(size=(SOURCES, POSITIONS, SOURCE_DEPTH)).astype("float32")
    mask = np.ones((SOURCES, POSITIONS), "bool")
    mask[1, 4:] = False
    return x, values, mask


def decoder_of(layers, **options):
    keras.utils.set_random_seed(1)
    decoder = TransformerDecoder(layers, DEPTH, heads=HEADS, units=UNITS, **options)
    decoder.build((None, None, DEPTH), (None, None, SOURCE_DEPTH))
    for weight in decoder.trainable_weights:
        weight.assign(keras.random.normal(weight.shape, stddev=0.5, seed=2))
    return decoder


def normalized(layer, x):
    gamma, beta = numpy(list(layer.weights))
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-3)
    return gamma * (x - x.mean(axis=-1, keepdims=True)) / deviation + beta


def dense(layer, x):
    kernel, bias = numpy(list(layer.weights))
    return x @ kernel + bias


def attended(layer, x, values, mask):
    """Return contexts and mean weights of one sequence, head by head."""
    query = dense(layer.step.query_projection, x)
    key = dense(layer.memory.key_projection, values)
    value = dense(layer.memory.value_projection, values)
    width, contexts, maps = DEPTH // HEADS, [], []
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        scores = query[:, part] @ key[:, part].T / np.sqrt(width)
        maps.append(softmax(np.where(mask, scores, -1e9)))
        contexts.append(maps[-1] @ value[:, part])
    output = dense(layer.step.output_projection, np.concatenate(contexts, axis=-1))
    return output, np.mean(maps, axis=0)


def test_a_layer_is_the_equation_of_the_paper(inputs):
    x, values, mask = inputs
    decoder = decoder_of(1)
    [layer] = decoder.layers
    outputs, weights = numpy(decoder(x, values, mask, return_weights=True))

    for source, row in np.ndindex(SOURCES, SEQUENCES):
        seen = np.tri(TARGET, dtype="bool")
        y = x[source, row]
        z = normalized(layer.self_attention_norm, y)
        y = y + attended(layer.self_attention, z, z, seen)[0]
        z, attention = normalized(layer.cross_attention_norm, y), layer.cross_attention
        context, maps = attended(attention, z, values[source], mask[source])
        y = y + context
        network = layer.feed_forward
        z = dense(network.hidden_projection, normalized(layer.feed_forward_norm, y))
        y = y + dense(network.output_projection, np.maximum(z, 0.0))
        expected = normalized(decoder.norm, y)
        np.testing.assert_allclose(outputs[source, row], expected, atol=1e-4)
        np.testing.assert_allclose(weights[source, row], maps, atol=1e-5)


def test_steps_equal_the_pass(inputs):
    x, values, mask = inputs
    decoder = decoder_of(3)
    outputs, weights = numpy(decoder(x, values, mask, return_weights=True))
    memory = decoder.memory(ops.convert_to_tensor(values), ops.convert_to_tensor(mask))
    shape = (SOURCES, SEQUENCES)
    caches = keras.tree.map_structure(
        lambda x: ops.reshape(x, (*shape, *x.shape[1:])),
        decoder.get_initial_cache(SOURCES * SEQUENCES, TARGET),
    )

    for step in range(TARGET):
        token = ops.convert_to_tensor(x[:, :, step])
        output, caches, step_weights = decoder.step(token, caches, memory)
        np.testing.assert_allclose(numpy(output), outputs[:, :, step], atol=1e-5)
        np.testing.assert_allclose(numpy(step_weights), weights[:, :, step], atol=1e-5)


def test_the_depth_is_shared_by_the_heads():
    with pytest.raises(UserError, match=r"multiple of heads. Received: 9 and 2"):
        TransformerDecoder(1, 9, heads=2, units=3)
