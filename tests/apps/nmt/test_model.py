import functools

import keras
import numpy as np
import pytest
from keras import ops, tree

from attention_testing.arrays import assert_close, numpy
from keras_attention import beam_search
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network.decoder_network import SearchModel
from keras_attention_apps.common.options import with_defaults
from keras_attention_apps.nmt.config import RECIPES, ModelConfig
from keras_attention_apps.nmt.network import build_network

from .conftest import TINY

BATCH, SOURCE, TARGET, SIZE, MAX_LENGTH = 3, 5, 4, 29, 7
NETWORKS = [
    {"attention": "bahdanau"},
    {"attention": "luong"},
    {"attention": "luong", "window": "local-p", "score": "concat", "units": 10},
    {"attention": "luong", "score": "dot", "units": 14, "input_feeding": False},
    {"attention": "luong", "decoder_layers": 3},
    {"attention": "self-attention"},
    {"attention": "none"},
]


def network_of(changes, **options):
    keras.utils.set_random_seed(5)
    config = ModelConfig(
        **{**TINY, "encoder_layers": 2, "decoder_layers": 2, **changes}
    )
    config = with_defaults(config, RECIPES[changes["attention"]])
    return build_network(config, SIZE, label_smoothing=0.1, **options)


def tensors(inputs):
    return tree.map_structure(ops.convert_to_tensor, inputs)


def sentences():
    random = np.random.default_rng(2)
    source = random.integers(4, SIZE, (BATCH, SOURCE)).astype("int32")
    target = random.integers(4, SIZE, (BATCH, TARGET + 1)).astype("int32")
    target[:, 0] = 1
    source[1, 3:] = target[2, 3:] = 0
    return {"source": source, "target": target}


@pytest.mark.parametrize("changes", NETWORKS, ids=str)
def test_steps_equal_the_pass(changes):
    network, inputs = network_of(changes), sentences()
    expected = numpy(ops.log_softmax(network.logits(network(inputs))))
    memory, state = network.begin(tensors(inputs), MAX_LENGTH)
    # Two hypotheses of every row; the second is the reversed first.
    state = tree.map_structure(lambda x: ops.stack([x, x], axis=1), state)
    other = np.concatenate([inputs["target"][:, :1], inputs["target"][:, :0:-1]], 1)
    tokens = np.stack([inputs["target"], other], 1)
    _, aligned = network.decode(
        inputs["target"][:, :-1], network.encode(inputs["source"]), return_weights=True
    )
    for t in range(TARGET):
        token = ops.convert_to_tensor(tokens[:, :, t])
        log_probs, state, weights = network.step(token, state, memory)
        assert_close(numpy(log_probs)[:, 0], expected[:, t], 1e-4)
        weights = numpy(weights)
        np.testing.assert_allclose(weights[:, 0], numpy(aligned)[:, t], atol=1e-5)
    if changes["attention"] != "none":
        assert weights.shape == (BATCH, 2, SOURCE)
        assert not weights[1, :, 3:].any() and weights[0].all(axis=-1).any()


@pytest.mark.parametrize("layers, first", [(1, 0), (3, 1)])
def test_all_layers_but_the_lowest_align(layers, first, monkeypatch):
    network = network_of({"attention": "self-attention", "decoder_layers": layers})
    looked = []

    def record(attend):
        def recorded(*arguments, **options):
            outputs, state = attend(*arguments, **{**options, "return_weights": True})
            looked.append(numpy(outputs["weights"]).mean(axis=1))
            return outputs, state

        return recorded

    for layer in network.transformer.layers:
        step = layer.cross_attention.step
        monkeypatch.setattr(step, "call", record(step.call))
    memory, state = network.begin(tensors(sentences()), MAX_LENGTH)
    state = tree.map_structure(lambda x: x[:, None], state)
    _, _, weights = network.step(ops.ones((BATCH, 1), "int32"), state, memory)

    expected = np.mean(looked[first:], axis=0)
    np.testing.assert_allclose(numpy(weights), expected, atol=1e-6)


@pytest.mark.parametrize("changes", [NETWORKS[i] for i in (0, 1, 5, 6)], ids=str)
def test_padding_changes_nothing(changes):
    network, inputs = network_of(changes), sentences()
    padded = {name: np.pad(x, ((0, 1), (0, 2))) for name, x in inputs.items()}
    hidden = numpy(network(inputs))
    more = numpy(network(padded))

    assert np.isfinite(more).all()
    np.testing.assert_allclose(more[:BATCH, :TARGET], hidden, atol=1e-5)
    loss = network.compute_loss(inputs, None, network(inputs))
    again = network.compute_loss(padded, None, network(padded))
    np.testing.assert_allclose(float(again), float(loss), rtol=1e-5)


def test_the_loss_is_that_of_a_token():
    network, inputs = network_of(NETWORKS[0]), sentences()
    logits = numpy(network.logits(network(inputs)))
    losses = []
    for b, t in np.argwhere(inputs["target"][:, 1:]):
        log_probs = logits[b, t] - np.log(np.exp(logits[b, t]).sum())
        log_prob = log_probs[inputs["target"][b, t + 1]]
        losses.append(-0.9 * log_prob - 0.1 * log_probs.mean())

    loss = network.compute_loss(inputs, None, network(inputs))
    np.testing.assert_allclose(float(loss), np.mean(losses), rtol=1e-5)


def test_without_attention_only_a_summary_is_known():
    memory, _ = network_of(NETWORKS[-1]).begin(tensors(sentences()), MAX_LENGTH)
    assert memory["decoder"]["values"].shape == (BATCH, 1, 14)


def test_the_decoder_and_the_attention_determine_each_other():
    assert ModelConfig(decoder="transformer").attention == "self-attention"
    assert ModelConfig(attention="self-attention").decoder == "transformer"
    assert ModelConfig(attention="luong").decoder == "recurrent"
    assert ModelConfig(decoder="recurrent").attention is None


@pytest.mark.parametrize("attention", ["luong", "self-attention"])
def test_a_search_never_returns_banned_tokens(eager, attention):
    network = network_of({"attention": attention})
    find = functools.partial(beam_search, beam_size=3)
    search = SearchModel(network, find, MAX_LENGTH, banned=(0, 1, 3, 7))
    outputs = search.predict_on_batch({"source": sentences()["source"]})

    assert outputs["token_ids"].shape == (BATCH, 3, MAX_LENGTH)
    assert not np.isin(outputs["token_ids"], (0, 1, 3, 7)).any()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attention": "self-attention", "heads": 5}, "a multiple of heads"),
        ({"attention": "luong", "score": "dot", "units": 13}, "depth 13, key depth 14"),
        ({"attention": "luong", "units": 0}, "cannot be built: .*Received: 0"),
        ({"attention": "bahdanau", "encoder_units": 0}, "encoder_units .*Received: 0"),
    ],
)
def test_invalid_sizes_are_one_line_errors(changes, message, recwarn):
    with pytest.raises(UserError, match=message) as raised:
        network_of(changes)

    assert str(raised.value).isprintable()
    assert "Exception encountered" not in str(raised.value)
    assert not recwarn.list
