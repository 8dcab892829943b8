"""Order of cell and attention, input feeding, and several attentions."""

import inspect
import json

import keras
import numpy as np
import pytest
from keras import ops, tree

import keras_attention as ka
from attention_testing.arrays import EXACT, assert_close, draw, numpy, sigmoid, softmax
from attention_testing.combinations import quick_first
from attention_testing.decoder.reference import (
    ATTENTIONAL,
    BATCH,
    CELLS,
    CHOICES,
    INPUT_DIM,
    INPUTS,
    OTHER_DIM,
    OTHER_LENGTH,
    POSITIONS,
    SEQUENCES,
    STATE_UNITS,
    STEPS,
    UNITS,
    VALUE,
    VALUE_DIM,
    VALUE_MASK,
    decoder_of_choice,
    lstm_as_in_the_paper,
    model_of,
    random_state,
    step_by_step,
)
from attention_testing.models import compiled, fit, needs_tensorflow, reloaded
from keras_attention import backends
from keras_attention.decoder import fast

# JAX compiles each of them, which takes longer than running them.
ON_JAX = keras.backend.backend() == "jax"


def decode_as_luong(cell, words, source, state):
    """Sections 3 and 3.3: one sequence, with the general score and input feeding."""
    w_a, b_a = numpy(cell.attention.step.score.query_projection.weights)
    w_c = numpy(cell.attentional_layer.kernel)
    fed, results = np.zeros(ATTENTIONAL), []
    for word in words:
        h_t, state = lstm_as_in_the_paper(cell.cell, np.concatenate([word, fed]), state)
        a_t = softmax(source @ (h_t @ w_a + b_a))
        c_t = a_t @ source
        fed = np.tanh(np.concatenate([c_t, h_t]) @ w_c)
        outputs = {"output": fed, "cell_output": h_t, "query": h_t}
        results.append({**outputs, "context": c_t, "weights": a_t})
    outputs = tree.map_structure(lambda *steps: np.stack(steps), *results)
    return {**outputs, "state": {"cell": state, "feedback": fed}}


def test_follows_luong(inputs, value, rng):
    decoder = decoder_of_choice("Luong, fed")
    state = random_state(rng, decoder.cell.cell, BATCH)

    actual = numpy(decoder(inputs, value, {"cell": state}))

    for b in range(BATCH):
        first = [x[b] for x in state]
        expected = decode_as_luong(decoder.cell, inputs[b], value[b], first)
        assert_close(tree.map_structure(lambda x, b=b: x[b], actual), expected)


def test_the_query_may_contain_the_input(rng):
    cell = decoder_of_choice("Bahdanau, input in query").cell
    inputs, value = draw(rng, (BATCH, INPUT_DIM), VALUE)
    state = random_state(rng, cell.cell, BATCH)

    outputs, _ = numpy(cell(inputs, {"cell": state}, cell.attention.memory(value)))

    query = np.concatenate([numpy(state[0]), inputs], axis=-1)
    assert_close(outputs["query"], query)
    w_a, b_a = numpy(cell.attention.step.score.query_projection.weights)
    weights = softmax(np.einsum("bd,bsd->bs", query @ w_a + b_a, value))
    assert_close(outputs["weights"], weights)
    gate = sigmoid(query @ numpy(cell.context_gate.kernel) + cell.context_gate.bias)
    assert_close(outputs["context"], gate * np.einsum("bs,bsd->bd", weights, value))


@pytest.mark.parametrize(
    ("attention", "choice", "cell", "leading"),
    [
        ("additive", "Bahdanau, gated", "gru", (SEQUENCES,)),
        ("coverage", "Bahdanau, fed", "lstm", ()),
        ("monotonic", "Luong, fed", "stacked gru", ()),
        ("general", "Bahdanau, input in query", "gru over lstm", ()),
        ("heads", "Luong, plain", "lstm", ()),
        ("location", "Luong, fed with the context", "simple", ()),
        ("local-m", "Luong", "stacked lstm", ()),
        ("local-p", "Bahdanau, attentional", "gru", ()),
        ("additive", "adaptive", "lstm", ()),
        ("additive", "adaptive, fed", "lstm", (SEQUENCES,)),
    ],
)
def test_stepping_equals_the_full_pass(rng, choice, attention, cell, leading):
    decoder = decoder_of_choice(choice, attention, cell)
    inputs, value = draw(rng, (BATCH, *leading, STEPS, INPUT_DIM), VALUE)
    value[~VALUE_MASK] = np.nan
    mask = rng.random(inputs.shape[:-1]) < 0.7
    masks = {"inputs_mask": mask, "value_mask": VALUE_MASK}
    memory = decoder.cell.attention.memory(value, value_mask=VALUE_MASK)
    state = {"cell": random_state(rng, decoder.cell.cell, BATCH, *leading)}
    state = decoder.cell.complete_state(state, memory)

    outputs = numpy(decoder(inputs, value, state, **masks))

    assert_close(outputs, step_by_step(decoder, inputs, value, state, **masks))
    for name in ("output", "context", "weights"):
        assert (outputs[name][~mask] == 0).all()
    assert (np.moveaxis(outputs["weights"], -1, 1)[~VALUE_MASK] == 0).all()
    if "sentinel" in outputs:
        # Where no position is valid, the sentinel has all of the weight.
        assert_close(outputs["weights"].sum(-1) + outputs["sentinel"], 1.0 * mask)
    else:
        assert (outputs["context"][1] == 0).all()


