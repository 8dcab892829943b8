import dataclasses
import functools
import threading

import keras
import numpy as np
import pytest

from attention_testing.captioner.image_files import encode, lazy_image, noise
from attention_testing.programs import assert_same_results
from keras_attention_apps.captioner.images import ImageError
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.network.networks import build_network
from keras_attention_apps.captioner.vocabulary import Vocabulary
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import END


@pytest.fixture
def photograph():
    return noise(53, 37)


def test_a_caption_has_a_word(eager, model_folder, photograph, monkeypatch):
    captioner = Captioner.from_preset(model_folder)
    network = captioner.network
    [vectors] = network.embedding.get_weights()
    vectors[END] *= 100
    network.embedding.set_weights([vectors])
    likely = keras.ops.sign(network.embedding(keras.ops.array([[END]])))
    monkeypatch.setattr(network, "readout", lambda x, *_: 0 * x + likely)

    for beam_size in (1, 3):
        caption = captioner.caption(photograph, beam_size=beam_size)
        assert len(caption.words) == len(caption.weights) == 1


@pytest.mark.exhaustive
def test_the_same_image_may_be_given_several_times(captioner):
    data = encode(noise(900, 700), "JPEG")

    # The pixels of these images are not loaded yet.
    captions = captioner.caption([lazy_image(data)] * 8)
    expected = captioner.caption(data)
    assert [caption.words for caption in captions] == [expected.words] * 8


def test_images_of_a_list_are_read_ahead(captioner, photograph, monkeypatch):
    begun, read, find = threading.Event(), captioner._read, captioner._search
    last = photograph[::-1]

    def reading(image):
        if image is last:
            begun.set()
        return read(image)

    def finding(*arguments):
        assert begun.wait(60)
        return find(*arguments)

    monkeypatch.setattr(captioner, "_read", reading)
    monkeypatch.setattr(captioner, "_search", finding)
    assert len(captioner.caption([photograph, last], batch_size=1)) == 2


def test_images_of_a_generator_are_not_read_ahead(captioner, photograph):
    asked = []

    def photographs():
        for number in range(2):
            asked.append(number)
            yield photograph

    results = captioner.caption_each(photographs(), batch_size=1)
    next(results)
    assert asked == [0]
    assert len(list(results)) == 1


@pytest.mark.exhaustive
def test_its_network_is_frozen_when_it_captions(eager, photograph):
    load = functools.partial(Captioner.from_preset, "flickr8k-coco-hard", image_size=64)
    captioner = load()
    before = captioner.caption(photograph).log_probability
    for weight in captioner.network.backbone.weights:
        weight.assign(1.5 * weight)

    later = captioner.caption(photograph, beam_size=4).log_probability
    assert later == pytest.approx(before, rel=1e-4)
    again = load()
    again.network.set_weights(captioner.network.get_weights())
    assert again.caption(photograph).log_probability != pytest.approx(before, rel=1e-4)


def test_the_best_of_several_come_first(captioner, photograph):
    [(source, captions)] = captioner.caption_each([photograph], beam_size=4, n_best=3)
    best = captioner.caption(photograph, beam_size=4)

    assert source is photograph
    assert len({caption.text for caption in captions}) == 3
    scores = [caption.score for caption in captions]
    assert scores == sorted(scores, reverse=True)
    assert (captions[0].text, captions[0].score) == (
        best.text,
        pytest.approx(best.score),
    )
    assert all(len(caption.weights) == len(caption.words) for caption in captions)
    with pytest.raises(UserError, match="n_best must be between 1 and beam_size, 2"):
        next(captioner.caption_each([photograph], beam_size=2, n_best=3))


@pytest.mark.exhaustive
def test_half_precision_gives_about_the_same_captions(eager, model_folder, photograph):
    full = Captioner.from_preset(model_folder)
    half = Captioner.from_preset(model_folder, precision="mixed_bfloat16")

    expected, actual = (x.caption(photograph, beam_size=1) for x in (full, half))
    assert actual.score != expected.score
    assert actual.score == pytest.approx(expected.score, abs=0.1)


@pytest.mark.exhaustive
def test_batches_of_a_compiled_search_are_padded(eager, captioner):
    images = [noise(64, side) for side in range(61, 66)]
    parts = captioner.config, captioner.tokenizer, captioner.network
    compiled = Captioner(*parts, jit_compile=True)
    expected = captioner.caption(images)

    # Batches of three rows: the second has two images, and is padded.
    actual = compiled.caption(images, batch_size=3)

    assert_same_results(actual, expected, 1e-3)
    (search,) = compiled._search_models.values()
    assert search.jit_compile


