"""One step of self-attention at a time, with a cache or with a memory."""

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import (
    assert_close,
    attend,
    draw,
    embedded,
    numpy,
    random_fixture,
)
from attention_testing.combinations import quick_first
from attention_testing.layers.mask_reference import masks
from attention_testing.layers.self_attention_reference import (
    BATCH,
    HEADS,
    KEY,
    KEY_DIM,
    POSITIONS,
    QUERIES,
    QUERY,
    QUERY_DIM,
    SEQUENCE,
    SLOTS,
    VALUE,
    VALUE_DEPTH,
    VALUE_DIM,
    biased,
    biased_cross,
    read,
    stepped,
)
from attention_testing.models import compiled
from attention_testing.rounding import rounding_bound
from keras_attention import AdditiveAttention, loops

x = random_fixture(*SEQUENCE)


@pytest.fixture
def layer():
    return biased(causal=True)


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_stepping_equals_the_full_pass(x, value_dim):
    layer = biased(causal=True, value_dim=value_dim)

    output, weights, cache = stepped(layer, x)

    expected, expected_weights = attend(layer, x)
    assert_close(output, expected)
    assert_close(weights[..., :POSITIONS], expected_weights, 1e-6)
    assert (weights[..., POSITIONS:] == 0).all()
    assert weights.shape[-1] == SLOTS
    shapes = {name: tuple(leaf.shape) for name, leaf in cache.items()}
    assert shapes == {
        "keys": (BATCH, HEADS, SLOTS, KEY_DIM),
        "values": (BATCH, HEADS, SLOTS, value_dim or KEY_DIM),
        "length": (BATCH,),
    }
    np.testing.assert_array_equal(*numpy([cache["length"], [POSITIONS] * BATCH]))


def test_several_steps_at_once_continue_a_cache(layer, x):
    mask = np.array([[1, 1, 0, 1, 1], [1, 0, 0, 1, 1]], "bool")
    cache = layer.get_initial_cache(BATCH, POSITIONS)

    outputs = []
    for part in (slice(0, 3), slice(3, 4), slice(4, 5)):
        output, cache = layer(x[:, part], query_mask=mask[:, part], cache=cache)
        outputs.append(output)

    assert_close(ops.concatenate(outputs, 1), layer(x, query_mask=mask))


@pytest.mark.usefixtures("double_by_default")
def test_double_precision_by_default(layer, x):
    cache = layer.get_initial_cache(BATCH, POSITIONS)

    first, cache = layer(x[:, :-1], cache=cache)
    last, _ = layer(x[:, -1], cache=cache)

    expected = read(layer, x)
    assert_close([first, last], [expected[:, :-1], expected[:, -1]])


def test_a_cache_may_have_further_entries(layer, x):
    cache = layer.get_initial_cache(BATCH, SLOTS)

    output, _ = layer(x, cache={**cache, "steps": cache["length"]})

    expected, _ = layer(x, cache=cache)
    np.testing.assert_array_equal(*numpy([output, expected]))


def test_steps_beyond_the_last_slot_are_not_remembered(layer, x):
    mask = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], "bool")
    _, _, full = stepped(layer, x[:, :3], 3, query_mask=mask[:, :3])

    _, cache = layer(x[:, 3], cache=full)
    _, cache = layer(x[:, 4], cache=cache)

    np.testing.assert_array_equal(*numpy([cache["length"], [3, 3]]))
    for name in ("keys", "values"):
        after, before = numpy([cache[name], full[name]])
        np.testing.assert_array_equal(after[0], before[0])
        np.testing.assert_array_equal(after[1, :, 0], before[1, :, 0])
        assert (after[1, :, 1:] != 0).all() and (before[1, :, 1:] == 0).all()


def test_rows_of_one_length_may_share_it(x):
    layer = biased(causal=True, value_dim=VALUE_DIM)
    expected, _, full = stepped(layer, x)
    cache = layer.get_initial_cache(BATCH, POSITIONS)
    cache["length"] = cache["length"][0]

    for step in range(POSITIONS):
        output, cache = layer(x[:, step], cache=cache)
        assert_close(output, expected[:, step], 1e-6)

    assert ops.convert_to_numpy(cache["length"]) == POSITIONS
    for name in ("keys", "values"):
        assert_close(cache[name], full[name][:, :, :POSITIONS], 1e-6)

    _, beyond = layer(x[:, 0], cache=cache)
    assert ops.convert_to_numpy(beyond["length"]) == POSITIONS
    for name in ("keys", "values"):
        after, before = numpy([beyond[name], cache[name]])
        np.testing.assert_array_equal(after[:, :, :-1], before[:, :, :-1])
        assert_close(after[:, :, -1], before[:, :, 0], 1e-6)


def test_a_mask_separates_rows_that_shared_a_length(layer, x):
    cache = layer.get_initial_cache(BATCH, SLOTS)
    shared = {**cache, "length": cache["length"][0]}
    mask = np.array([True, False])

    _, expected = layer(x[:, 0], query_mask=mask, cache=cache)
    _, actual = layer(x[:, 0], query_mask=mask, cache=shared)

    assert_close(actual, expected, 0)


def test_implicit_mask_reaches_a_step_with_a_cache(layer, rng):
    token_ids, x = embedded(rng, QUERY_DIM, BATCH, POSITIONS)

    output, cache = layer(x, cache=layer.get_initial_cache(BATCH, POSITIONS))

    assert_close(output, layer(x))
    np.testing.assert_array_equal(*numpy([cache["length"], (token_ids != 0).sum(1)]))


