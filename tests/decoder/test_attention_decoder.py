import inspect
import json
import re

import keras
import numpy as np
import pytest
from decoder.reference import (
    BATCH,
    CELLS,
    INPUT_DIM,
    INPUTS,
    LOWER_UNITS,
    PAPERS,
    POSITIONS,
    SEQUENCES,
    STATE_UNITS,
    STEPS,
    UNITS,
    VALUE,
    VALUE_DIM,
    WORDS,
    assert_close,
    assert_same_config,
    decode_as_in_the_paper,
    decoder_of,
    draw,
    numpy,
    random_state,
    step_by_step,
)
from keras import ops, tree

from keras_attention import AdditiveAttention, AttentionCell, AttentionDecoder
from keras_attention.ops import scores

pytestmark = pytest.mark.usefixtures("seeded")

COMPILES = keras.backend.backend() != "torch"

every_cell = pytest.mark.parametrize("cell", CELLS)


@pytest.fixture
def rng():
    return np.random.default_rng(1)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("name", PAPERS)
def test_follows_the_paper(rng, name, gate):
    # Keras' default for the GRU resets after the product, which is another function.
    options = {"reset_after": False} if name == "gru" else {}
    decoder = decoder_of(name, gate=gate, **options)
    inputs, value = draw(rng, INPUTS, VALUE)
    state = random_state(rng, decoder.cell, BATCH)

    found = numpy(decoder(inputs, value, state))

    assert found["output"].shape == (BATCH, STEPS, STATE_UNITS)
    assert found["context"].shape == (BATCH, STEPS, VALUE_DIM)
    assert found["weights"].shape == (BATCH, STEPS, POSITIONS)
    for b in range(BATCH):
        first = [x[b] for x in state["cell"]]
        expected = decode_as_in_the_paper(
            name, decoder.cell, inputs[b], value[b], first
        )
        assert_close(tree.map_structure(lambda x, b=b: x[b], found), expected)


@pytest.mark.parametrize("cell", ["lstm", "gru over lstm"])
def test_first_step_looks_with_the_initial_state_of_the_topmost_cell(rng, cell):
    decoder = decoder_of(cell)
    inputs, value = draw(rng, INPUTS, VALUE)
    state = random_state(rng, decoder.cell, BATCH)

    found = numpy(decoder(inputs, value, state))

    topmost = state["cell"] if cell == "lstm" else state["cell"][-1]
    context, weights = decoder.cell.attention(
        topmost[0], value, return_attention_scores=True
    )
    np.testing.assert_allclose(found["context"][:, 0], numpy(context), atol=1e-5)
    np.testing.assert_allclose(found["weights"][:, 0], numpy(weights), atol=1e-5)
    assert (abs(found["context"][:, 0]) > 1e-3).any()


def test_gate_of_zero_hides_the_source(rng):
    decoder = decoder_of("lstm", gate=True)
    inputs, value = draw(rng, INPUTS, VALUE)
    # sigmoid(-1000) is 0.
    decoder.cell.context_gate.kernel.assign(np.zeros((STATE_UNITS, 1)))
    decoder.cell.context_gate.bias.assign([-1000.0])

    found = numpy(decoder(inputs, value))

    assert (found["context"] == 0).all()
    np.testing.assert_allclose(found["weights"].sum(-1), 1, rtol=1e-5)
    assert_close(found["output"], numpy(decoder(inputs, -value))["output"])


def test_weights_change_when_the_state_changes(rng):
    decoder = decoder_of("lstm", gate=True)
    inputs, value = draw(rng, INPUTS, VALUE)

    weights = numpy(decoder(inputs, value))["weights"]

    changes = abs(np.diff(weights, axis=1)).max(axis=-1)
    assert (changes > 1e-3).all()


@every_cell
def test_stepping_equals_the_full_pass(rng, cell):
    decoder = decoder_of(cell, gate=True)
    inputs, value = draw(rng, INPUTS, VALUE)
    state = decoder.cell.get_initial_state(batch_size=BATCH)

    assert_close(
        numpy(decoder(inputs, value)), step_by_step(decoder, inputs, value, state)
    )


def test_stepping_equals_the_full_pass_with_masks_and_a_state(rng):
    decoder = decoder_of("stacked lstm")
    inputs, value = draw(rng, INPUTS, VALUE)
    given = {
        "inputs_mask": np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1]], "bool"),
        "value_mask": np.array([[1, 1, 0, 1, 0, 1, 1], [0] * 7], "bool"),
    }
    state = random_state(rng, decoder.cell, BATCH)

    found = numpy(decoder(inputs, value, state, **given))

    assert_close(found, step_by_step(decoder, inputs, value, state, **given))
    for name in ("output", "context", "weights"):
        assert (found[name][~given["inputs_mask"]] == 0).all()
    assert (found["weights"][0][:, ~given["value_mask"][0]] == 0).all()
    assert (found["context"][1] == 0).all()