@pytest.mark.parametrize(
    ("choice", "attention"),
    [
        ("Bahdanau, fed", "coverage"),
        ("Luong", "general"),
        ("Luong, fed", "local-m"),
        pytest.param("adaptive", "additive", marks=pytest.mark.exhaustive),
        pytest.param("adaptive, fed", "additive", marks=pytest.mark.exhaustive),
    ],
)
def test_several_sequences_of_one_memory_equal_each_alone(rng, choice, attention):
    decoder = decoder_of_choice(choice, attention)
    inputs, value = draw(rng, (BATCH, SEQUENCES, STEPS, INPUT_DIM), VALUE)
    mask = rng.random((BATCH, SEQUENCES, STEPS)) < 0.7

    together = numpy(decoder(inputs, value, inputs_mask=mask))

    for k in range(SEQUENCES):
        alone = numpy(decoder(inputs[:, k], value, inputs_mask=mask[:, k]))
        assert_close(tree.map_structure(lambda x, k=k: x[:, k], together), alone)


def loss_of(decoder, mask):
    def loss(inputs, value):
        steps = decoder(inputs, value, inputs_mask=mask, value_mask=VALUE_MASK)
        read = [steps[name] for name in ("output", "context", "state")]
        parts = tree.flatten([read, steps.get("sentinel", [])])
        return sum(ops.sum(ops.sin(part)) for part in parts)

    return loss


@pytest.mark.parametrize(
    ("choice", "attention", "cell", "leading"),
    [
        ("Bahdanau, fed", "general", "lstm", ()),
        ("Luong", "general", "lstm", (SEQUENCES,)),
        ("Luong, fed", "general", "gru", (SEQUENCES,)),
        ("Bahdanau", "general", "gru", ()),
        ("Bahdanau, attentional", "general", "lstm", ()),
        ("Luong, plain", "general", "gru", (SEQUENCES,)),
        ("adaptive, fed", "additive", "lstm", ()),
        pytest.param("adaptive", "additive", "lstm", (), marks=pytest.mark.exhaustive),
    ][: 3 if ON_JAX else 8],
)
def test_deferred_gradients_equal_those_of_the_loop(
    rng, choice, attention, cell, leading, gradients, monkeypatch
):
    decoder = decoder_of_choice(choice, attention, cell)
    inputs, value = draw(rng, (BATCH, *leading, STEPS, INPUT_DIM), VALUE)
    mask = rng.random(inputs.shape[:-1]) < 0.7
    arguments = loss_of(decoder, mask), [inputs, value], decoder.trainable_variables

    grads = gradients(*arguments)

    monkeypatch.setattr(fast, "split_cell", lambda *_: None)
    monkeypatch.setattr(backends, "defers_gradients", lambda x: False)
    monkeypatch.setattr(ka.AttentionCell, "sequential", True)
    for x, y in zip(grads, gradients(*arguments), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4 * abs(y).max(), rtol=1e-3)
        assert (x != 0).any()


@pytest.mark.skipif(not EXACT, reason="computes in float32")
@pytest.mark.parametrize(
    "choice", quick_first(["Bahdanau, fed", "Luong", "Luong, fed"], 2)
)
def test_gradients_against_finite_differences(rng, choice, gradients):
    decoder = decoder_of_choice(choice, dtype="float64")
    arrays = [x.astype("float64") for x in draw(rng, INPUTS, VALUE)]
    mask = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], "bool")
    loss = loss_of(decoder, mask)

    grads = gradients(loss, arrays)

    for i, gradient in enumerate(grads):
        direction = rng.normal(size=arrays[i].shape)

        def moved(step, i=i, direction=direction):
            return float(
                loss(*arrays[:i], arrays[i] + step * direction, *arrays[i + 1 :])
            )

        slope = (moved(1e-6) - moved(-1e-6)) / 2e-6
        assert (gradient * direction).sum() == pytest.approx(slope, rel=1e-6)


