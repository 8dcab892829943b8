"""Transformer layers: PyTorch's and KerasHub's with the same weights, and the contract.

Every dimension is a different prime, but for the depth, which the heads share.
"""

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import numpy
from attention_testing.layers.keras_contract import restored_from_json
from attention_testing.models import fit, reloaded
from keras_attention import (
    HardWeighting,
    MultiHeadAttention,
    SelfAttention,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)

BATCH, SEQUENCES, STEPS, POSITIONS = 2, 3, 5, 7
HEADS, HEAD_DEPTH, DEPTH, VALUE_DEPTH, UNITS = 2, 3, 6, 11, 13


def encoder(causal=False, weighting="softmax", **options):
    attention = SelfAttention(HEADS, HEAD_DEPTH, causal=causal, weighting=weighting)
    return TransformerEncoderLayer(attention, UNITS, **options)


def decoder(weighting="softmax", **options):
    attentions = (
        SelfAttention(HEADS, HEAD_DEPTH, causal=True, weighting=weighting),
        MultiHeadAttention(HEADS, HEAD_DEPTH, weighting=weighting),
    )
    return TransformerDecoderLayer(*attentions, UNITS, **options)


def randomize(layer):
    """Give all weights random values; biases and norms start with zeros and ones."""
    random = np.random.default_rng(7)
    for weight in layer.trainable_variables:
        weight.assign(random.normal(size=weight.shape).astype("float32") / 2)


@pytest.fixture
def data(rng):
    inputs = rng.normal(size=(BATCH, STEPS, DEPTH)).astype("float32")
    value = rng.normal(size=(BATCH, POSITIONS, DEPTH)).astype("float32")
    mask = np.arange(STEPS) < np.array([[STEPS], [3]])
    value_mask = np.arange(POSITIONS) < np.array([[4], [POSITIONS]])
    return inputs, value, mask, value_mask


def projections(attention):
    """Return the projections of an attention: query, key, value and output."""
    memory, step = attention.memory, attention.step
    return (
        step.query_projection,
        memory.key_projection,
        memory.value_projection,
        step.output_projection,
    )


