"""Self-critical training, and its rewards."""

import dataclasses

import keras
import numpy as np
import pytest
import sacrebleu
from pycocoevalcap.cider.cider import Cider

from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.network.networks import ShowAttendTell
from keras_attention_apps.captioner.training.self_critical import (
    BleuReward,
    CiderReward,
    SelfCriticalCaptions,
)
from keras_attention_apps.captioner.vocabulary import Vocabulary, tokenize
from keras_attention_apps.common.tokenizer import END, PAD, START, UNKNOWN

from .conftest import TINY

CONFIG = dataclasses.replace(TINY, max_length=4, dropout=0.0)
REFERENCES = [["dog", "a dog"], ["cat", "a cat"]]


def self_critical(captioner, reward=None, **options):
    features = np.zeros((2, 4, 130), "float32")
    features[0, :, :40] = features[1, :, 40:80] = 1.0
    reward = reward or CiderReward(REFERENCES)
    options = {"samples": 7, **options}
    return SelfCriticalCaptions(
        captioner, [features], reward, batch_images=2, seed=5, **options
    )


@pytest.fixture
def captioner():
    keras.utils.set_random_seed(1)
    vocabulary = Vocabulary(["a", "dog", "cat"])
    network = ShowAttendTell(CONFIG, len(vocabulary))
    network.build()
    network.compile(keras.optimizers.Adam(0.02), jit_compile=False)
    return Captioner(CONFIG, vocabulary, network)


@pytest.fixture
def batches(captioner):
    return self_critical(captioner)


def test_the_baseline_of_a_sample_is_the_mean_of_the_others(eager, batches):
    batch, mean = batches.sample(np.array([1, 0]), step=0)

    words_of = batches.captioner.words_of
    for row, photograph in enumerate((1, 0)):
        rewards = []
        for token_ids in batch["captions"][row]:
            assert token_ids[0] == START
            words = words_of([t for t in token_ids[1:] if t != PAD])
            rewards.append(batches.reward(words, photograph))
        for i, advantage in enumerate(batch["advantages"][row]):
            others = np.mean(rewards[:i] + rewards[i + 1 :])
            assert advantage == pytest.approx(rewards[i] - others, abs=1e-5)
    assert mean > 0


def test_samples_depend_on_seed_and_step_alone(eager, batches):
    first, _ = batches.sample(np.array([0, 1]), step=3)
    other, _ = batches.sample(np.array([0, 1]), step=4)
    again, _ = batches.sample(np.array([0, 1]), step=3)

    np.testing.assert_array_equal(first["captions"], again["captions"])
    assert (first["captions"] != other["captions"]).any()


def test_the_gradient_raises_better_samples_and_lowers_worse_ones(eager, batches):
    network = batches.captioner.network
    captions = np.array([[[START, 5, END], [START, 6, END]]], "int32")
    features = batches.features[0][:1]

    def log_probabilities():
        logits = network({"features": features, "captions": captions})["logits"]
        log_probs = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits))
        return log_probs[0, 0, 0, 5], log_probs[0, 1, 0, 6]

    before = log_probabilities()
    advantages = np.array([[1.0, -1.0]], "float32")
    batch = {"features": features, "captions": captions, "advantages": advantages}
    network.train_on_batch(batch)
    after = log_probabilities()
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_the_loss_is_of_the_distribution_that_samples_are_drawn_from(batches):
    network = batches.captioner.network
    network.sample_temperature = 0.25
    captions = np.array([[[START, 5, 4, END]]], "int32")
    batch = {"features": batches.features[0][:1], "captions": captions}
    outputs = network(batch)
    advantages = np.array([[-3.0]], "float32")
    loss = network.compute_loss({**batch, "advantages": advantages}, None, outputs)

    scores = keras.ops.convert_to_numpy(outputs["logits"])[0, 0] / 0.25
    scores = np.delete(scores, [PAD, START, UNKNOWN], axis=-1)
    log_probs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    allowed = [token for token in range(7) if token not in (PAD, START, UNKNOWN)]
    chosen = [log_probs[t, allowed.index(x)] for t, x in enumerate(captions[0, 0, 1:])]
    assert float(loss) == pytest.approx(3.0 * np.mean(chosen), rel=1e-4)


