"""One step of self-attention at a time, with a cache or with a memory."""

import keras
import numpy as np
import pytest
from arrays import assert_close, attend, draw, embedded, numpy
from combinations import quick_first
from keras import ops
from layers.mask_reference import masks
from layers.self_attention_reference import (
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
    read,
    stepped,
)
from models import compiled
from rounding import rounding_bound

from keras_attention import AdditiveAttention, loops


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_stepping_equals_the_full_pass(rng, value_dim):
    layer = biased(causal=True, value_dim=value_dim)
    x = draw(rng, SEQUENCE)
    expected, expected_weights = attend(layer, x)

    output, weights, cache = stepped(layer, x)

    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(weights[..., :POSITIONS], expected_weights, atol=1e-6)
    assert (weights[..., POSITIONS:] == 0).all()
    assert weights.shape[-1] == SLOTS
    shapes = {name: tuple(leaf.shape) for name, leaf in cache.items()}
    assert shapes == {
        "keys": (BATCH, HEADS, SLOTS, KEY_DIM),
        "values": (BATCH, HEADS, SLOTS, value_dim or KEY_DIM),
        "length": (BATCH,),
    }
    np.testing.assert_array_equal(*numpy([cache["length"], [POSITIONS] * BATCH]))


def test_several_steps_at_once_continue_a_cache(rng):
    layer = biased(causal=True)
    x = draw(rng, SEQUENCE)
    mask = np.array([[1, 1, 0, 1, 1], [1, 0, 0, 1, 1]], "bool")
    expected = read(layer, x, query_mask=mask)
    cache = layer.get_initial_cache(BATCH, POSITIONS)

    outputs = []
    for part in (slice(0, 3), slice(3, 4), slice(4, 5)):
        output, cache = layer(x[:, part], query_mask=mask[:, part], cache=cache)
        outputs.append(ops.convert_to_numpy(output))

    np.testing.assert_allclose(np.concatenate(outputs, 1), expected, atol=1e-5)


@pytest.mark.usefixtures("double_by_default")
def test_double_precision_by_default(rng):
    layer = biased(causal=True)
    x = draw(rng, SEQUENCE)
    expected = read(layer, x)
    cache = layer.get_initial_cache(BATCH, POSITIONS)

    first, cache = layer(x[:, :-1], cache=cache)
    last, _ = layer(x[:, -1], cache=cache)

    first, last = numpy([first, last])
    np.testing.assert_allclose(first, expected[:, :-1], atol=1e-5)
    np.testing.assert_allclose(last, expected[:, -1], atol=1e-5)


def test_a_cache_may_have_further_entries(rng):
    layer, x = biased(causal=True), draw(rng, SEQUENCE)
    cache = layer.get_initial_cache(BATCH, SLOTS)

    output, _ = layer(x, cache={**cache, "steps": cache["length"]})

    expected, _ = layer(x, cache=cache)
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (output, expected)))


def test_steps_beyond_the_last_slot_are_not_remembered(rng):
    layer = biased(causal=True)
    x = draw(rng, SEQUENCE)
    mask = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], "bool")
    _, _, full = stepped(layer, x[:, :3], 3, query_mask=mask[:, :3])

    _, cache = layer(x[:, 3], cache=full)
    _, cache = layer(x[:, 4], cache=cache)

    np.testing.assert_array_equal(*numpy([cache["length"], [3, 3]]))
    for name in ("keys", "values"):
        one, other = numpy([cache[name], full[name]])
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1, :, 0], other[1, :, 0])
        assert (one[1, :, 1:] != 0).all() and (other[1, :, 1:] == 0).all()


def test_rows_of_one_length_may_share_it(rng):
    layer, x = biased(causal=True, value_dim=VALUE_DIM), draw(rng, SEQUENCE)
    expected, _, full = stepped(layer, x)
    cache = layer.get_initial_cache(BATCH, POSITIONS)
    cache["length"] = cache["length"][0]

    for step in range(POSITIONS):
        output, cache = layer(x[:, step], cache=cache)
        np.testing.assert_allclose(*numpy([output, expected[:, step]]), atol=1e-6)

    assert ops.convert_to_numpy(cache["length"]) == POSITIONS
    for name in ("keys", "values"):
        known = full[name][:, :, :POSITIONS]
        np.testing.assert_allclose(*numpy([cache[name], known]), atol=1e-6)

    _, beyond = layer(x[:, 0], cache=cache)
    assert ops.convert_to_numpy(beyond["length"]) == POSITIONS
    for name in ("keys", "values"):
        one, other = numpy([beyond[name], cache[name]])
        np.testing.assert_array_equal(one[:, :, :-1], other[:, :, :-1])
        np.testing.assert_allclose(one[:, :, -1], other[:, :, 0], atol=1e-6)


def test_a_mask_separates_rows_that_shared_a_length(rng):
    layer, x = biased(causal=True), draw(rng, SEQUENCE)
    cache = layer.get_initial_cache(BATCH, SLOTS)
    shared = {**cache, "length": cache["length"][0]}
    mask = np.array([True, False])

    _, expected = layer(x[:, 0], query_mask=mask, cache=cache)
    _, found = layer(x[:, 0], query_mask=mask, cache=shared)

    for name in expected:
        np.testing.assert_array_equal(*numpy([found[name], expected[name]]))


