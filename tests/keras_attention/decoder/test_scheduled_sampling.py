import keras
import numpy as np
import pytest
from keras import ops, tree

import keras_attention as ka
from attention_testing.arrays import assert_close, draw, numpy, softmax
from attention_testing.combinations import covering

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, SEQUENCES, STEPS, DEPTH, UNITS, WORDS = 2, 3, 5, 7, 11, 13

LINEAR = keras.optimizers.schedules.PolynomialDecay(0.0, 4, 1.0)


def random_layers():
    embed = keras.layers.Embedding(WORDS, DEPTH)
    embed.build((None,))
    classify = keras.layers.Dense(WORDS)
    classify.build((None, UNITS))
    return embed, classify


def sampling_of(embed, classify, rate):
    return ka.ScheduledSampling(
        embed, lambda inputs, outputs: classify(outputs["output"]), rate
    )


def of_logits(logits):
    """Sampling with the same logits for every row; `embed` returns the token ids."""

    def predict(inputs, outputs):
        return ops.tile(ops.convert_to_tensor([logits]), (ops.shape(inputs)[0], 1))

    return ka.ScheduledSampling(lambda ids: ops.cast(ids[:, None], "float32"), predict)


def choose(sampling, use_sample, uniform, inputs, previous, output):
    """Let a sampling choose the input of a step, from arrays."""
    noise = {"use_sample": use_sample, "uniform": uniform}
    arrays = noise, inputs, previous, {"output": output}
    return sampling.choose(*tree.map_structure(ops.convert_to_tensor, arrays))


def chosen(sampling, uniform):
    every, uniform = np.ones(len(uniform), "bool"), np.float32(uniform)
    inputs = np.full((len(uniform), 1), -1, "float32")
    output = np.zeros((len(uniform), UNITS), "float32")
    return numpy(choose(sampling, every, uniform, inputs, inputs, output))[:, 0]


def test_word_worked_by_hand():
    # The cumulated probabilities are 0, .2, .5, .5 and 1: two words never come.
    with np.errstate(divide="ignore"):
        logits = np.log(np.float32([0, 0.2, 0.3, 0, 0.5]))

    words = chosen(of_logits(logits + 7), [0, 0.19, 0.21, 0.49, 0.51, 0.99])

    assert words.tolist() == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize("words", [3, 1009])
def test_the_largest_number_draws_the_last_word(words):
    # Rounded, the probabilities of many words add up to less than one.
    logits = np.linspace(0, 1, words).astype("float32")

    assert chosen(of_logits(logits), [1 - 2**-24]) == words - 1


def test_words_are_sampled_from_the_distribution_of_the_model():
    logits = np.float32([0.5, -1, 0, 1.5, -30])
    sampling, rows = of_logits(logits), 20_000
    noise = numpy(sampling.draw(2, (rows,)))

    counts = np.bincount(np.int32(chosen(sampling, noise["uniform"][1])), minlength=5)

    # Five standard deviations.
    assert_close(counts / rows, softmax(logits), 5 * np.sqrt(0.25 / rows))
    assert counts[-1] == 0


@pytest.mark.parametrize("leading", [(4001,), (4001, SEQUENCES)])
def test_samples_are_as_frequent_as_the_rate_and_never_at_the_first_step(leading):
    noise = numpy(ka.ScheduledSampling(len, len, 0.25).draw(STEPS, leading))

    assert noise["use_sample"].shape == noise["uniform"].shape == (STEPS, *leading)
    assert noise["use_sample"].dtype == bool
    assert not noise["use_sample"][0].any()
    size = np.size(noise["use_sample"][1])
    for samples in noise["use_sample"][1:]:
        assert abs(samples.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / size)
    assert (noise["use_sample"][1] != noise["use_sample"][2]).any()
    # Whether a word is sampled does not depend on which word is sampled.
    of_own_words = noise["uniform"][noise["use_sample"]]
    assert abs(of_own_words.mean() - 0.5) < 5 / np.sqrt(12 * of_own_words.size)


