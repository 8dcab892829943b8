import math
from functools import partial

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import numpy
from attention_testing.combinations import covering, quick_first
from attention_testing.models import needs_tensorflow
from attention_testing.search.reference import (
    ATTENTION,
    BACKEND,
    BATCH,
    BEAM,
    END,
    HISTORIES,
    LENGTH,
    MASK,
    POSITIONS,
    REQUIRED,
    START,
    VOCABULARY,
    assert_agree,
    assert_sound,
    compiled,
    eagerly,
    ends_at_once,
    language,
    make_step,
    never_ends,
    random_state,
    random_table,
    run_beam,
    run_greedy,
    run_sample,
    to_tensors,
)
from keras_attention.search.limits import checked_limit
from keras_attention.search.top_k import top_k_of_sums


def run_covered(table, state, **options):
    """A beam search with all its penalties."""
    options = {"length_penalty_form": "gnmt", "coverage_penalty": 0.5, **options}
    return run_beam(table, state, coverage_mask=MASK, **options)


@pytest.mark.parametrize(
    ("run", "options"),
    [
        (run_greedy, {}),
        (run_beam, {"beam_size": 4, "beam_groups": 2}),
        (run_sample, {"samples": 2, "top_k": 3}),
    ],
)
def test_sizes_may_be_integers_of_numpy(run, options):
    table, state = language(29)
    options = {"max_length": LENGTH, **options}
    numpy_options = {name: np.int64(value) for name, value in options.items()}

    assert_agree(run(table, state, **numpy_options), run(table, state, **options))


@pytest.mark.parametrize(
    ("run", "neighbour"),
    covering(
        [run_covered, run_greedy, run_sample, run_beam],
        ["broken", "quick", "endless", "other"],
        strength=1,
    ),
)
def test_rows_are_independent(run, neighbour):
    table, state = language(49)
    before = run(table, state)
    if neighbour == "other":
        state["code"][1] += 1
    elif neighbour == "quick":
        ends_at_once(state, 1)
    elif neighbour == "endless":
        never_ends(state, 1)
    else:
        state["offset"][1] = np.nan

    after = run(table, state)

    for key, value in before.items():
        np.testing.assert_array_equal(after[key][0], value[0], err_msg=key)


@pytest.mark.parametrize("run", quick_first([run_greedy, run_sample, run_covered], 2))
def test_eager_and_compiled_searches_agree(run):
    table, state = language(59)
    never_ends(state, 1)

    assert_agree(run(table, state, how=eagerly), run(table, state, how=compiled))


@pytest.mark.parametrize(
    ("run", "half"),
    covering(
        [run_greedy, run_sample, run_beam, run_covered],
        ["float16", "bfloat16"],
        strength=1,
    ),
)
def test_half_precision_by_default_changes_nothing(run, half, set_floatx):
    constraints = {"min_length": 3, "no_repeat_ngrams": 2}
    constraints["prefix"] = ((3, -1), (-1, 5))
    # Keras on JAX would turn integers of NumPy into bfloat16.
    table, state = to_tensors(language(83))
    expected = run(table, state, how=eagerly, **constraints)

    set_floatx(half)
    result = run(table, state, how=eagerly, **constraints)

    assert_agree(result, expected)
    assert all(result[name].dtype.kind == "i" for name in ("token_ids", "lengths"))


def uniform_step(vocabulary):
    def step(token_ids, state):
        uniform = ops.zeros((*token_ids.shape, vocabulary), dtype="float32")
        return uniform, state, uniform[..., :POSITIONS]

    return step


def test_half_precision_by_default_leaves_integers(set_floatx):
    layer = ka.SelfAttention(1, 2, causal=True, dtype="float32")
    cache = layer.get_initial_cache(1, 4)
    set_floatx("bfloat16")

    _, cache = layer(ops.zeros((1, 1, 3), "float32"), cache=cache)
    zeros = ops.zeros((1, 1), "float32"), ops.zeros((1, 1, 5003), "float32")
    _, parts, indices, _ = top_k_of_sums(*zeros, 2)
    limit = checked_limit(ops.ones((1,), "int32"), 5, 1)

    options = {"limit": np.array([2, 3]), "constraints": [ka.Prefix([[3, 4], [5, -1]])]}
    step = uniform_step(VOCABULARY)
    result = ka.beam_search(step, ops.zeros((BATCH, 1)), **options, **REQUIRED)

    found_tensors = result["lengths"], result["token_ids"]
    for x in (cache["length"], parts, indices, limit, *found_tensors):
        assert keras.backend.standardize_dtype(x.dtype) == "int32"
    assert (numpy(result)["token_ids"][:, 0, 0] == [3, 5]).all()