def torch_weights(layer):
    """Return the weights of a layer under the names of PyTorch's."""
    weights = {}
    names = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}
    for ours, theirs in names.items():
        if not hasattr(layer, ours):
            continue
        *inputs, output = projections(getattr(layer, ours))
        kernels = [numpy(x.kernel).T for x in inputs]
        weights[f"{theirs}.in_proj_weight"] = np.concatenate(kernels)
        biases = [numpy(x.bias) for x in inputs]
        weights[f"{theirs}.in_proj_bias"] = np.concatenate(biases)
        weights[f"{theirs}.out_proj.weight"] = numpy(output.kernel).T
        weights[f"{theirs}.out_proj.bias"] = numpy(output.bias)
    network = layer.feed_forward
    for name, dense in (
        ("linear1", network.hidden_projection),
        ("linear2", network.output_projection),
    ):
        weights[f"{name}.weight"] = numpy(dense.kernel).T
        weights[f"{name}.bias"] = numpy(dense.bias)
    norms = ("self_attention_norm", "cross_attention_norm", "feed_forward_norm")
    present = [name for name in norms if hasattr(layer, name)]
    for number, name in enumerate(present, 1):
        norm = getattr(layer, name)
        weights[f"norm{number}.weight"] = numpy(norm.gamma)
        weights[f"norm{number}.bias"] = numpy(norm.beta)
    return weights


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_pytorch_with_the_same_weights_gives_the_same_outputs(kind, norm_first, data):
    torch = pytest.importorskip("torch")
    inputs, value, mask, value_mask = data
    activation = "gelu" if norm_first else "relu"
    options = {"activation": activation, "norm_first": norm_first}
    layer = encoder(**options) if kind == "encoder" else decoder(**options)
    tensors = [inputs] if kind == "encoder" else [inputs, value]
    layer(*tensors)
    randomize(layer)
    peers = {
        "encoder": torch.nn.TransformerEncoderLayer,
        "decoder": torch.nn.TransformerDecoderLayer,
    }
    peer = peers[kind](DEPTH, HEADS, UNITS, 0.0, batch_first=True, **options).eval()
    state = {name: torch.tensor(x) for name, x in torch_weights(layer).items()}
    peer.load_state_dict(state)
    # Where PyTorch's mask is `True`, a position is hidden.
    masks = {"src_key_padding_mask": torch.tensor(~mask)}
    ours = {"mask": mask}
    if kind == "decoder":
        hidden = ~np.tri(POSITIONS, STEPS, 4, dtype="bool").T
        masks = {
            "tgt_mask": torch.tensor(~np.tri(STEPS, dtype="bool")),
            "tgt_key_padding_mask": torch.tensor(~mask),
            "memory_mask": torch.tensor(hidden),
            "memory_key_padding_mask": torch.tensor(~value_mask),
        }
        ours = {
            "inputs_mask": mask,
            "value_mask": value_mask,
            "cross_attention_mask": ~hidden,
        }

    with torch.no_grad():
        expected = peer(*map(torch.tensor, tensors), **masks).numpy()

    outputs = numpy(layer(*tensors, **ours))
    np.testing.assert_allclose(outputs[mask], expected[mask], atol=1e-5)
    assert (outputs[~mask] == 0).all()


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_keras_hub_with_the_same_weights_gives_the_same_outputs(kind, norm_first, data):
    hub = pytest.importorskip("keras_hub")
    inputs, value, mask, value_mask = data
    options = {"activation": "gelu"}
    layer = encoder if kind == "encoder" else decoder
    layer = layer(norm_first=norm_first, **options)
    tensors = [inputs] if kind == "encoder" else [inputs, value]
    layer(*tensors)
    randomize(layer)
    peers = {
        "encoder": hub.layers.TransformerEncoder,
        "decoder": hub.layers.TransformerDecoder,
    }
    peer = peers[kind](UNITS, HEADS, normalize_first=norm_first, **options)
    peer(*tensors)
    network, attentions = layer.feed_forward, [(peer._self_attention_layer, "self")]
    pairs = [
        (peer._feedforward_intermediate_dense, network.hidden_projection),
        (peer._feedforward_output_dense, network.output_projection),
        (peer._feedforward_layer_norm, layer.feed_forward_norm),
        (
            peer._self_attention_layer_norm,
            layer.self_attention_norm,
        ),
    ]
    masks, ours = {"padding_mask": mask}, {"mask": mask}
    if kind == "decoder":
        attentions.append((peer._cross_attention_layer, "cross"))
        pairs.append((peer._cross_attention_layer_norm, layer.cross_attention_norm))
        masks = {
            "decoder_padding_mask": mask,
            "encoder_padding_mask": value_mask,
        }
        ours = {"inputs_mask": mask, "value_mask": value_mask}
    for attention, name in attentions:
        theirs = (
            attention._query_dense,
            attention._key_dense,
            attention._value_dense,
            attention._output_dense,
        )
        layer_projections = projections(getattr(layer, f"{name}_attention"))
        pairs += zip(theirs, layer_projections, strict=True)
    for peer_dense, dense in pairs:
        values = zip(peer_dense.weights, dense.get_weights(), strict=True)
        peer_dense.set_weights([x.reshape(y.shape) for y, x in values])

    expected = numpy(peer(*tensors, **masks))

    outputs = numpy(layer(*tensors, **ours))
    np.testing.assert_allclose(outputs[mask], expected[mask], atol=1e-5)