def test_implicit_mask_reaches_a_step_with_a_cache(rng):
    layer = biased(causal=True)
    token_ids, x = embedded(rng, QUERY_DIM, BATCH, POSITIONS)

    output, cache = layer(x, cache=layer.get_initial_cache(BATCH, POSITIONS))

    np.testing.assert_allclose(*numpy([output, layer(x)]), atol=1e-5)
    np.testing.assert_array_equal(*numpy([cache["length"], (token_ids != 0).sum(1)]))


def test_attention_mask_hides_slots_of_a_cache(rng):
    layer = biased(causal=True)
    x = draw(rng, SEQUENCE)
    seen = np.ones((BATCH, POSITIONS, POSITIONS), "bool")
    seen[:, :, 0] = False

    output, weights, _ = stepped(layer, x, POSITIONS, attention_mask=seen)

    np.testing.assert_allclose(output, read(layer, x, attention_mask=seen), atol=1e-5)
    assert (weights[..., 0] == 0).all()
    assert (output[:, 0] == 0).all()


@pytest.mark.parametrize("dtype", quick_first(["mixed_float16", "float32"]))
def test_loop_over_steps_compiles_for_batches_of_any_size(rng, dtype):
    layer = biased(2, 3, causal=True, dtype=dtype)
    layer.build(SEQUENCE)

    def run(x):
        def step(cache, inputs):
            output, cache = layer(inputs, cache=cache)
            return cache, output

        cache = layer.get_initial_cache(ops.shape(x)[0], POSITIONS)
        return loops.scan(step, cache, ops.transpose(x, (1, 0, 2)))[1]

    x = draw(rng, SEQUENCE) / 4

    run = compiled(run, [keras.KerasTensor((None, POSITIONS, QUERY_DIM))], xla=True)
    output = ops.transpose(run(ops.convert_to_tensor(x)), (1, 0, 2))

    assert_close(
        ops.cast(output, "float32"),
        ops.cast(layer(x), "float32"),
        # The depths of all products, and a rounding of each operand, in both.
        1e-5
        if dtype == "float32"
        else 2 * rounding_bound(dtype, QUERY_DIM + 3 + POSITIONS + 6 + 10),
    )


def test_memory_is_projected_once_for_many_steps(rng):
    layer = biased(value_dim=VALUE_DIM)
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    expected = attend(layer, query, value, key, **given)

    memory = layer.memory(
        value, key, value_mask=given["value_mask"], key_mask=given["key_mask"]
    )
    for t in range(QUERIES):
        one = slice(t, t + 1)
        found, _ = layer.step(
            query[:, one],
            memory,
            query_mask=given["query_mask"][:, one],
            mask=given["attention_mask"][:, one],
            average_heads=False,
        )

        context, weights = numpy([found["context"], found["weights"]])
        np.testing.assert_allclose(context, expected[0][:, one], atol=1e-5)
        np.testing.assert_allclose(weights, expected[1][:, :, one], atol=1e-6)


@pytest.mark.parametrize("make", [biased, lambda: AdditiveAttention(KEY_DIM)])
def test_a_memory_that_is_prepared_alone_has_an_implicit_or_explicit_mask(rng, make):
    value_ids, value = embedded(rng, VALUE_DEPTH, BATCH, POSITIONS)
    mask = rng.random((BATCH, POSITIONS)) < 0.5

    memories = make().memory(value), make().memory(value, mask=mask)

    found = numpy([memory["mask"] for memory in memories])
    np.testing.assert_array_equal(found, [value_ids != 0, mask])


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
def test_a_cache_of_another_layer_or_batch_is_named(rng, change, message, symbolic):
    layer = biased(causal=True, value_dim=VALUE_DIM)
    cache, x = change(layer.get_initial_cache(BATCH, SLOTS)), draw(rng, SEQUENCE)
    if symbolic:
        x = keras.KerasTensor(SEQUENCE)

    with pytest.raises(ValueError, match=f"cache must be .*{message}"):
        layer(x, cache=cache)


@pytest.mark.parametrize(
    ("causal", "value", "message"),
    [
        (False, [], "Received: causal=False, value None"),
        (True, [VALUE], r"Received: causal=True, value \(2, 5, 17\)"),
    ],
)
def test_cache_is_for_causal_self_attention(rng, causal, value, message):
    layer = biased(causal=causal)
    tensors = [np.zeros(shape, "float32") for shape in (QUERY, *value)]

    with pytest.raises(ValueError, match=message):
        layer(*tensors, cache=layer.get_initial_cache(BATCH, SLOTS))


def test_cache_must_have_a_slot_for_every_step(rng):
    layer = biased(causal=True)

    with pytest.raises(ValueError, match="Received: 5 steps, max_length=3"):
        layer(draw(rng, SEQUENCE), cache=layer.get_initial_cache(BATCH, 3))
    with pytest.raises(ValueError, match=r"max_length must be .* Received: 0"):
        layer.get_initial_cache(BATCH, 0)