def test_attention_mask_hides_slots_of_a_cache(layer, x):
    seen = np.ones((BATCH, POSITIONS, POSITIONS), "bool")
    seen[:, :, 0] = False

    output, weights, _ = stepped(layer, x, POSITIONS, attention_mask=seen)

    assert_close(output, layer(x, attention_mask=seen))
    assert (weights[..., 0] == 0).all()
    assert (output[:, 0] == 0).all()


@pytest.mark.parametrize("dtype", quick_first(["mixed_float16", "float32"]))
def test_loop_over_steps_compiles_for_batches_of_any_size(x, dtype):
    layer, x = biased(2, 3, causal=True, dtype=dtype), x / 4
    layer.build(SEQUENCE)

    def run(x):
        def step(cache, inputs):
            output, cache = layer(inputs, cache=cache)
            return cache, output

        cache = layer.get_initial_cache(ops.shape(x)[0], POSITIONS)
        return loops.scan(step, cache, ops.transpose(x, (1, 0, 2)))[1]

    run = compiled(run, [keras.KerasTensor((None, POSITIONS, QUERY_DIM))], xla=True)
    output = ops.transpose(run(ops.convert_to_tensor(x)), (1, 0, 2))

    actual, expected = (ops.cast(x, "float32") for x in (output, layer(x)))
    # The depths of all products, and a rounding of each operand, in both.
    roundings = 2 * (QUERY_DIM + 3 + POSITIONS + 6 + 10)
    bound = 1e-5 if dtype == "float32" else rounding_bound(dtype, roundings)
    assert_close(actual, expected, bound)


def test_memory_is_projected_once_for_many_steps(rng):
    layer = biased_cross(value_dim=VALUE_DIM)
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    all_masks = masks(rng)
    expected = attend(layer, query, value, key, **all_masks)

    memory = layer.memory(
        value, key, value_mask=all_masks["value_mask"], key_mask=all_masks["key_mask"]
    )
    for t in range(QUERIES):
        step = slice(t, t + 1)
        actual, _ = layer.step(
            query[:, step],
            memory,
            query_mask=all_masks["query_mask"][:, step],
            mask=all_masks["attention_mask"][:, step],
            average_heads=False,
        )

        assert_close(actual["context"], expected[0][:, step])
        assert_close(actual["weights"], expected[1][:, :, step], 1e-6)


@pytest.mark.parametrize("make", [biased, lambda: AdditiveAttention(KEY_DIM)])
def test_a_memory_that_is_prepared_alone_has_an_implicit_or_explicit_mask(rng, make):
    value_ids, value = embedded(rng, VALUE_DEPTH, BATCH, POSITIONS)
    mask = rng.random((BATCH, POSITIONS)) < 0.5

    memories = make().memory(value), make().memory(value, mask=mask)

    masks = numpy([memory["mask"] for memory in memories])
    np.testing.assert_array_equal(masks, [value_ids != 0, mask])


@pytest.mark.parametrize("make", [biased, lambda: AdditiveAttention(KEY_DIM)])
@pytest.mark.parametrize("built", [False, True])
def test_a_dict_that_is_no_memory_is_named(rng, make, built):
    layer = make()
    query, value = draw(rng, QUERY, VALUE)
    if built:
        layer.step(query, layer.memory(value))

    message = r"memory must be the dict that.* Received: {'values': \(2, 5, 17\)}"
    with pytest.raises(ValueError, match=message):
        layer.step(query, {"values": value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: {}, "'keys' .* Received: {}"),
        (lambda x: {**x, "keys": None}, "Received: {'keys': None"),
        (
            lambda x: {**x, "length": ops.zeros((3,), "int32")},
            r"'length' \(2,\). Received: .*'length': \(3,\)",
        ),
        (
            lambda x: {name: entry[:1] for name, entry in x.items()},
            r"'keys' \(2, 7, 37, 19\).* Received: {'keys': \(1, 7, 37, 19\)",
        ),
        (lambda x: {**x, "keys": x["keys"][:, :1]}, r"{'keys': \(2, 1, 37, 19\)"),
        (
            lambda x: {**x, "values": x["values"][:, :, :3]},
            r"'values' \(2, 7, 37, 23\).* 'values': \(2, 7, 3, 23\)",
        ),
        (lambda x: {**x, "values": x["values"][..., :5]}, r"s': \(2, 7, 37, 5\)"),
    ],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_a_cache_of_another_layer_or_batch_is_named(x, change, message, symbolic):
    layer = biased(causal=True, value_dim=VALUE_DIM)
    cache = change(layer.get_initial_cache(BATCH, SLOTS))
    x = keras.KerasTensor(SEQUENCE) if symbolic else x

    with pytest.raises(ValueError, match=f"cache must be .*{message}"):
        layer(x, cache=cache)


def test_cache_is_for_causal_self_attention(x):
    layer = biased()

    with pytest.raises(ValueError, match="Received: causal=False"):
        layer(x, cache=layer.get_initial_cache(BATCH, SLOTS))


def test_cache_must_have_a_slot_for_every_step(layer, x):
    with pytest.raises(ValueError, match="Received: 5 steps, max_length=3"):
        layer(x, cache=layer.get_initial_cache(BATCH, 3))
    with pytest.raises(ValueError, match=r"max_length must be .* Received: 0"):
        layer.get_initial_cache(BATCH, 0)