@pytest.mark.parametrize("leading", [(101,), (101, SEQUENCES)])
def test_each_row_is_sampled_independently(rng, leading):
    # Every draw is the word 3.
    sampling = of_logits(1e4 * np.eye(WORDS, dtype="float32")[3])
    inputs, output = draw(rng, (*leading, 1), (*leading, UNITS))
    noise = {name: x[1] for name, x in numpy(sampling.draw(2, leading)).items()}

    words = choose(sampling, **noise, inputs=inputs, previous=inputs, output=output)

    use_sample = noise["use_sample"][..., None]
    assert use_sample.any() and not use_sample.all()
    np.testing.assert_array_equal(numpy(words), np.where(use_sample, 3, inputs))


def test_rows_of_several_sequences_keep_their_order(rng):
    inputs, output = draw(rng, (BATCH, SEQUENCES, DEPTH), (BATCH, SEQUENCES, UNITS))
    embed, classify = random_layers()
    sampling = ka.ScheduledSampling(
        embed, lambda inputs, outputs: classify(outputs["output"]) + inputs[:, :1]
    )
    every = np.ones((BATCH, SEQUENCES), "bool")
    arrays = every, rng.random(every.shape, "float32"), inputs, inputs, output

    words = numpy(choose(sampling, *arrays))

    for k in range(SEQUENCES):
        alone = choose(sampling, *[x[:, k] for x in arrays])
        np.testing.assert_allclose(words[:, k], numpy(alone))


def test_no_gradient_passes_through_the_choice(rng, gradients):
    embed, classify = random_layers()
    sampling = sampling_of(embed, classify, 1.0)
    use_sample = np.array([True, False])
    inputs, previous, output = draw(rng, (BATCH, DEPTH), (BATCH, DEPTH), (BATCH, UNITS))
    uniform = rng.random(BATCH, "float32")

    def read(*tensors):
        return ops.sum(choose(sampling, use_sample, uniform, *tensors))

    variables = [embed.embeddings, classify.kernel, classify.bias]
    grads = gradients(read, [inputs, previous, output], variables)

    of_inputs, of_previous, of_output, of_embeddings, *of_classify = grads
    np.testing.assert_array_equal(of_inputs, ~use_sample[:, None] + 0 * inputs)
    # The embedding of the sampled word has a gradient, like that of any input.
    assert sorted(of_embeddings[:, 0]) == [0] * (WORDS - 1) + [1]
    for gradient in (of_previous, of_output, *of_classify):
        assert (gradient == 0).all()


def test_repeats_under_a_seed():
    def draws(seed):
        sampling = ka.ScheduledSampling(len, len, seed=seed)
        return [numpy(sampling.draw(STEPS, (101,))) for _ in range(2)]

    first, again, other = draws(3), draws(3), draws(4)

    assert_close(first, again, atol=0)
    for name in ("use_sample", "uniform"):
        assert (first[0][name] != first[1][name]).any()
        assert (first[0][name] != other[0][name]).any()


def test_a_generator_is_its_own_seed():
    generator = keras.random.SeedGenerator(3)
    sampling = ka.ScheduledSampling(None, None, seed=generator)

    assert sampling.seed_generator is generator
    copy = ka.ScheduledSampling.from_config(sampling.get_config())
    assert copy.seed.get_config() == generator.get_config()


def test_rate_follows_its_schedule_pass_by_pass():
    sampling = ka.ScheduledSampling(len, len, LINEAR)

    draws = [numpy(sampling.draw(2, (4001,)))["use_sample"][1] for _ in range(6)]

    shares = np.mean(draws, axis=1).tolist()
    np.testing.assert_allclose(shares, [0, 0.25, 0.5, 0.75, 1, 1], atol=0.04)
    assert shares[0] == 0
    assert shares[-2:] == [1, 1]
    assert int(sampling.passes) == 6
    assert sampling.passes.dtype.startswith("int")
    assert not sampling.passes.trainable


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_mixed_precision(half):
    words, seen = 4001, []

    def predict(inputs, outputs):
        return ops.zeros((ops.shape(inputs)[0], words), half)

    def embed(token_ids):
        seen.append(numpy(token_ids))
        return ops.ones((ops.shape(token_ids)[0], DEPTH))

    sampling = ka.ScheduledSampling(embed, predict, 1.0, dtype=f"mixed_{half}")
    noise = {name: x[1] for name, x in sampling.draw(2, (101,)).items()}
    inputs = ops.zeros((101, DEPTH), half)

    sampled = sampling.choose(noise, inputs, inputs, {"output": inputs})

    assert keras.backend.standardize_dtype(sampled.dtype) == half
    uniform = numpy(noise["uniform"])
    assert uniform.dtype == "float32"
    assert abs(seen[0] - np.floor(uniform * words)).max() <= 1