def test_wrong_arguments_are_refused(captioner, photograph):
    assert captioner.caption([]) == []
    with pytest.raises(UserError, match=r"batch_size must be at least 1. Received: 0"):
        captioner.caption(photograph, batch_size=0)
    with pytest.raises(UserError, match=r"such as a list. Received one: 'a\.jpg'"):
        next(captioner.caption_each("a.jpg"))
    message = "maps must be weights or probabilities. Received: 'probabilites'"
    with pytest.raises(UserError, match=message):
        captioner.caption(photograph, maps="probabilites")


def test_an_unreadable_image_raises_and_caption_each_continues(captioner, photograph):
    with pytest.raises(ImageError):
        captioner.caption(b"no picture")

    results = list(captioner.caption_each([photograph, b"no picture", photograph]))
    assert isinstance(results[1][1], ImageError)
    assert results[0][1][0].words == results[2][1][0].words


def test_a_saved_model_gives_the_same_captions(
    eager, captioner, model_folder, photograph
):
    again = Captioner.from_preset(model_folder)

    assert again.config == captioner.config
    ours, theirs = captioner.caption(photograph), again.caption(photograph)
    assert ours.words == theirs.words
    assert ours.words
    # The weights are rounded to eight significant bits.
    np.testing.assert_allclose(ours.weights, theirs.weights, atol=5e-2)


@pytest.mark.exhaustive
def test_hard_attention_may_use_the_expectation(eager, hard_captioner, tmp_path):
    hard_captioner.save(tmp_path / "hard")
    images = {"images": np.zeros((1, 16, 16, 3), "uint8")}

    def first_look(captioner):
        outputs = captioner.search_model().predict_on_batch(images)
        return np.array(outputs["weights"])[0, 0, 0]

    chosen = first_look(Captioner.from_preset(tmp_path / "hard"))
    mean = Captioner.from_preset(tmp_path / "hard", inference="expectation")
    spread = first_look(mean)

    assert sorted(chosen) == [0, 0, 0, 1]
    assert not np.isin(spread, (0, 1)).any()
    assert spread.sum() == pytest.approx(1)
    assert mean.config.inference == "expectation"


def test_the_image_size_may_differ_from_training(
    eager, captioner, model_folder, photograph
):
    larger = Captioner.from_preset(model_folder, image_size=24)

    assert captioner.config.image_size == 16
    assert larger.config == dataclasses.replace(captioner.config, image_size=24)
    assert larger.caption(photograph).weights.shape[1:] == (3, 3)


def test_options_that_change_the_weights_are_refused(model_folder):
    with pytest.raises(UserError, match=r"weights fix units=13\. Received: units=14"):
        Captioner.from_preset(model_folder, units=14)
    with pytest.raises(ValueError, match=r"options of a model.*Received: 'colour'"):
        Captioner.from_preset(model_folder, colour=3)


def test_articles_agree_with_the_next_word(captioner):
    config = dataclasses.replace(captioner.config, words_after_an=["orange", "hour"])
    words = ["a", "an", "hour", "orange", "red", "square"]
    network = build_network(config, len(Vocabulary(words)))
    model = Captioner(config, Vocabulary(words), network)

    def rewritten(caption):
        token_ids = model.tokenizer.encode(caption, 12)[1:]
        outputs = model.search_model().rewrite(np.array([[token_ids]], "int32"))
        return model.tokenizer.decode(keras.ops.convert_to_numpy(outputs)[0, 0])

    right = ["an", "orange", "square", "a", "red", "square", "an", "hour"]
    assert rewritten("a orange square an red square a hour") == right
    assert rewritten(" ".join(right)) == right


def test_equal_hypotheses_are_one_caption(captioner):
    max_length = captioner.config.max_length
    token_ids = np.full((1, 3, max_length), END, "int32")
    token_ids[0, :, 0] = 5, 5, 6
    outputs = {
        "token_ids": token_ids,
        "lengths": np.full((1, 3), 2),
        "weights": np.full((1, 3, max_length, 4), 0.25),
        "scores": np.array([[-1.0, -2.0, -3.0]]),
        "log_probs": np.array([[-1.0, -2.0, -3.0]]),
        "token_log_probs": np.zeros((1, 3, max_length)),
    }
    [captions] = captioner.captions_of(outputs, n_best=3)
    assert [caption.score for caption in captions] == [-1, -3]
    assert len({caption.text for caption in captions}) == 2


def test_a_caption_without_an_end_has_no_more_words_than_are_allowed(captioner):
    max_length = captioner.config.max_length
    outputs = {
        "token_ids": np.full((1, 1, max_length), 5, "int32"),
        "lengths": np.array([[max_length]]),
        "weights": np.full((1, 1, max_length, 4), 0.25),
        "scores": np.zeros((1, 1)),
        "log_probs": np.zeros((1, 1)),
        "token_log_probs": np.zeros((1, 1, max_length)),
    }
    [[caption]] = captioner.captions_of(outputs)
    assert len(caption.words) == len(caption.weights) == max_length - 1
