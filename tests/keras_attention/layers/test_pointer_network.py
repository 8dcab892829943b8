import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import numpy, random_fixture
from attention_testing.layers.cases import attend
from attention_testing.models import reloaded

B, T, S, Q, V = 2, 3, 5, 7, 11
ATTENTIONS = {
    "additive": lambda: ka.AdditiveAttention(4),
    "coverage": lambda: ka.AdditiveAttention(4, coverage=True),
    "local-p": lambda: ka.LuongAttention("general", window="local-p", half_width=1),
    "heads": lambda: ka.MultiHeadAttention(2, 4),
}

query = random_fixture(B, T, Q)
value = random_fixture(B, S, V)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_log_probabilities_are_the_logarithms_of_the_weights(name, query, value):
    pointer = ka.PointerNetwork(ATTENTIONS[name]())
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]], "bool")
    left = np.tri(T, S, 2, dtype="bool")
    masks = {"value_mask": mask, "attention_mask": left}

    log_probs = numpy(pointer(query, value, **masks))

    _, weights = attend(pointer.attention, (query, value), **masks)
    np.testing.assert_allclose(np.exp(log_probs), weights, atol=1e-6)
    assert (weights[~(left & mask[:, None])] == 0).all()
    assert (log_probs[weights == 0] == -1e9).all()
    step = pointer(query[:, 0], value, value_mask=mask, attention_mask=left[:1])
    np.testing.assert_allclose(numpy(step), log_probs[:, 0], atol=1e-5)


def test_a_model_comes_back_from_its_file(query, value, tmp_path):
    symbols = [keras.Input((None, Q)), keras.Input((None, V))]
    model = keras.Model(symbols, ka.PointerNetwork(ka.AdditiveAttention(4))(*symbols))
    restored = reloaded(model, tmp_path)

    assert restored.output_shape == (None, None, None)
    expected = numpy(model([query, value]))
    np.testing.assert_allclose(numpy(restored([query, value])), expected, atol=1e-6)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"attention must be .*Received: 'dot'"):
        ka.PointerNetwork("dot")
    with pytest.raises(ValueError, match=r"takes a query and a value.*<SelfAttention"):
        ka.PointerNetwork(ka.SelfAttention(2, 4))


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"attention_mask": np.full((B, T, S), -1e9)}, "attention_mask must be bool"),
        ({"attention_mask": np.ones((B, S + 1))}, r"attention_mask .*: \(2, 6\)"),
        ({"query_mask": np.full((B, T), -1e9)}, "query_mask must be boolean"),
        ({"query_mask": np.ones((B, S))}, r"query_mask .*Received: \(2, 5\)"),
    ],
)
@pytest.mark.parametrize("name", ["additive", "heads"])
def test_wrong_masks_are_errors(name, masks, message, query, value):
    pointer = ka.PointerNetwork(ATTENTIONS[name]())

    with pytest.raises(ValueError, match=message):
        pointer(query, value, **masks)


def test_a_query_of_another_rank_is_an_error():
    pointer = ka.PointerNetwork(ka.MultiHeadAttention(2, 4, attention_axes=(1,)))
    grid = np.ones((2, 3, 5, 7), "float32")

    with pytest.raises(ValueError, match=r"query must have .*Received: \(2, 3, 5, 7\)"):
        pointer(grid, grid)


def test_a_frozen_pointer_has_no_trainable_weights(query, value):
    layer = ka.PointerNetwork(ka.AdditiveAttention(4), trainable=False)

    layer(query, value)

    assert len(layer.weights) == 3 and layer.trainable_weights == []


@pytest.mark.exhaustive
def test_learns_to_sort(rng):
    """The network of the paper sorts numbers, and beam search reads the order."""
    count, units = 3, 32
    numbers = rng.random((1000, count, 1)).astype("float32")
    # Position 0 is the end.
    source = np.concatenate([np.full((1000, 1, 1), -1, "float32"), numbers], axis=1)
    order = 1 + numbers[..., 0].argsort(axis=1)
    order = np.concatenate([order, np.zeros((1000, 1), "int64")], axis=1)
    previous = np.concatenate([np.zeros((1000, 1), "int64"), order[:, :-1]], axis=1)
    read = np.take_along_axis(source, previous[..., None], axis=1)

    embed = keras.layers.Dense(units, "relu")
    encode = keras.layers.GRU(units, return_sequences=True, return_state=True)
    decode = keras.layers.GRU(units, return_sequences=True)
    pointer = ka.PointerNetwork(ka.AdditiveAttention(units))
    symbols = [keras.Input((None, 1)), keras.Input((None, 1))]
    annotations, last = encode(embed(symbols[0]))
    states = decode(embed(symbols[1]), initial_state=last)
    model = keras.Model(symbols, pointer(states, annotations))
    model.compile(keras.optimizers.Adam(1e-2), ka.PointerCrossentropy())
    model.fit([source, read], order, epochs=10, batch_size=50, verbose=0)

    tests = source[:100]
    annotations, last = encode(embed(tests))

    def step(token_ids, state):
        positions = token_ids[..., None]
        chosen = ops.take_along_axis(ops.convert_to_tensor(tests), positions, axis=1)
        rows = ops.reshape(embed(chosen), (-1, units))
        _, (rows,) = decode.cell(rows, [ops.reshape(state, (-1, units))])
        state = ops.reshape(rows, ops.shape(state))
        log_probs = pointer(state, annotations)
        return log_probs, state, ops.exp(log_probs)

    result = ka.beam_search(
        step, last, start=0, end=0, max_length=count + 1, beam_size=2
    )
    right = (numpy(result["token_ids"])[:, 0] == order[:100]).all(axis=1)
    assert right.mean() > 0.8