@needs_tensorflow
@pytest.mark.parametrize("choice", ["Bahdanau", "Luong, fed"])
def test_gradients_in_a_graph_with_unknown_lengths(rng, choice, gradients):
    import tensorflow as tf

    decoder = decoder_of_choice(choice, "additive")
    arrays = draw(rng, INPUTS, VALUE)
    mask = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], "bool")
    signature = [keras.KerasTensor((None, None, x.shape[-1])) for x in arrays]

    def gradient(inputs, value):
        with tf.GradientTape() as tape:
            tape.watch((inputs, value))
            loss = loss_of(decoder, mask)(inputs, value)
        return tape.gradient(loss, (inputs, value))

    expected = gradients(loss_of(decoder, mask), arrays)
    assert_close(compiled(gradient, signature)(*arrays), expected)


@pytest.mark.parametrize("leading", [(), (SEQUENCES,)], ids=["one", "several"])
def test_attention_reads_for_all_steps_at_once(rng, leading, monkeypatch):
    decoder = decoder_of_choice("Luong")
    inputs, value = draw(rng, (BATCH, *leading, STEPS, INPUT_DIM), VALUE)
    lengths = []
    step = type(decoder.cell.attention.step)
    call = step.call

    def count(self, query, *arguments, **options):
        lengths.append(query.shape[1])
        return call(self, query, *arguments, **options)

    monkeypatch.setattr(step, "call", count)
    decoder(inputs, value)

    assert lengths == [STEPS * (*leading, 1)[0]]


def test_attention_of_all_steps_at_once_draws_for_every_step(rng):
    # With equal scores, hard choices that are drawn for every step and every sequence
    # differ.
    weighting = ka.HardWeighting(soft_probability=0.0)
    attention = ka.LuongAttention("dot", weighting=weighting)
    cell = keras.layers.LSTMCell(VALUE_DIM)
    cell = ka.AttentionCell(cell, attention, order="current")
    inputs = draw(rng, (BATCH, SEQUENCES, STEPS, INPUT_DIM))
    value = np.zeros(VALUE, "float32")

    weights = numpy(ka.AttentionDecoder(cell)(inputs, value, training=True)["weights"])

    chosen = weights.argmax(-1)
    np.testing.assert_array_equal(weights.sum(-1), 1)
    for axis in range(3):
        assert (np.diff(chosen, axis=axis) != 0).any()


@pytest.mark.parametrize("choice", quick_first(["Luong, fed", "Luong", "Bahdanau"], 2))
def test_several_attentions_have_their_own_values(rng, choice):
    decoder = decoder_of_choice(choice, ["coverage", "general"])
    inputs, value, other = draw(rng, INPUTS, VALUE, (BATCH, OTHER_LENGTH, OTHER_DIM))
    masks = [None, np.array([[1, 0, 1], [1, 1, 0]], "bool")]

    outputs = numpy(decoder(inputs, [value, other], value_mask=masks))

    weights, other_weights = outputs["weights"]
    assert weights.shape == (BATCH, STEPS, POSITIONS)
    assert other_weights.shape == (BATCH, STEPS, OTHER_LENGTH)
    assert ((other_weights == 0) == ~masks[1][:, None]).all()
    # Without a gate, the context is the concatenation of the weighted sums.
    context = np.concatenate([weights @ value, other_weights @ other], axis=-1)
    np.testing.assert_allclose(outputs["context"], context, atol=1e-5)
    total = outputs["state"]["attention"][0]["coverage"]["total"]
    assert_close(total[:, 0] if total.ndim == 3 else total, weights.sum(1))
    memory = decoder.cell.memory([value, other], value_mask=masks)
    state = decoder.cell.get_initial_state(BATCH, memory)
    steps = step_by_step(decoder, inputs, [value, other], state, value_mask=masks)
    assert_close(outputs, steps)


def test_several_attentions_may_share_a_value(inputs, value):
    attentions = [ka.AdditiveAttention(UNITS), ka.LuongAttention("general")]
    decoder = ka.AttentionDecoder(ka.AttentionCell(CELLS["gru"](), attentions))

    actual = decoder(inputs, value, value_mask=VALUE_MASK)

    expected = decoder(inputs, [value] * 2, value_mask=[VALUE_MASK] * 2)
    assert_close(actual, expected)
    assert actual["context"].shape[-1] == 2 * VALUE_DIM