def test_padded_steps_copy_the_state_through(rng):
    decoder = decoder_of("lstm")
    inputs, value = draw(rng, INPUTS, VALUE)
    state = random_state(rng, decoder.cell, BATCH)
    length = 3
    mask = np.broadcast_to(np.arange(STEPS) < length, (BATCH, STEPS))

    padded = numpy(decoder(inputs, value, state, inputs_mask=mask))
    short = numpy(decoder(inputs[:, :length], value, state))
    nothing = numpy(decoder(inputs, value, state, inputs_mask=np.zeros_like(mask)))

    assert_close(padded["state"], short["state"])
    assert_close(padded["output"][:, :length], short["output"])
    assert (padded["output"][:, length:] == 0).all()
    assert_close(nothing["state"], state, atol=0)


@pytest.mark.parametrize(
    ("cell", "given_state"), [("gru", False), ("stacked lstm", True)]
)
def test_several_sequences_of_one_memory_equal_each_alone(rng, cell, given_state):
    decoder = decoder_of(cell, gate=True)
    inputs, value = draw(rng, (BATCH, SEQUENCES, STEPS, INPUT_DIM), VALUE)
    inputs_mask = rng.random((BATCH, SEQUENCES, STEPS)) < 0.7
    value_mask = np.array([[1, 1, 0, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1, 0]], "bool")
    state = random_state(rng, decoder.cell, BATCH, SEQUENCES) if given_state else None

    together = numpy(
        decoder(inputs, value, state, inputs_mask=inputs_mask, value_mask=value_mask)
    )

    assert together["output"].shape == (BATCH, SEQUENCES, STEPS, STATE_UNITS)
    for k in range(SEQUENCES):

        def of_this_sequence(x, k=k):
            return x[:, k]

        alone = decoder(
            inputs[:, k],
            value,
            tree.map_structure(of_this_sequence, state) if given_state else None,
            inputs_mask=inputs_mask[:, k],
            value_mask=value_mask,
        )
        assert_close(tree.map_structure(of_this_sequence, together), numpy(alone))


def test_several_sequences_step_together(rng):
    decoder = decoder_of("lstm", gate=True)
    inputs, value = draw(rng, (BATCH, SEQUENCES, STEPS, INPUT_DIM), VALUE)
    state = random_state(rng, decoder.cell, BATCH, SEQUENCES)

    assert_close(
        numpy(decoder(inputs, value, state)),
        step_by_step(decoder, inputs, value, state),
    )


def test_masked_places_may_hold_anything(rng, gradients):
    decoder = decoder_of("lstm", gate=True)
    arrays = draw(rng, INPUTS, VALUE)
    given = {
        "inputs_mask": np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]], "bool"),
        "value_mask": np.array([[1, 1, 0, 1, 0, 1, 1], [0] * 7], "bool"),
    }
    expected = numpy(decoder(*arrays, **given))
    for array, mask in zip(arrays, given.values(), strict=True):
        array[~mask] = np.nan

    def read(inputs, value):
        return ops.sum(decoder(inputs, value, **given)["output"] ** 2)

    found = gradients(read, arrays, decoder.trainable_variables)

    assert_close(numpy(decoder(*arrays, **given)), expected)
    # Four weights of the attention, three of the cell, two of the gate.
    assert len(found) == 2 + 4 + 3 + 2
    for gradient in found:
        assert np.isfinite(gradient).all()
        assert (gradient != 0).any()
    for gradient, mask in zip(found[:2], given.values(), strict=True):
        assert (gradient[~mask] == 0).all()


def test_implicit_masks_are_honoured(rng):
    decoder = decoder_of("gru")
    input_ids = rng.integers(1, WORDS, (BATCH, STEPS))
    value_ids = rng.integers(1, WORDS, (BATCH, POSITIONS))
    input_ids[:, -1] = 0
    value_ids[0, 2:] = 0
    inputs = keras.layers.Embedding(WORDS, INPUT_DIM, mask_zero=True)(input_ids)
    value = keras.layers.Embedding(WORDS, VALUE_DIM, mask_zero=True)(value_ids)

    implicit = numpy(decoder(inputs, value))

    explicit = decoder(
        numpy(inputs),
        numpy(value),
        inputs_mask=input_ids != 0,
        value_mask=value_ids != 0,
    )
    assert_close(implicit, numpy(explicit), atol=0)
    assert (implicit["weights"][0, :, 2:] == 0).all()
    assert (implicit["output"][:, -1] == 0).all()


def test_explicit_mask_wins_over_an_implicit_one(rng):
    decoder = decoder_of("gru")
    input_ids = np.zeros((BATCH, STEPS), "int32")
    value_ids = np.zeros((BATCH, POSITIONS), "int32")
    inputs = keras.layers.Embedding(WORDS, INPUT_DIM, mask_zero=True)(input_ids)
    value = keras.layers.Embedding(WORDS, VALUE_DIM, mask_zero=True)(value_ids)

    found = decoder(
        inputs, value, inputs_mask=input_ids == 0, value_mask=value_ids == 0
    )

    assert_close(numpy(found), numpy(decoder(numpy(inputs), numpy(value))))