@pytest.mark.parametrize("limit", [2**40, np.array([2**40])], ids=["one", "row"])
def test_a_limit_may_exceed_the_integers_of_a_tensor(limit):
    assert numpy(checked_limit(limit, 5, 1)).max() == 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_half_precision_by_default_does_not_draw_fewer_tokens(half, set_floatx):
    # In half precision, 2003 draws of 2048 numbers or 256 find less than 1300.
    set_floatx(half)
    state = np.zeros((1, 1), "float32")
    options = {"start": START, "end": END, "max_length": 1, "samples": 2003}

    result = numpy(ka.sample_search(uniform_step(5003), state, seed=1, **options))

    assert len(np.unique(result["token_ids"])) > 1500


every_search = pytest.mark.parametrize(
    "search", [ka.beam_search, ka.greedy_search, ka.sample_search]
)
under_xla = partial(compiled, xla=True)


@needs_tensorflow
@pytest.mark.parametrize("run", [run_covered, run_greedy])
@pytest.mark.exhaustive
def test_xla_changes_nothing(run):
    table, state = language(61)
    options = {"no_repeat_ngrams": 2, "min_length": 3, "prefix": ((3, -1), (-1, 5))}

    output = run(table, state, how=under_xla, **options)

    assert_agree(output, run(table, state, **options))


@needs_tensorflow
def test_samples_compile_under_xla():
    # XLA draws other random numbers for the same seed.
    table, state = language(61)

    result = run_sample(table, state, how=under_xla, top_k=7, top_p=0.9)

    assert_sound(result, table, state, length_penalty=0, drawn=True)


@needs_tensorflow
@pytest.mark.parametrize(
    ("run", "beam_size"),
    [
        pytest.param(run_greedy, 1, marks=pytest.mark.exhaustive),
        pytest.param(run_sample, BEAM, marks=pytest.mark.exhaustive),
        (run_beam, BEAM),
    ],
)
def test_a_graph_takes_any_batch_and_knows_all_other_dimensions(run, beam_size):
    table, state = language(67, batch=2 * BATCH)
    graphs = []

    def for_any_batch(function):
        unknown = {
            name: keras.KerasTensor((None, *x.shape[1:]), x.dtype)
            for name, x in state.items()
        }
        graphs.append(compiled(function, (keras.KerasTensor(table.shape), unknown)))
        return graphs[0]

    for batch in (0, BATCH, 2 * BATCH):
        part = {key: value[:batch] for key, value in state.items()}
        options = {"no_repeat_ngrams": 2, "min_length": 3}
        result = run(table, part, how=for_any_batch, **options)
        assert_agree(result, run(table, part, how=eagerly, **options))
    outputs = graphs[0].get_concrete_function().structured_outputs
    shapes = {name: tuple(x.shape) for name, x in outputs.items()}
    assert shapes == {
        "token_ids": (None, beam_size, LENGTH),
        "lengths": (None, beam_size),
        "scores": (None, beam_size),
        "log_probs": (None, beam_size),
        "token_log_probs": (None, beam_size, LENGTH),
        "weights": (None, beam_size, LENGTH, POSITIONS),
        "finite": (None,),
    }