@pytest.mark.parametrize(
    ("choice", "attention", "cell", "leading"),
    [
        ("Luong, fed", ["coverage", "general"], "lstm", (SEQUENCES,)),
        ("Luong, fed", "coverage", "lstm", ()),
        pytest.param(
            *("adaptive", "additive", "normalized lstm", ()),
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_functional_model_comes_back_from_its_file(
    rng, tmp_path, choice, attention, cell, leading
):
    decoder = decoder_of_choice(choice, attention, cell)
    inputs = keras.Input((*leading, None, INPUT_DIM))
    values = [keras.Input((None, VALUE_DIM)), keras.Input((None, OTHER_DIM))]
    embedded = keras.layers.Masking()(inputs)
    steps = decoder(embedded, values[0] if isinstance(attention, str) else values)
    known = [x.shape for x in tree.flatten(steps)]
    model = keras.Model([inputs, *values], steps)
    shape = (BATCH, *leading, STEPS, INPUT_DIM)
    arrays = draw(rng, shape, VALUE, (BATCH, OTHER_LENGTH, OTHER_DIM))
    arrays[0][..., -1, :] = 0

    restored = reloaded(model, tmp_path)

    outputs = numpy(restored(arrays))
    assert_close(outputs, model(arrays))
    assert (outputs["output"][..., -1, :] == 0).all()
    for x, shape in zip(tree.flatten(outputs), known, strict=True):
        assert all(n in (None, m) for n, m in zip(shape, x.shape, strict=True))


@pytest.mark.parametrize("choice", CHOICES)
def test_comes_back_from_its_config(choice):
    decoder = decoder_of_choice(choice)

    for layer in (decoder, decoder.cell):
        config = layer.get_config()

        arguments = set(inspect.signature(type(layer)).parameters) - {"kwargs"}
        assert set(config) == {"name", "trainable", "dtype"} | arguments
        # A config may be used twice, and files store tuples as lists.
        for _ in range(2):
            restored = type(layer).from_config(config)
            assert json.dumps(restored.get_config()) == json.dumps(config)
    for name, value in CHOICES[choice].items():
        assert decoder.cell.get_config()[name] == value


def test_custom_layers_come_back_from_the_config(inputs, value):
    cell = ka.AttentionCell(
        CELLS["lstm"](),
        [ka.AdditiveAttention(UNITS), ka.LuongAttention("general")],
        order="current",
        attentional_vector=keras.layers.Dense(ATTENTIONAL, use_bias=False),
        gate=keras.layers.Dense(2 * VALUE_DIM, activation="sigmoid"),
    )
    decoder = ka.AttentionDecoder(cell)
    steps = numpy(decoder(inputs, value))

    restored = ka.AttentionDecoder.from_config(decoder.get_config())

    restored.build(INPUTS, VALUE)
    restored.set_weights(decoder.get_weights())
    assert_close(numpy(restored(inputs, value)), steps)
    # Without activation, the attentional vector is linear in context and cell output.
    joined = np.concatenate([steps["context"], steps["cell_output"]], axis=-1)
    kernel = numpy(cell.attentional_layer.kernel)
    np.testing.assert_allclose(steps["output"], joined @ kernel, atol=1e-5)


def test_a_custom_gate_may_scale_each_feature_of_the_context(inputs, value):
    gate = keras.layers.Dense(VALUE_DIM, "relu")
    cell = ka.AttentionCell(CELLS["lstm"](), ka.LuongAttention("general"), gate=gate)
    decoder = ka.AttentionDecoder(cell)
    decoder.build(INPUTS, VALUE)
    gate.set_weights([np.zeros((STATE_UNITS, VALUE_DIM)), np.arange(VALUE_DIM)])

    actual = numpy(decoder(inputs, value))

    expected = np.arange(VALUE_DIM) * (actual["weights"] @ value)
    np.testing.assert_allclose(actual["context"], expected, atol=1e-5)


def test_fit_runs_compiled(rng):
    model = model_of(decoder_of_choice("Luong, fed", dropout=0.5))
    target = draw(rng, (BATCH, STEPS, ATTENTIONAL))

    fit(model, draw(rng, INPUTS, VALUE), target, batch_size=BATCH, epochs=2)


def test_a_depth_that_follows_the_inputs_is_known_once_the_cell_is_built(inputs, value):
    def fed():
        options = {"input_in_query": True, "input_feeding": True}
        return ka.AttentionCell(CELLS["gru"](), ka.MultiHeadAttention(2, 3), **options)

    cell = fed()
    memory = cell.attention.memory(value)
    with pytest.raises(ValueError, match=r"unless the cell is built.*'keys': \("):
        cell.get_initial_state(BATCH, memory)

    decoder = ka.AttentionDecoder(fed())
    context = decoder(inputs, value)["context"]
    state = decoder.cell.get_initial_state(BATCH)
    assert tuple(state["feedback"].shape) == (BATCH, context.shape[-1])