@keras.saving.register_keras_serializable(package="keras_attention_tests")
class ShowMask(keras.layers.Layer):
    """Returns the mask that comes with a tensor; minus ones where none comes."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x, mask=None):
        if mask is None:
            return ops.full_like(x[..., 0], -1.0)
        return ops.cast(mask, "float32")

    def compute_output_shape(self, x_shape):
        return x_shape[:-1]


@pytest.mark.parametrize("leading", [(), (SEQUENCES,)])
def test_the_mask_of_the_inputs_goes_on_with_all_but_the_state(rng, leading, tmp_path):
    input_ids = keras.Input((*leading, None), dtype="int32")
    value = keras.Input((None, VALUE_DIM))
    embedding = keras.layers.Embedding(WORDS, INPUT_DIM, mask_zero=True)
    decoder = AttentionDecoder(
        AttentionCell(CELLS["gru over lstm"](), AdditiveAttention(UNITS))
    )
    outputs = decoder(embedding(input_ids), value)
    masks = tree.map_structure(lambda x: ShowMask()(x), outputs)
    model = keras.Model([input_ids, value], {**masks, "steps": outputs["output"]})
    ids, values = rng.integers(3, size=(BATCH, *leading, STEPS)), draw(rng, VALUE)
    expected = model.predict([ids, values], verbose=0)

    eager = tree.map_structure(ShowMask(), decoder(embedding(ids), values))
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    found = restored.predict([ids, values], verbose=0)

    assert (expected["steps"] != 0).any(axis=-1).tolist() == (ids != 0).tolist()
    assert_close(found.pop("steps"), expected.pop("steps"))
    for masks in (expected, numpy(eager), found):
        for name in ("output", "context", "weights"):
            np.testing.assert_array_equal(masks[name], ids != 0)
        assert all((x == -1).all() for x in tree.flatten(masks["state"]))


def test_padded_steps_do_not_count_in_the_loss(rng):
    input_ids = keras.Input((STEPS,), dtype="int32")
    value = keras.Input((None, VALUE_DIM))
    embedded = keras.layers.Embedding(WORDS, INPUT_DIM, mask_zero=True)(input_ids)
    model = keras.Model([input_ids, value], decoder_of("gru")(embedded, value))
    model = keras.Model(model.inputs, model.output["output"])
    model.compile(loss="mse", jit_compile=False)
    ids, values = np.array([[3, 5, 7, 0, 0], [2, 3, 5, 7, 0]]), draw(rng, VALUE)
    target = draw(rng, (BATCH, STEPS, STATE_UNITS))

    loss = model.evaluate([ids, values], target, verbose=0)

    errors = (model.predict([ids, values], verbose=0) - target) ** 2
    assert loss == pytest.approx(errors[ids != 0].mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("half", "given_state"), [("float16", True), ("bfloat16", False)]
)
def test_mixed_precision(rng, half, given_state):
    decoder = decoder_of("lstm", gate=True, dtype=f"mixed_{half}")
    inputs, value = draw(rng, INPUTS, VALUE)
    mask = np.array([[1, 1, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0]], "bool")
    state = random_state(rng, decoder.cell, BATCH)
    if not given_state:
        state = tree.map_structure(np.zeros_like, state)

    found = decoder(inputs, value, state if given_state else None, value_mask=mask)

    for tensor in tree.flatten(found):
        assert keras.backend.standardize_dtype(tensor.dtype) == half
    precise = decoder_of("lstm", gate=True)
    expected = numpy(precise(inputs, value, state, value_mask=mask))
    found = numpy(tree.map_structure(lambda x: ops.cast(x, "float32"), found))
    assert_close(found, expected, atol=0.25 if half == "bfloat16" else 0.05)
    assert (found["context"][1] == 0).all()
    assert {v.dtype for v in decoder.trainable_variables} == {"float32"}


@pytest.mark.parametrize("options", [{"weighting": "monotonic"}, {"coverage": True}])
def test_what_attention_remembers_keeps_its_precision(rng, options):
    cell = keras.layers.GRUCell(STATE_UNITS, dtype="mixed_bfloat16")
    attention = AdditiveAttention(UNITS, dtype="mixed_bfloat16", **options)
    decoder = AttentionDecoder(
        AttentionCell(cell, attention, dtype="mixed_bfloat16"), dtype="mixed_bfloat16"
    )
    inputs, value = keras.Input(INPUTS[1:]), keras.Input(VALUE[1:])
    first = decoder(inputs, value)
    second = decoder(inputs, value, first["state"])
    model = keras.Model([inputs, value], [first["state"], second["state"]])

    arrays = draw(rng, INPUTS, VALUE)
    before, after = model.predict(list(arrays), verbose=0)

    remembered = tree.flatten(before["attention"]), tree.flatten(after["attention"])
    for one, other in zip(*remembered, strict=True):
        assert one.dtype == other.dtype == "float32"
    memory = decoder.cell.attention.memory(arrays[1])
    state = decoder.cell.get_initial_state(BATCH, memory)
    for t in [*range(STEPS), *range(STEPS)]:
        _, state = decoder.cell(arrays[0][:, t], state, memory)
    for one, other in zip(tree.flatten(state["attention"]), remembered[1], strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(one), other, atol=0.05)


@pytest.mark.parametrize(
    "inner, outer", [("float32", "mixed_bfloat16"), ("mixed_bfloat16", "float32")]
)
def test_a_given_state_has_the_precision_of_the_cell(rng, inner, outer):
    cell = keras.layers.GRUCell(STATE_UNITS, dtype=inner)
    attention = AdditiveAttention(UNITS, dtype=outer)
    decoder = AttentionDecoder(AttentionCell(cell, attention, dtype=outer), dtype=outer)
    inputs, value = draw(rng, INPUTS, VALUE)
    inputs, value = keras.Input(INPUTS[1:]), keras.Input(VALUE[1:])
    given = keras.Input((STATE_UNITS,))
    state = decoder(inputs, value, {"cell": (given,)})["state"]
    model = keras.Model([inputs, value, given], state["cell"])

    arrays = [
        x.astype("float32") for x in draw(rng, INPUTS, VALUE, (BATCH, STATE_UNITS))
    ]
    (found,) = tree.flatten(model.predict(arrays, verbose=0))

    assert str(found.dtype) == ("float32" if inner == "float32" else "bfloat16")
    step, memory = {"cell": [arrays[2]]}, decoder.cell.attention.memory(arrays[1])
    for t in range(STEPS):
        _, step = decoder.cell(arrays[0][:, t], step, memory)
    expected = ops.convert_to_numpy(ops.cast(step["cell"][0], "float32"))
    np.testing.assert_allclose(found.astype("float32"), expected, atol=0.05)


class DropoutProbe(keras.Model):
    """Shows the dropout masks of a decoder, in training and in use.

    Its cell adds the input to the state, and the memory that it reads is zero.
    """

    units = 101

    def __init__(self):
        super().__init__()
        cell = keras.layers.SimpleRNNCell(
            self.units,
            activation="linear",
            kernel_initializer="identity",
            recurrent_initializer="identity",
            dropout=0.5,
            recurrent_dropout=0.5,
        )
        self.decoder = AttentionDecoder(AttentionCell(cell, AdditiveAttention(UNITS)))

    def call(self, inputs):
        value = ops.zeros((ops.shape(inputs)[0], POSITIONS, VALUE_DIM))
        trained = self.decoder(inputs, value, training=True)
        used = self.decoder(inputs, value, training=False)
        return trained["output"], used["output"]


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_is_the_same_at_all_steps_and_redrawn_per_call(compiled):
    probe = DropoutProbe()
    probe.compile(jit_compile=COMPILES)
    inputs = np.ones((BATCH, STEPS, probe.units), "float32")

    def run():
        return probe.predict(inputs, verbose=0) if compiled else numpy(probe(inputs))

    states, used = run()
    others, _ = run()

    # Both masks hold 0 and 2. The first state shows that of the inputs, and the
    # second that of the states, where the first is not zero.
    input_mask = states[:, 0]
    state_mask = states[:, 1] / np.maximum(input_mask, 1) - input_mask / 2
    assert set(np.unique(input_mask)) == set(np.unique(state_mask)) == {0, 2}
    for t in range(1, STEPS):
        expected = input_mask + state_mask * states[:, t - 1]
        np.testing.assert_allclose(states[:, t], expected)
        np.testing.assert_allclose(used[:, t], np.full_like(input_mask, t + 1))
    assert (states[0] != states[1]).any()
    assert (states[:, 0] != others[:, 0]).any()
    seen = (states[:, 0] > 0) & (others[:, 0] > 0)
    assert (states[:, 1] != others[:, 1])[seen].any()


def test_a_step_by_hand_draws_its_own_dropout_mask():
    cell, units = DropoutProbe().decoder.cell, DropoutProbe.units

    def step(batch):
        value = np.zeros((batch, POSITIONS, VALUE_DIM), "float32")
        arguments = (
            np.ones((batch, units), "float32"),
            cell.get_initial_state(batch_size=batch),
            cell.attention.memory(value),
        )
        outputs, _ = cell(*arguments, training=True)
        return arguments, numpy(outputs["output"])

    # Traced, not run: a mask that was kept would be unusable.
    word, value = keras.Input((units,)), keras.Input((POSITIONS, VALUE_DIM))
    memory = cell.attention.memory(value)
    cell(word, {"cell": [keras.Input((units,))]}, memory, training=True)

    arguments, first = step(BATCH)
    _, second = step(BATCH)
    _, other = step(BATCH + 1)
    with cell.same_dropout(*arguments, training=True):
        (_, third), (_, again) = step(BATCH), step(BATCH)

    # The state is zero: the output is the mask of the inputs.
    for mask in (first, second, other, third):
        assert set(np.unique(mask)) == {0, 2}
    assert (first != second).any()
    assert (third != first).any()
    assert (third != second).any()
    assert (other[0] != other[1]).any()
    np.testing.assert_array_equal(again, third)
    _, last = step(BATCH)
    assert (last != third).any()


def test_training_with_dropout_compiles_and_leaves_nothing_behind(rng):
    decoder = decoder_of("gru", gate=True, dropout=0.3, recurrent_dropout=0.3)
    inputs, value = keras.Input(INPUTS[1:]), keras.Input(VALUE[1:])
    model = keras.Model([inputs, value], decoder(inputs, value)["output"])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=COMPILES)
    before = numpy(list(decoder.trainable_variables))

    data = draw(rng, (3, STEPS, INPUT_DIM), (3, POSITIONS, VALUE_DIM))
    target = np.zeros((3, STEPS, STATE_UNITS))
    history = model.fit(data, target, epochs=2, verbose=0)

    assert np.isfinite(history.history["loss"]).all()
    after = numpy(list(decoder.trainable_variables))
    for old, new in zip(before, after, strict=True):
        assert np.isfinite(new).all()
        assert (old != new).any()
    without_dropout = decoder_of("gru", gate=True)
    pairs = zip(without_dropout.trainable_variables, after, strict=True)
    for variable, array in pairs:
        variable.assign(array)
    # Another batch size: a mask that was kept would not fit.
    inputs, value = draw(rng, INPUTS, VALUE)
    decoder(inputs, value, training=True)
    assert_close(numpy(decoder(inputs, value)), numpy(without_dropout(inputs, value)))


@pytest.mark.parametrize("block", [scores.BLOCK, 0])
def test_training_with_dropout_runs_several_sequences(rng, monkeypatch, block):
    # With 0 scores are compiled in graphs that do not know how many examples there are.
    monkeypatch.setattr(scores, "BLOCK", block)
    decoder = decoder_of("lstm", dropout=0.3, recurrent_dropout=0.3)
    inputs = keras.Input((SEQUENCES, STEPS, INPUT_DIM))
    value = keras.Input((POSITIONS, VALUE_DIM))
    model = keras.Model([inputs, value], decoder(inputs, value)["output"])
    model.compile("sgd", "mse", jit_compile=COMPILES)
    shape = (BATCH, SEQUENCES, STEPS)

    history = model.fit(
        draw(rng, (*shape, INPUT_DIM), VALUE),
        np.zeros((*shape, STATE_UNITS)),
        verbose=0,
    )

    assert np.isfinite(history.history["loss"]).all()


def test_functional_model_comes_back_from_its_file(rng, tmp_path):
    input_ids = keras.Input((None,), dtype="int32")
    value = keras.Input((None, VALUE_DIM))
    start = keras.Input((VALUE_DIM,))
    cell = AttentionCell(
        keras.layers.StackedRNNCells(
            [keras.layers.LSTMCell(LOWER_UNITS), keras.layers.LSTMCell(STATE_UNITS)]
        ),
        AdditiveAttention(UNITS, use_bias=True),
        gate=True,
    )
    state = {
        "cell": [
            [keras.layers.Dense(units, activation="tanh")(start) for _ in range(2)]
            for units in (LOWER_UNITS, STATE_UNITS)
        ]
    }
    embedded = keras.layers.Embedding(WORDS, INPUT_DIM, mask_zero=True)(input_ids)
    outputs = AttentionDecoder(cell, name="decoder")(embedded, value, state)
    model = keras.Model([input_ids, value, start], outputs)
    data = [
        np.array([[3, 5, 7, 11, 13], [2, 3, 0, 0, 0]]),
        *draw(rng, VALUE, (BATCH, VALUE_DIM)),
    ]
    expected = model.predict(data, verbose=0)

    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")

    found = restored.predict(data, verbose=0)
    assert_close(found, expected)
    assert (found["weights"][1, 2:] == 0).all()
    assert_same_config(restored.get_layer("decoder"), model.get_layer("decoder"))


def test_model_of_one_step_comes_back_from_its_file(rng, tmp_path):
    cell = AttentionCell(keras.layers.GRUCell(STATE_UNITS), AdditiveAttention(UNITS))
    word = keras.Input((INPUT_DIM,))
    state = keras.Input((STATE_UNITS,))
    value = keras.Input((None, VALUE_DIM))
    outputs, next_state = cell(word, {"cell": [state]}, cell.attention.memory(value))
    model = keras.Model([word, state, value], {**outputs, "next": next_state["cell"]})
    data = draw(rng, (BATCH, INPUT_DIM), (BATCH, STATE_UNITS), VALUE)

    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")

    assert_close(restored.predict(data, verbose=0), model.predict(data, verbose=0))


@pytest.mark.parametrize("leading", [(), (SEQUENCES,)])
def test_shapes_are_known_before_anything_is_computed(leading):
    decoder = decoder_of("lstm", gate=True)
    inputs = keras.Input((*leading, STEPS, INPUT_DIM), batch_size=BATCH)
    value = keras.Input((None, VALUE_DIM), batch_size=BATCH)

    found = decoder(inputs, value)

    known = (BATCH, *leading)
    assert found["output"].shape == (*known, STEPS, STATE_UNITS)
    assert found["context"].shape == (*known, STEPS, VALUE_DIM)
    assert found["weights"].shape == (*known, STEPS, None)
    assert [x.shape for x in found["state"]["cell"]] == [(*known, STATE_UNITS)] * 2


@pytest.mark.parametrize("cell", ["gru", "gru over lstm"])
def test_decoder_comes_back_from_its_config(rng, cell):
    decoder = decoder_of(cell, gate=True)
    inputs, value = draw(rng, INPUTS, VALUE)

    config = json.loads(json.dumps(keras.saving.serialize_keras_object(decoder)))
    restored = keras.saving.deserialize_keras_object(config)
    restored.build(INPUTS, VALUE)
    restored.set_weights(decoder.get_weights())

    assert_same_config(restored, decoder)
    assert_close(numpy(restored(inputs, value)), numpy(decoder(inputs, value)))


@pytest.mark.parametrize("layer", [AttentionCell, AttentionDecoder])
def test_config_names_every_argument(layer):
    cell = AttentionCell(
        keras.layers.GRUCell(STATE_UNITS), AdditiveAttention(UNITS), gate=True
    )
    instance = cell if layer is AttentionCell else AttentionDecoder(cell)

    config = instance.get_config()

    arguments = set(inspect.signature(layer).parameters) - {"kwargs"}
    assert set(config) == {"name", "trainable", "dtype"} | arguments
    assert config.get("gate", True) is True


def frozen_decoder(how):
    frozen = {"trainable": False}
    cell = AttentionCell(
        CELLS["stacked gru"](),
        AdditiveAttention(UNITS, use_bias=True),
        gate=True,
        **(frozen if how == "cell" else {}),
    )
    decoder = AttentionDecoder(cell, **(frozen if how == "decoder" else {}))
    if how == "decoder before it is built":
        decoder.trainable = False
    return decoder


@pytest.mark.parametrize("how", ["cell", "decoder", "decoder before it is built"])
def test_what_is_frozen_has_nothing_to_train(how, tmp_path):
    inputs, value = keras.Input(INPUTS[1:]), keras.Input(VALUE[1:])
    decoder = frozen_decoder(how)
    model = keras.Model([inputs, value], decoder(inputs, value)["output"])

    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")

    for frozen in (model, restored):
        # Four weights of the attention, three of each cell, two of the gate.
        assert len(frozen.weights) == 4 + 2 * 3 + 2
        assert frozen.trainable_weights == []
    decoder.trainable = decoder.cell.trainable = True
    assert len(decoder.trainable_weights) == len(decoder.weights)


def test_a_frozen_cell_on_its_own_has_nothing_to_train():
    cell = frozen_decoder("cell").cell
    memory = cell.attention.memory(keras.Input(VALUE[1:]))
    word = keras.Input((INPUT_DIM,))
    state = {"cell": [[keras.Input((n,))] for n in (LOWER_UNITS, STATE_UNITS)]}

    cell(word, state, memory)

    assert len(cell.weights) == 4 + 2 * 3 + 2
    assert not any(variable.trainable for variable in cell.weights)


@pytest.mark.parametrize("layer", [AttentionCell, AttentionDecoder])
def test_config_may_be_used_twice(layer):
    decoder = decoder_of("gru")
    config = (decoder if layer is AttentionDecoder else decoder.cell).get_config()

    for _ in range(2):
        assert isinstance(layer.from_config(config), layer)


def test_initial_state_is_zero(rng):
    decoder = decoder_of("lstm")
    state = decoder.cell.get_initial_state(batch_size=BATCH)
    inputs, value = draw(rng, INPUTS, VALUE)

    assert [tuple(x.shape) for x in state["cell"]] == [(BATCH, STATE_UNITS)] * 2
    assert all((numpy(x) == 0).all() for x in state["cell"])
    assert_close(numpy(decoder(inputs, value)), numpy(decoder(inputs, value, state)))


@pytest.mark.parametrize(
    "cell", [keras.layers.Dense(8), keras.layers.GRU(8), "gru", None], ids=repr
)
def test_cell_must_be_a_recurrent_cell(cell):
    message = f"cell must be a Keras RNN cell.*Received: {re.escape(repr(cell))}"

    with pytest.raises(ValueError, match=message):
        AttentionCell(cell, AdditiveAttention(UNITS))


@pytest.mark.parametrize("attention", [keras.layers.Attention(), None], ids=repr)
def test_attention_must_be_of_this_package(attention):
    message = f"attention must be.*Received: {re.escape(repr(attention))}"

    with pytest.raises(ValueError, match=message):
        AttentionCell(keras.layers.GRUCell(STATE_UNITS), attention)


@pytest.mark.parametrize("cell", [keras.layers.GRUCell(8), None], ids=repr)
def test_decoder_needs_an_attention_cell(cell):
    message = f"cell must be an AttentionCell. Received: {re.escape(repr(cell))}"

    with pytest.raises(ValueError, match=message):
        AttentionDecoder(cell)


def new_decoder(cell="lstm"):
    return AttentionDecoder(AttentionCell(CELLS[cell](), AdditiveAttention(UNITS)))


SHAPES = {
    "inputs": INPUTS,
    "value": VALUE,
    "inputs_mask": INPUTS[:-1],
    "value_mask": VALUE[:-1],
}


@pytest.mark.parametrize("make", [decoder_of, new_decoder])
@pytest.mark.parametrize(
    ("wrong", "shape", "expected"),
    [
        ("inputs", (2, 11), "(batch, [sequences,] steps, depth)"),
        ("inputs", (2, 3, 5, 7, 11), "(batch, [sequences,] steps, depth)"),
        ("value", (2, 13), "(batch, positions, depth)"),
        ("value", (2, 3, 7, 13), "(batch, positions, depth)"),
        ("inputs_mask", (2, 5, 1), "(2, 5)"),
        ("inputs_mask", (2, 1), "(2, 5)"),
        ("value_mask", (2, 1), "(2, 7)"),
    ],
)
def test_shape_that_does_not_fit_is_named(make, wrong, shape, expected):
    arrays = {
        name: np.zeros(shape, "float32")
        for name, shape in {**SHAPES, wrong: shape}.items()
    }
    message = f"{wrong} must have the shape {expected}. Received: {shape}"

    with pytest.raises(ValueError, match=re.escape(message)):
        make("lstm")(arrays.pop("inputs"), arrays.pop("value"), **arrays)


def zeros(*shape):
    return np.zeros(shape, "float32")


STATES = [
    zeros(2, 17),
    {"state": [zeros(2, 17), zeros(2, 17)]},
    {"cell": zeros(2, 17)},
    {"cell": [zeros(2, 17)]},
    {"cell": [zeros(2, 17), zeros(2, 19)]},
    {"cell": [zeros(2, 3, 17), zeros(2, 17)]},
    {"cell": [zeros(2, 17), zeros(2, 17)], "fedd": zeros(2, 17)},
]


def shapes(nested):
    return tree.map_structure(lambda x: x.shape, nested)


@pytest.mark.parametrize("make", [decoder_of, new_decoder])
@pytest.mark.parametrize("state", STATES, ids=lambda state: str(shapes(state)))
def test_a_state_that_is_not_the_cells_is_named(make, state):
    decoder = make("lstm")
    inputs, value = zeros(*INPUTS), zeros(*VALUE)
    told = f"units \\[17, 17\\], .*Received: {re.escape(str(shapes(state)))}"

    with pytest.raises(ValueError, match=f"initial_state must be a dict.*{told}"):
        decoder(inputs, value, state)
    memory = decoder.cell.attention.memory(value)
    with pytest.raises(ValueError, match=f"(?<!initial_)state must be a dict.*{told}"):
        decoder.cell(inputs[:, 0], state, memory)


@pytest.mark.parametrize("make", [decoder_of, new_decoder])
@pytest.mark.parametrize(
    "memory",
    [zeros(*VALUE), {"values": zeros(*VALUE)}, None],
    ids=["x", "dict", "none"],
)
def test_a_memory_that_is_none_is_named(make, memory):
    cell = make("lstm").cell
    state = cell.get_initial_state(batch_size=BATCH)
    told = re.escape(f"Received: {shapes(memory) if memory is not None else None}")

    with pytest.raises(ValueError, match=f"memory must be the dict that.*{told}"):
        cell(zeros(BATCH, INPUT_DIM), state, memory)


@pytest.mark.parametrize("make", [decoder_of, new_decoder])
@pytest.mark.parametrize("shape", [(2,), (2, 3, 5, 11)])
def test_a_step_of_the_wrong_rank_is_named(make, shape):
    cell = make("lstm").cell
    memory = cell.attention.memory(zeros(*VALUE))
    message = (
        f"inputs must have the shape (batch, [sequences,] depth). Received: {shape}"
    )

    with pytest.raises(ValueError, match=re.escape(message)):
        cell(zeros(*shape), cell.get_initial_state(batch_size=BATCH), memory)


@pytest.mark.parametrize("make", [decoder_of, new_decoder])
def test_another_number_of_rows_than_the_inputs_have_is_named(make):
    decoder, value = make("lstm"), zeros(BATCH + 1, *VALUE[1:])
    message = r"same batch size.* inputs \(2, .* values \[\(3, 7, 13\)\]"

    with pytest.raises(ValueError, match=message):
        decoder(zeros(*INPUTS), value)
    state, memory = decoder.cell.get_initial_state(2), decoder.cell.attention.memory
    with pytest.raises(ValueError, match=message):
        decoder.cell(zeros(BATCH, INPUT_DIM), state, memory(value))


def test_a_gate_is_there_or_not():
    with pytest.raises(ValueError, match=r"gate must be a boolean.*Received: 0\.5"):
        AttentionCell(keras.layers.GRUCell(8), AdditiveAttention(UNITS), gate=0.5)


class BareCell(keras.layers.Layer):
    """A cell as the documentation of `keras.layers.RNN` writes it."""

    state_size = STATE_UNITS

    def build(self, inputs_shape):
        self.kernel = self.add_weight(
            name="kernel", shape=(inputs_shape[-1] + STATE_UNITS, STATE_UNITS)
        )

    def call(self, inputs, states, training=None):
        both = ops.concatenate([inputs, states[0]], axis=-1)
        output = ops.tanh(ops.matmul(both, self.kernel))
        return output, [output]


class TensorCell(BareCell):
    """Its first state is a tensor, and no list."""

    def get_initial_state(self, batch_size=None):
        return ops.ones((batch_size, STATE_UNITS))


@pytest.mark.parametrize("cell_class", [BareCell, TensorCell])
def test_a_cell_of_your_own(cell_class, rng):
    cell = cell_class()
    decoder = AttentionDecoder(AttentionCell(cell, AdditiveAttention(UNITS)))
    inputs, value = draw(rng, INPUTS, VALUE)
    found = numpy(decoder(inputs, value))

    before = np.full((BATCH, STATE_UNITS), float(cell_class is TensorCell))
    state = decoder.cell.get_initial_state(BATCH)
    assert_close(numpy(state["cell"]), [before])
    memory = decoder.cell.attention.memory(value)
    for t in range(STEPS):
        outputs, state = decoder.cell(inputs[:, t], state, memory)
        read = np.concatenate([inputs[:, t], numpy(outputs["context"]), before], axis=1)
        before = np.tanh(read @ numpy(cell.kernel))
        assert_close(numpy(outputs["output"]), before, atol=1e-5)
        assert_close(found["output"][:, t], before, atol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="has no float64 by default"
)
@pytest.mark.parametrize("feeding", [False, True])
def test_attentional_vector_has_the_precision_of_the_cell(rng, feeding):
    options = {"attentional_vector": UNITS, "input_feeding": feeding}
    cell = AttentionCell(
        keras.layers.GRUCell(UNITS, dtype="float64"),
        AdditiveAttention(UNITS, dtype="float64"),
        dtype="float64",
        **options,
    )

    found = AttentionDecoder(cell, dtype="float64")(*draw(rng, INPUTS, VALUE))

    assert keras.backend.standardize_dtype(found["output"].dtype) == "float64"


@pytest.mark.parametrize("order", ["previous", "current"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_cell_computes_in_its_own_precision(order, cell, rng):
    inputs, value = draw(rng, INPUTS, VALUE)
    decoder = AttentionDecoder(
        AttentionCell(
            CELLS[cell](dtype="float32"),
            AdditiveAttention(UNITS, dtype="mixed_bfloat16"),
            order=order,
            dtype="mixed_bfloat16",
        ),
        dtype="mixed_bfloat16",
    )
    found = decoder(inputs, value)

    state = decoder.cell.get_initial_state(BATCH)
    memory = decoder.cell.attention.memory(value)
    for t in range(STEPS):
        step, state = decoder.cell(inputs[:, t], state, memory)
        one, other = found["cell_output"][:, t], step["cell_output"]
        one, other = (
            ops.convert_to_numpy(ops.cast(x, "float32")) for x in (one, other)
        )
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("order", ["previous", "current"])
@pytest.mark.parametrize("outer", ["mixed_bfloat16", "float32"])
@pytest.mark.parametrize(
    "options",
    [{}, {"gate": True}, {"input_feeding": True, "attentional_vector": UNITS}],
    ids=str,
)
def test_attention_computes_in_its_own_precision(order, outer, options, rng, gradients):
    inputs, value = draw(rng, INPUTS, VALUE)
    inner = "float32" if outer == "mixed_bfloat16" else "mixed_bfloat16"
    mixed, precise = (
        AttentionDecoder(
            AttentionCell(
                CELLS["gru"](dtype=outer),
                AdditiveAttention(UNITS, dtype=inner),
                order=order,
                dtype=outer,
                **options,
            ),
            dtype=outer,
        )
        for inner, outer in ((inner, outer), ("float32", "float32"))
    )
    mixed.build(INPUTS, VALUE)
    precise.build(INPUTS, VALUE)
    precise.set_weights(mixed.get_weights())

    def slopes(decoder):
        def total():
            steps = decoder(inputs, value)
            return ops.sum(
                ops.cast(steps["output"] + steps["context"][..., :1], "float32")
            )

        return gradients(total, (), decoder.trainable_variables)

    for found, expected in zip(slopes(mixed), slopes(precise), strict=True):
        assert_close(found, expected, atol=0.2 * np.abs(expected).max() + 1e-3)
    memory = mixed.cell.attention.memory(value)
    step, _ = mixed.cell(inputs[:, 0], mixed.cell.get_initial_state(BATCH), memory)
    assert step["context"].dtype == step["output"].dtype