def test_a_low_temperature_samples_probable_words(eager, captioner):
    captioner.network.sample_temperature = 1e-3
    batches = self_critical(captioner)
    search = captioner.search_model(beam_size=1, no_repeat_ngrams=0)
    outputs = search.predict_on_batch({"features": batches.features[0]})
    batch, _ = batches.sample(np.array([0, 1]), step=0)

    greedy = np.array(outputs["token_ids"])
    for row, samples in enumerate(batch["captions"]):
        for sample in samples:
            length = (sample[1:] != PAD).sum()
            np.testing.assert_array_equal(sample[1:][:length], greedy[row, 0, :length])


def test_every_step_draws_a_view(eager, captioner):
    first = np.zeros((3, 4, 130), "float32")
    views = [first, first + 1.0]
    batches = SelfCriticalCaptions(
        captioner, views, lambda words, i: i, batch_images=3, samples=2, seed=5
    )
    samples = (batches.sample(np.arange(3), step) for step in range(8))
    drawn = [batch["features"][:, 0, 0] for batch, _ in samples]

    assert len(batches) == 1
    assert {0.0, 1.0} == set(np.concatenate(drawn))
    assert any(len(set(batch)) == 2 for batch in drawn)


@pytest.mark.exhaustive
def test_training_raises_the_reward(batches):
    history = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: history.append(logs["reward"])
    )
    batches.fit(epochs=60, callbacks=[note])

    assert np.mean(history[-9:]) > np.mean(history[:9]) + 0.3


@pytest.mark.exhaustive
def test_a_callback_stops_the_training(eager, batches):
    epochs = []

    def stop(epoch, logs):
        epochs.append(epoch)
        batches.network.stop_training = epoch == 1

    note = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    batches.fit(epochs=4, callbacks=[note])

    assert epochs == [0, 1]


REWARDED = [
    ["A dog runs over the grass .", "the brown dog is running"],
    ["Two men play football .", "men in the park play with a ball", "a ball game"],
    ["A girl in a red dress sits on a swing", "the girl is swinging"],
]
CAPTIONS = [
    "a dog runs",
    "two men men men play with the ball in the park of the big city today",
    "something else entirely",
]


def test_the_cider_reward_equals_the_metric():
    reward = CiderReward(REWARDED)
    ours = [reward(tokenize(text), i) for i, text in enumerate(CAPTIONS)]

    def ended(text):
        return " ".join([*tokenize(text), "<end>"])

    truth = {i: [ended(text) for text in texts] for i, texts in enumerate(REWARDED)}
    captions = {i: [ended(text)] for i, text in enumerate(CAPTIONS)}
    _, theirs = Cider().compute_score(truth, captions)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
    assert ours[0] > 0.1


def test_an_incomplete_caption_has_a_lower_reward():
    reward = CiderReward(REWARDED)

    whole = reward(tokenize("men in the park play with a ball"), 1)
    broken = reward(tokenize("men in the park play with a"), 1)
    assert broken < 0.8 * whole


@pytest.mark.parametrize("kind", [CiderReward, BleuReward])
@pytest.mark.parametrize("words", [[], ["unheard-of"]])
def test_worthless_captions_have_a_small_finite_reward(kind, words):
    assert 0 <= kind(REWARDED)(words, 2) < 0.5


@pytest.mark.parametrize("photograph, text", [*enumerate(CAPTIONS), (0, "a dog")])
def test_the_bleu_reward_equals_the_smoothed_metric(photograph, text):
    reward = BleuReward(REWARDED)(tokenize(text), photograph)

    text, *references = (" ".join(tokenize(x)) for x in (text, *REWARDED[photograph]))
    options = {"smooth_method": "add-k", "smooth_value": 1, "tokenize": "none"}
    truth = sacrebleu.sentence_bleu(text, references, **options)
    assert reward == pytest.approx(truth.score / 100, abs=1e-9)