@pytest.mark.parametrize("k", [1, 7.5, 1000])
def test_inverse_sigmoid_follows_the_paper(k):
    rate = ka.InverseSigmoidRate(k)

    for i in (0, 1, 50):
        expected = 1 - k / (k + np.exp(i / k))
        assert float(rate(i)) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert float(rate(10**6 * k)) == 1
    config = keras.optimizers.schedules.serialize(rate)
    assert keras.optimizers.schedules.deserialize(config).k == k


@pytest.mark.parametrize("name", ["embed", "predict"])
def test_layers_must_be_callable(name):
    arguments = {"embed": len, "predict": len, name: "dense"}

    with pytest.raises(ValueError, match=f"{name} must be a layer.*'dense'"):
        ka.ScheduledSampling(**arguments)


@pytest.mark.parametrize("name", ["embed", "predict"])
def test_layers_must_be_built(name):
    arguments = {"embed": len, "predict": len, name: keras.layers.Dense(3)}

    with pytest.raises(ValueError, match=f"{name} is not built.*Received: <Dense"):
        ka.ScheduledSampling(**arguments).draw(STEPS, (BATCH,))


def test_logits_of_the_wrong_rank_are_named():
    message = r"of the shape \(rows, words\). Received: \(4, 2, 3\)"

    with pytest.raises(ValueError, match=message):
        chosen(ka.ScheduledSampling(len, lambda *_: ops.zeros((4, 2, 3))), [0.5] * 4)


CHOICES = {
    "Bahdanau": {"gate": True},
    "Luong": {"order": "current"},
    "Luong, fed": {"order": "current", "input_feeding": True},
}
CHOICES["Luong, fed"]["attentional_vector"] = UNITS


@pytest.mark.parametrize(
    ("choice", "leading"), covering(CHOICES, [(), (SEQUENCES,)], strength=1)
)
def test_a_decoder_returns_the_sampled_inputs(rng, choice, leading):
    # With the largest logit far ahead, every draw is that word.
    embed, classify = random_layers()
    classify.kernel.assign(1e7 * classify.kernel)
    attention = ka.LuongAttention("general")
    cell = ka.AttentionCell(keras.layers.LSTMCell(UNITS), attention, **CHOICES[choice])
    inputs, value = draw(rng, (BATCH, *leading, STEPS, DEPTH), (BATCH, 17, 19))
    mask = np.ones((BATCH, *leading, STEPS), "bool")
    mask[0, ..., 2] = False
    decoder = ka.AttentionDecoder(cell, sampling=sampling_of(embed, classify, 1.0))

    results = numpy(decoder(inputs, value, inputs_mask=mask, training=True))
    taught = numpy(decoder(inputs, value, inputs_mask=mask, training=False))

    memory = cell.attention.memory(value)
    zeros = np.zeros((BATCH, *leading, UNITS), "float32")
    state = cell.complete_state({"cell": [zeros, zeros]}, memory)
    x = inputs[..., 0, :]
    for t in range(STEPS):
        keep = mask[..., t, None]
        outputs, new_state = numpy(cell(x, state, memory))
        state = tree.map_structure(
            lambda new, old, keep=keep: np.where(keep, new, old), new_state, state
        )
        output = outputs["output"]
        assert_close(results["output"][..., t, :], output * keep)
        assert_close(results["word_inputs"][..., t, :], x * keep, 1e-6)
        x = numpy(embed(ops.argmax(classify(output), axis=-1)))
        # A masked step has no output to sample from.
        x = np.where(keep, x, inputs[..., min(t + 1, STEPS - 1), :])
    assert_close(results["output"][..., 0, :], taught["output"][..., 0, :])
    assert abs(results["output"] - taught["output"])[..., 1, :].max() > 1e-3
    masked = np.where(mask[..., None], inputs, 0)
    np.testing.assert_array_equal(taught["word_inputs"], masked)


def test_sampling_of_a_decoder_must_be_scheduled_sampling():
    cell = ka.AttentionCell(keras.layers.GRUCell(UNITS), ka.AdditiveAttention(DEPTH))

    with pytest.raises(ValueError, match=r"ScheduledSampling.*Received: 0\.25"):
        ka.AttentionDecoder(cell, sampling=0.25)