@pytest.mark.parametrize("weighting", ["softmax", "sparsemax", "entmax", "hard"])
def test_steps_with_a_cache_equal_the_full_pass(weighting, rng):
    layer, shape = decoder(weighting), (BATCH, SEQUENCES, STEPS, DEPTH)
    inputs = rng.normal(size=shape).astype("float32")
    value = rng.normal(size=(BATCH, POSITIONS, VALUE_DEPTH)).astype("float32")
    value_mask = np.arange(POSITIONS) < np.array([[4], [POSITIONS]])
    layer(inputs, value)
    randomize(layer)
    outputs, weights = layer(
        inputs, value, value_mask=value_mask, return_attention_scores=True
    )
    memory = layer.memory(value, value_mask=value_mask)
    cache = layer.get_initial_cache(BATCH, STEPS, SEQUENCES)

    for step in range(STEPS):
        output, scores, cache = layer(
            inputs[:, :, step : step + 1],
            memory=memory,
            cache=cache,
            return_attention_scores=True,
        )
        np.testing.assert_allclose(
            numpy(output)[:, :, 0], numpy(outputs)[:, :, step], atol=1e-5
        )
        np.testing.assert_allclose(
            numpy(scores)[:, :, :, 0], numpy(weights)[:, :, :, step], atol=1e-5
        )
    assert (numpy(weights)[0, ..., 4:] == 0).all()
    # One sequence at a time, one step at a time.
    cache = layer.get_initial_cache(BATCH, STEPS)
    for step in range(STEPS):
        output, scores, cache = layer(
            inputs[:, 1, step], memory=memory, cache=cache, return_attention_scores=True
        )
        np.testing.assert_allclose(numpy(output), numpy(outputs)[:, 1, step], atol=1e-5)
        np.testing.assert_allclose(
            numpy(scores), numpy(weights)[:, 1, :, step], atol=1e-5
        )