@pytest.mark.parametrize(
    ("search", "needed"),
    [
        (ka.greedy_search, {-50.0: 1}),
        # The first step finishes one hypothesis, the second fills the pool, unless no
        # other hypothesis is left that could enter it.
        (
            partial(ka.beam_search, beam_size=BEAM, length_penalty=0),
            {-50.0: 2, -np.inf: 1},
        ),
    ],
)
def test_the_loop_ends_when_all_rows_are_done(search, needed):
    table, calls = random_table(73), []
    plain = make_step(table)

    def step(token_ids, state):
        if BACKEND == "jax":
            import jax

            jax.debug.callback(lambda: calls.append("at run time"))
        else:
            calls.append("eagerly")
        return plain(token_ids, state)

    # TensorFlow is left eager here: a graph would call the step once, to trace it.
    @(compiled if BACKEND == "jax" else eagerly)
    def run(state):
        return search(step, state, start=START, end=END, max_length=7)

    def count_steps(state):
        calls.clear()
        numpy(run(to_tensors(state)))
        if BACKEND == "jax":
            import jax

            jax.effects_barrier()
        return len(calls)

    for others, steps in needed.items():
        quick, mixed = random_state(73), random_state(73)
        ends_at_once(quick, 0, others)
        ends_at_once(quick, 1, others)
        ends_at_once(mixed, 0, others)
        never_ends(mixed, 1)

        # The difference, because a search may also call the step once for shapes.
        assert count_steps(mixed) - count_steps(quick) == 7 - steps


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        (run_beam, {"beam_size": 0}, "beam_size must be.* Received: 0"),
        (
            run_beam,
            {"beam_size": 10**7},
            "beam_size must be at most 10,000.*10,000,000",
        ),
        (run_beam, {"length_penalty": -0.7}, "length_penalty must.* -0.7"),
        (run_beam, {"coverage_penalty": -0.2}, "coverage_penalty must.* -0.2"),
        (
            run_beam,
            {"coverage_penalty": 0.2, "coverage_mask": ((True,) * 5,) * 2},
            r"\(batch, positions\), with 7 positions. .*: \(2, 5\)",
        ),
        (run_beam, {"coverage_mask": ((True,) * 5,) * 2}, r"7 positions. .*: \(2, 5\)"),
        (run_beam, {"coverage_mask": (True,) * 7}, r"coverage_mask must .*: \(7,\)"),
        (run_beam, {"coverage_mask": ((True,) * 7,)}, "mask must have 2 rows.*: 1"),
        (run_beam, {"coverage_mask": ((-1e9,) * 7,) * 2}, "coverage_mask must be bool"),
        (run_covered, {"prefix": ((3, 4),) * 3}, "of Prefix must have 2 rows.*: 3"),
        (run_greedy, {"prefix": ((3, 4),)}, "of Prefix must have 2 rows.*: 1"),
        (run_sample, {"prefix": ((3, 4), (-1, 11))}, "Prefix must .* below 11.*: 11"),
        (run_beam, {"length_penalty": math.inf}, "length_penalty must be finite.*inf"),
        (run_beam, {"coverage_penalty": math.inf}, "coverage_penalty must be .*inf"),
        (run_beam, {"length_penalty": 1e3}, "length_penalty .* of 5 tokens.*: 1000.0"),
        (run_sample, {"samples": 0}, "samples must be .*: 0"),
        (run_sample, {"temperature": 0}, "temperature must be positive.*: 0"),
        (run_sample, {"top_k": 0}, "top_k must be a positive integer.*: 0"),
        (run_sample, {"top_p": 0}, "top_p must be above 0 and at most 1.*: 0"),
        (run_sample, {"top_p": 1.1}, "top_p must be above 0 and at most 1.*: 1.1"),
        (run_sample, {"min_p": 1.1}, "min_p must be between 0 and 1.*: 1.1"),
        (run_beam, {"positions": 6}, "weights of 6 positions.*: 7"),
        (run_greedy, {"positions": np.int64(8)}, "weights of 8 positions.*: 7"),
        (run_beam, {"positions": -1}, "positions must be an integer, not neg.*: -1"),
        (run_sample, {"positions": 7.0}, "positions must be an integer.*: 7.0"),
        (run_sample, {"positions": True}, "positions must be an integer.*: True"),
        (run_sample, {"limit": (3, 4, 5)}, "limit must have 2 rows.*: 3"),
        (run_beam, {"max_length": 0}, "max_length must be.* Received: 0"),
        (run_beam, {"banned": (3, 11)}, r"between 0 and 10\..*: \[11\]"),
        (run_greedy, {"banned": (-1, 3)}, r"between 0 and 10\..*: \[-1\]"),
        (run_beam, {"length_penalty_form": "wu"}, "'power', 'gnmt'.*: 'wu'"),
        (run_beam, {"limit": 0}, "limit must be a positive integer.*: 0"),
        (run_beam, {"limit": (3, -1)}, r"limit must be a pos.*: \(3, -1\)"),
        (run_beam, {"limit": 1.5}, "limit must be a positive integer.*: 1.5"),
        (run_beam, {"limit": "3"}, "limit must be a positive integer.*: '3'"),
        (run_greedy, {"limit": object}, "limit must be a positive .*: <class 'object"),
        (run_greedy, {"banned": 3}, "of Ban must be a list of tokens.*: 3"),
        (run_beam, {"banned": (2.5,)}, "of Ban must be an integer.*: 2.5"),
        (run_beam, {"prefix": ((2.7,), (1.0,))}, "of Prefix must be integers.*: float"),
        (run_beam, {"end": None}, "end must be an integer.*: None"),
        (run_sample, {"start": (0, 1)}, r"start must be an integer.*: \(0, 1\)"),
        (run_beam, {"min_length": 2.5}, "min_length must be an integer.*: 2.5"),
        (run_beam, {"length_penalty": None}, "length_penalty must be fin.*: None"),
        (run_beam, {"limit": (3, 4, 5)}, "limit must have 2 rows.*: 3"),
        (run_beam, {"limit": ((3,), (4,))}, r"one for every row.*: shape \(2, 1\)"),
        (run_greedy, {"min_length": 6}, r"max_length or limit, 5\. .*: 6"),
        (run_sample, {"min_length": -1}, r"max_length or limit, 5\. .*: -1"),
        (run_beam, {"no_repeat_ngrams": 0}, "n of NoRepeatNgrams must be .*: 0"),
        (run_beam, {"prefix": (3, 4)}, r"of Prefix must have.*: \(2,\)"),
        (run_beam, {"prefix": ((3,) * 6,) * 2}, r"at most 5 tokens.*: \(2, 6\)"),
    ],
)
def test_wrong_arguments_are_named_with_what_came(run, options, message):
    table, state = language(79)

    with pytest.raises(ValueError, match=message):
        run(table, state, how=eagerly, **options)


