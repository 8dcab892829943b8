"""Captions with adaptive attention, whose sentinel is the weight of the memory."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.metrics import sentinel_of_words
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.text import END, START
from programs import training

from keras_attention import doubly_stochastic_penalty

IMAGES, CAPTIONS, WORDS, REGIONS = 2, 3, 5, 4
CAPTION = Caption(
    text="a dog",
    words=["a", "dog"],
    score=-1.0,
    log_probability=-2.0,
    mean_log_probability=-1.0,
    probabilities=[0.5, 0.25],
    weights=np.full((2, 2, 2), 0.1, "float32"),
    sentinel=[0.875, 0.0625],
)


@pytest.fixture
def batch(rng, adaptive_captioner):
    depth = adaptive_captioner.network.backbone.depth
    captions = rng.integers(4, 13, (IMAGES, CAPTIONS, WORDS + 1))
    captions[..., 0], captions[..., -1] = START, END
    features = rng.normal(size=(IMAGES, REGIONS, depth)).astype("float32")
    return {"features": features, "captions": captions}


def numpy(tensors):
    return keras.tree.map_structure(ops.convert_to_numpy, tensors)


def test_the_weights_of_a_word_and_the_sentinel_sum_to_one(adaptive_captioner, batch):
    found = numpy(adaptive_captioner.network(batch))

    assert found["sentinel"].shape == (IMAGES, CAPTIONS, WORDS)
    assert np.ptp(found["sentinel"]) > 1e-3
    looking = found["weights"].sum(axis=-1)
    np.testing.assert_allclose(looking, 1 - found["sentinel"], atol=1e-6)
    shares = found["weights"] / looking[..., None]
    np.testing.assert_allclose(found["probabilities"], shares, atol=1e-6)


def test_stepping_equals_the_full_pass(adaptive_captioner, batch):
    network = adaptive_captioner.network
    expected = numpy(network(batch))
    memory, state = network.begin(batch)
    state = keras.tree.map_structure(
        lambda x: ops.repeat(x[:, None], CAPTIONS, axis=1), state
    )

    for t in range(WORDS):
        tokens = batch["captions"][..., t]
        _, _, shares = network.step(tokens, state, memory, "probabilities")
        log_probs, state, weights = numpy(network.step(tokens, state, memory))
        logits = ops.log_softmax(expected["logits"][:, :, t])
        np.testing.assert_allclose(log_probs, numpy(logits), atol=1e-5)
        for maps, name in ((weights, "weights"), (numpy(shares), "probabilities")):
            wanted = expected[name][:, :, t], expected["sentinel"][:, :, t, None]
            wanted = np.concatenate(wanted, axis=-1)
            np.testing.assert_allclose(maps, wanted, atol=1e-6)


def test_the_lstm_reads_the_word_and_the_whole_image(adaptive_captioner, batch):
    cell = adaptive_captioner.network.decoder.cell.cell
    kernel = numpy(cell.kernel)
    memory, _ = adaptive_captioner.network.begin(batch)
    depth = memory["image"].shape[-1]

    # The inputs of the LSTM are the word, then the image, and no context.
    assert len(kernel) == adaptive_captioner.config.embedding_units + depth
    image = numpy(memory["image"])
    assert (image >= 0).all() and np.ptp(image, axis=0).max() > 1e-3


def test_the_doubly_stochastic_penalty_ignores_the_sentinel(adaptive_captioner, batch):
    network = adaptive_captioner.network
    outputs, losses = network(batch), []
    for share in (0.0, 0.5):
        network.loss_options.doubly_stochastic = share
        losses.append(float(network.compute_loss(batch, None, outputs)))
    network.loss_options.doubly_stochastic = 0.0

    mask = np.ones((IMAGES, CAPTIONS, WORDS), "bool")
    penalty = doubly_stochastic_penalty(outputs["probabilities"], mask)
    expected = 0.5 * float(ops.sum(penalty)) / mask.sum()
    assert losses[1] - losses[0] == pytest.approx(expected, rel=1e-4)


def test_captions_report_the_sentinel(eager, adaptive_captioner, tmp_path):
    adaptive_captioner.save(tmp_path / "model")
    captioner = Captioner.from_preset(tmp_path / "model")
    image = np.full((20, 20, 3), 99, "uint8")

    used, shares = (
        captioner.caption(image, maps=x) for x in ("weights", "probabilities")
    )

    assert len(used.sentinel) == len(used.words) > 1
    assert used.weights.shape == (len(used.words), 2, 2)
    looking = used.weights.sum(axis=(1, 2))
    np.testing.assert_allclose(looking, 1 - np.array(used.sentinel), atol=1e-5)
    np.testing.assert_allclose(shares.weights.sum(axis=(1, 2)), 1, atol=1e-5)
    assert shares.sentinel == pytest.approx(used.sentinel)
    assert used.details()["sentinel"] == [round(x, 4) for x in used.sentinel]


def test_the_sentinel_of_frequent_words():
    other = dataclasses.replace(CAPTION, words=["a", "cat"], sentinel=[0.625, 0.5])

    assert sentinel_of_words([CAPTION, other], 2) == [("a", 0.75)]
    assert sentinel_of_words([CAPTION, other], 1) == [
        ("a", 0.75),
        ("cat", 0.5),
        ("dog", 0.0625),
    ]


@pytest.mark.parametrize("names", [("soft", "adaptive"), ("adaptive", "hard")])
def test_adaptive_and_other_attention_cannot_replace_each_other(
    names, captioner, adaptive_captioner
):
    old, new = names
    models = {"soft": captioner, "adaptive": adaptive_captioner}

    received = f"attention='{old}'. Received: attention='{new}'"
    with pytest.raises(UserError, match=received):
        Captioner.changed(models[old].config, {"attention": new})

    same = Captioner.changed(models[old].config, {"attention": old, "dropout": 0.1})
    assert same.dropout == 0.1


@pytest.mark.exhaustive
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="exports need TensorFlow"
)
def test_exports_report_the_sentinel(adaptive_captioner, squares, tmp_path):
    import tensorflow as tf

    adaptive_captioner.save(tmp_path / "model")
    captioner = Captioner.from_preset(tmp_path / "model")
    path = squares / "Images" / "red-8.png"
    expected = captioner.caption(path)
    options = ["--model", str(tmp_path / "model")]
    assert main(["export", str(tmp_path / "served"), *options]) == 0
    served = tf.saved_model.load(str(tmp_path / "served"))
    found = served.serve(tf.constant([path.read_bytes(), b"text"]))
    count = len(expected.words)
    np.testing.assert_allclose(
        found["attention"][0, :count], expected.weights, atol=1e-4
    )
    np.testing.assert_allclose(
        found["sentinel"][0, :count], expected.sentinel, atol=1e-4
    )
    assert not np.any(found["sentinel"][0, count:])
    assert not np.any(found["sentinel"][1])


@pytest.mark.exhaustive
def test_trains_and_evaluates(squares, tmp_path, capsys, without_java):
    options = {
        "data": squares,
        "output": tmp_path / "run",
        "attention": "adaptive",
        "cache": tmp_path / "cache",
        "backbone-weights": "none",
        "model.backbone": "SmallCNN",
        "model.image-size": 16,
        "model.units": 13,
        "epochs": 1,
        "fine-tune-epochs": 1,
        "self-critical-epochs": 1,
    }
    assert main(training(options)) == 0

    model = str(tmp_path / "run" / "model")
    assert main(["evaluate", "--data", str(squares), "--model", model]) == 0

    assert "% of the attention of a word" in capsys.readouterr().out
    report = (tmp_path / "run" / "report.html").read_text()
    assert ", image " in report