def test_a_causal_encoder_layer_runs_step_by_step(data):
    inputs = data[0]
    layer = encoder(causal=True)
    expected = numpy(layer(inputs))
    cache = layer.get_initial_cache(BATCH, STEPS)

    for step in range(STEPS):
        output, cache = layer(inputs[:, step], cache=cache)
        np.testing.assert_allclose(numpy(output), expected[:, step], atol=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
def test_nothing_in_the_padding_reaches_a_result_or_a_weight(norm_first, data):
    inputs, value, mask, value_mask = data
    layer = decoder(norm_first=norm_first)
    expected = numpy(layer(inputs, value, inputs_mask=mask, value_mask=value_mask))
    symbols = [keras.Input(x.shape[1:], dtype=x.dtype) for x in data]
    outputs = layer(*symbols[:2], inputs_mask=symbols[2], value_mask=symbols[3])
    model = keras.Model(symbols, outputs)
    inputs, value = inputs.copy(), value.copy()
    inputs[~mask], value[~value_mask] = np.nan, np.inf

    np.testing.assert_array_equal(numpy(model([inputs, value, *data[2:]])), expected)

    before = numpy(layer.trainable_variables)
    fit(model, [inputs, value, *data[2:]], np.ones_like(expected))
    after = numpy(layer.trainable_variables)
    assert all(np.isfinite(x).all() for x in after)
    moved = [(a != b).any() for a, b in zip(before, after, strict=True)]
    # The bias of a key moves all scores alike.
    assert sum(moved) >= len(moved) - 2


def test_details_have_the_outputs_of_both_attentions(data):
    inputs, value, *_ = data
    layer = decoder(HardWeighting())
    rows = np.repeat(inputs[:, None], SEQUENCES, axis=1)

    details = layer(rows, value, return_details=True)

    for name, positions in (("self_attention", STEPS), ("cross_attention", POSITIONS)):
        leading = BATCH, SEQUENCES, HEADS, STEPS
        assert tuple(details[name]["weights"].shape) == (*leading, positions)
        assert tuple(details[name]["log_probability"].shape) == leading
    np.testing.assert_allclose(
        numpy(details["context"]), numpy(layer(rows, value)), atol=1e-6
    )


@pytest.mark.parametrize("make", [encoder, decoder])
def test_a_model_comes_back_from_its_file(make, data, tmp_path):
    layer = make(
        weighting="entmax",
        activation="swish",
        dropout=0.1,
        activation_dropout=0.2,
        norm_first=False,
        epsilon=1e-3,
        seed=3,
        name="block",
    )
    tensors = data[:1] if make is encoder else data[:2]
    symbols = [keras.Input((None, DEPTH)) for _ in tensors]
    model = keras.Model(symbols, layer(*symbols))
    randomize(layer)

    loaded = reloaded(model, tmp_path)

    np.testing.assert_allclose(
        numpy(loaded(list(tensors))), numpy(model(list(tensors))), atol=1e-6
    )
    config, copy = layer.get_config(), restored_from_json(layer).get_config()
    assert keras.tree.map_structure(str, config) == keras.tree.map_structure(str, copy)


@pytest.mark.parametrize("make", [encoder, decoder])
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_gives_nearly_the_same(make, dtype, data):
    inputs, value, *_ = data
    tensors = [inputs] if make is encoder else [inputs, value]
    expected_layer = make()
    expected = numpy(expected_layer(*tensors))
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        layer = make()
        outputs = layer(*tensors)
        layer.set_weights(expected_layer.get_weights())
        outputs = layer(*tensors)
    finally:
        keras.config.set_dtype_policy(policy)

    assert keras.backend.standardize_dtype(outputs.dtype) == dtype.removeprefix(
        "mixed_"
    )
    outputs = numpy(ops.cast(outputs, "float32"))
    np.testing.assert_allclose(outputs, expected, atol=0.1)


def test_shapes_are_known_before_anything_is_computed():
    layer = decoder()
    inputs = keras.KerasTensor((None, SEQUENCES, None, DEPTH))
    value = keras.KerasTensor((None, None, VALUE_DEPTH))

    output, weights = layer(inputs, value, return_attention_scores=True)

    assert output.shape == (None, SEQUENCES, None, DEPTH)
    assert weights.shape == (None, SEQUENCES, HEADS, None, None)


def test_the_mask_of_an_embedding_is_used_and_passed_on():
    embedding = keras.layers.Embedding(5, DEPTH, mask_zero=True)
    words = np.array([[1, 2, 0, 0]])

    embedded = embedding(words)
    outputs = encoder()(embedded)

    assert (numpy(outputs)[0, 2:] == 0).all()
    mask = keras.src.backend.get_keras_mask(outputs)
    assert numpy(mask).tolist() == [[True, True, False, False]]


def test_dropout_acts_in_training_only(data):
    inputs, value, *_ = data
    layer = decoder(dropout=0.5, activation_dropout=0.5, seed=1)
    once = numpy(layer(inputs, value))

    np.testing.assert_array_equal(numpy(layer(inputs, value)), once)
    assert np.abs(numpy(layer(inputs, value, training=True)) - once).max() > 0.01


HEADS_OF = SelfAttention(HEADS, HEAD_DEPTH, causal=True)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: TransformerEncoderLayer(3, 4),
            r"must be a SelfAttention.*Received: 3",
        ),
        (lambda: encoder(units=0), "multiple values"),
        (lambda: encoder(dropout=1.0), r"dropout must be in \[0, 1\). Received: 1.0"),
        (lambda: encoder(norm_first=1), "norm_first must be a boolean. Received: 1"),
        (lambda: encoder(epsilon=0), r"epsilon must be positive.*Received: 0"),
        (
            lambda: TransformerDecoderLayer(SelfAttention(2, 3), None, 4),
            r"causal=True.*Received: causal=False",
        ),
        (
            lambda: TransformerDecoderLayer(HEADS_OF, HEADS_OF, 4),
            "cross_attention must be a MultiHeadAttention",
        ),
        (
            lambda: TransformerDecoderLayer(
                HEADS_OF, MultiHeadAttention(2, 3, window_size=5), 4
            ),
            "window_size=5",
        ),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_calls_are_checked(data):
    inputs, value, *_ = data
    layer = decoder()
    with pytest.raises(ValueError, match="Either value or memory must be given"):
        layer(inputs)
    with pytest.raises(ValueError, match=r"same batch size.*3, 7, 6"):
        layer(inputs, np.zeros((3, POSITIONS, DEPTH), "float32"))
    with pytest.raises(ValueError, match=r"inputs must have the shape"):
        layer(inputs[:, 0], value)
    deep = TransformerEncoderLayer(SelfAttention(HEADS, 5, output_dim=4), UNITS)
    with pytest.raises(ValueError, match=r"output_dim must be None or 6.*depth 4"):
        deep(inputs)