@pytest.mark.parametrize(
    "search",
    [
        partial(ka.beam_search, coverage_penalty=0.5),
        ka.greedy_search,
        partial(ka.sample_search, samples=BEAM, seed=1),
    ],
)
def test_known_positions_save_a_call_of_the_step(search):
    plain, calls = make_step(random_table(74)), []

    def step(token_ids, state):
        calls.append(token_ids)
        return plain(token_ids, state)

    def run(**known):
        calls.clear()
        actual = search(step, to_tensors(random_state(74)), **REQUIRED, **known)
        return numpy(actual), len(calls)

    expected, count = run()
    actual, count_with_positions = run(positions=POSITIONS)

    assert count_with_positions == count - 1
    assert_agree(actual, expected)


@needs_tensorflow
@pytest.mark.exhaustive
@pytest.mark.parametrize("positions", [1, POSITIONS])
def test_positions_are_known_where_those_of_the_step_are_not(positions):
    import tensorflow as tf

    table, state = random_table(75), to_tensors(random_state(75))
    attention = ops.convert_to_tensor(ATTENTION[:, :positions])

    def search(attention, known):
        step = make_step(table, attention)
        options = {"coverage_penalty": 0.5, **REQUIRED}
        return ka.beam_search(step, state, positions=known, **options)

    unknown = tf.TensorSpec([HISTORIES, None], tf.float32)
    traced = tf.function(lambda x: search(x, positions), input_signature=[unknown])
    assert_agree(numpy(traced(attention)), numpy(search(attention, None)))


@every_search
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda answer: answer[:2], "three values, log_probs, state and .*: 2"),
        (lambda answer: answer[0], "three values, log_probs, state and .*: 1"),
        (lambda answer: (answer[0][:, 0], *answer[1:]), r"log_probs of .*: \(2, 11\)"),
        (lambda answer: (*answer[:2], answer[2][:, 0]), r"weights of .*: \(2, 7\)"),
        (lambda answer: (*answer[:2], None), "weights of the shape .*: None"),
    ],
)
def test_wrong_results_of_a_step_are_named(search, change, message):
    plain = make_step(random_table(79))
    options = dict(REQUIRED)
    counts = {ka.beam_search: "beam_size", ka.sample_search: "samples"}
    if search in counts:
        # As many hypotheses as rows: what has one axis less would be broadcast.
        options[counts[search]] = BATCH

    def step(token_ids, state):
        return change(plain(token_ids, state))

    with pytest.raises(ValueError, match=message):
        search(step, to_tensors(random_state(79)), **options)


@every_search
@pytest.mark.parametrize("state", [{}, None])
def test_a_state_without_rows_is_named(search, state):
    step = make_step(random_table(79))

    with pytest.raises(ValueError, match=f"state must hold .*Received: {state}"):
        search(step, state, **REQUIRED)


@every_search
@pytest.mark.parametrize("name", ["start", "end"])
@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**31])
def test_a_token_outside_of_the_vocabulary_is_named(search, name, token):
    embedding = keras.layers.Embedding(VOCABULARY, VOCABULARY)

    def step(token_ids, state):
        log_probs = ops.log_softmax(embedding(token_ids))
        return log_probs, state, ops.zeros((*token_ids.shape, POSITIONS))

    options = {"start": START, "end": END, name: token}
    message = rf"{name} must be a token between 0 and 10\. Received: {token}"
    with pytest.raises(ValueError, match=message):
        search(step, ops.zeros((BATCH, 1)), max_length=LENGTH, **options)
