import keras
import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from attention_testing.combinations import quick_first
from keras_attention_apps.common.tokenizer import END, PAD, START
from keras_attention_apps.nmt.data.batches import SentenceBatches
from keras_attention_apps.nmt.data.dataset import Pairs, read_pairs
from keras_attention_apps.nmt.training.train import (
    BleuChrfReward,
    SelfCriticalTranslations,
)

from .conftest import untrained


def self_critical(translator, corpus, reward=None, *, samples=4, **options):
    """Self-critical training on 16 sentences, by default in one step."""
    pairs = read_pairs(corpus / "train.en", corpus / "train.fr")
    pairs = Pairs(pairs.source[:16], pairs.target[:16])
    options = {"batch_tokens": 10_000, "max_length": 20, **options}
    batches = SentenceBatches(pairs, translator.tokenizer, **options)
    reward = reward or BleuChrfReward(pairs.target)
    options = {"samples": samples, "seed": 5}
    return SelfCriticalTranslations(translator, batches, reward, **options)


@pytest.fixture(params=quick_first(["bahdanau", "self-attention"]))
def learning(request, subwords):
    translator = untrained(subwords, request.param, decoder_layers=2)
    translator.network.compile(keras.optimizers.Adam(0.02), jit_compile=False)
    return translator


def test_samples_are_compared_with_their_own_translation(learning, corpus):
    calls = []

    def reward(text, reference):
        calls.append((text, reference))
        return len(text)

    batches = self_critical(learning, corpus, reward)
    (items, *_) = batches.plan(0)
    batch, mean = batches.sample(items, step=0)

    decode = learning.tokenizer.decode
    assert (batch["target"][..., 0] == START).all()
    for row, (source, target) in enumerate(items):
        np.testing.assert_array_equal(batch["source"][row, : len(source)], source)
        texts = [decode(x[x != PAD]) for x in batch["target"][row, :, 1:]]
        assert {(text, decode(target)) for text in texts} <= set(calls)
        rewards = [*map(len, texts)]
        others = (sum(rewards) - np.array(rewards)) / 3
        np.testing.assert_allclose(batch["advantages"][row], rewards - others, 1e-5)
    assert mean > 0


def test_samples_are_no_longer_than_they_must_be(learning, corpus, monkeypatch):
    logits, end = learning.network.logits, np.zeros(len(learning.tokenizer), "float32")
    # At every step, about half of the unfinished samples end.
    end[END] = np.log(len(end))
    monkeypatch.setattr(learning.network, "logits", lambda x: logits(x) + end)
    batches = self_critical(learning, corpus)
    (items, *_) = batches.plan(0)
    batch, _ = batches.sample(items, step=0)

    tokens = batch["target"][..., 1:]
    ends = (tokens == END).argmax(-1) + 1
    assert (tokens == END).any(-1).all()
    assert ends.max() == tokens.shape[-1] < 20
    behind = np.arange(tokens.shape[-1]) >= ends[..., None]
    assert (tokens[behind] == PAD).all()


@pytest.mark.exhaustive
def test_rows_of_padding_change_neither_samples_nor_loss(learning, corpus):
    unpadded, padded = (
        self_critical(learning, corpus, few_shapes=True, devices=devices)
        for devices in (1, 3)
    )
    (items, *_) = unpadded.plan(0)
    items = items[:13]
    plain, reward = unpadded.sample(items, step=0)
    batch, padded_reward = padded.sample(items, step=0)

    assert [len(x["target"]) for x in (plain, batch)] == [16, 24]
    for name, array in batch.items():
        np.testing.assert_array_equal(array[:13], plain[name][:13])
    assert (batch["target"][13:] == PAD).all()
    assert padded_reward == reward
    network = learning.network
    loss, padded_loss = (
        float(network.compute_loss(x, None, network(x, training=True)))
        for x in (plain, batch)
    )
    assert padded_loss == pytest.approx(loss, rel=1e-5)


def test_samples_depend_on_seed_and_step_alone(learning, corpus):
    batches = self_critical(learning, corpus)
    (items, *_) = batches.plan(0)
    first, other, again = (batches.sample(items, step)[0] for step in (3, 4, 3))

    np.testing.assert_array_equal(first["target"], again["target"])
    assert not np.array_equal(first["target"], other["target"])


@pytest.mark.parametrize("output_bias", [False, True])
def test_the_loss_is_of_the_distribution_that_samples_are_drawn_from(
    subwords, output_bias
):
    network = untrained(subwords, "self-attention", output_bias=output_bias).network
    if output_bias:
        size = len(subwords)
        network.output_bias.assign(np.linspace(-1, 1, size, dtype="float32"))
    check_loss_of_samples(network)


@pytest.mark.exhaustive
def test_the_loss_of_a_recurrent_network_is_of_that_distribution(subwords):
    check_loss_of_samples(untrained(subwords, "bahdanau").network)


def check_loss_of_samples(network):
    network.sample_temperature = 0.25
    source = np.array([[7, 8, 9, END]], "int32")
    target = np.array([[[START, 40, 50, END], [START, 60, END, PAD]]], "int32")
    advantages = np.array([[-3.0, 2.0]], "float32")
    batch = {"source": source, "target": target, "advantages": advantages}
    loss = network.compute_loss(batch, None, network(batch, training=True))

    costs = []
    for sample in target[0]:
        hidden = network({"source": source, "target": sample[None]}, training=False)
        scores = keras.ops.log_softmax(network.logits(hidden) / 0.25)[0]
        scores = keras.ops.convert_to_numpy(scores)
        costs.append([-scores[t, x] for t, x in enumerate(sample[1:]) if x != PAD])
    expected = (-3.0 * sum(costs[0]) + 2.0 * sum(costs[1])) / 5
    assert float(loss) == pytest.approx(expected, rel=1e-4)


@pytest.mark.exhaustive
def test_training_raises_the_reward(learning, corpus):
    history = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: history.append(logs["reward"])
    )

    def count(text, reference):
        return text.count("chat") - 0.1 * len(text.split())

    batches = self_critical(learning, corpus, count, samples=8)
    learning.network.optimizer.learning_rate = 0.05
    batches.fit(epochs=7, callbacks=[note])

    assert len(history) == 7
    assert np.mean(history[-2:]) > np.mean(history[:2]) + 0.3


def test_rewards_equal_sacrebleu():
    text, reference = "Ein Hund läuft schnell.", "Ein Hund läuft im Park."
    reward = BleuChrfReward([reference])

    bleu = BLEU(effective_order=True).sentence_score(text, [reference]).score
    chrf = CHRF().sentence_score(text, [reference]).score
    assert reward(text, reference) == pytest.approx((bleu + chrf) / 100)
    assert 0 < bleu != chrf > 0
    assert reward(reference, reference) == pytest.approx(2.0)
    assert reward("", reference) == 0
    assert reward(text, "") == 0


def test_chinese_is_compared_by_characters():
    reward = BleuChrfReward(["我们看见了一只很大的狗。"])
    assert reward("我们看见了一只很小的猫。", "我们看见了一只很大的狗。") > 0.5
