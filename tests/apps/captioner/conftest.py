"""A data set of coloured squares and an untrained captioner, both tiny."""

import dataclasses
import json
import shutil
import warnings

import keras
import numpy as np
import pytest
from PIL import Image

from keras_attention_apps.captioner.config import ModelConfig
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.network.networks import build_network
from keras_attention_apps.captioner.vocabulary import Vocabulary
from keras_attention_apps.common.tokenizer import END, PAD, START

COLOURS = ("red", "green", "blue", "white")
TINY = ModelConfig(
    backbone="SmallCNN",
    image_size=16,
    region_units=11,
    embedding_units=7,
    units=13,
    attention_units=5,
    max_length=7,
)
TRANSFORMER = dataclasses.replace(
    TINY, decoder="transformer", embedding_units=6, heads=2, decoder_layers=2
)


def write_square(path, colour, corner):
    image = Image.new("RGB", (64, 64), "black")
    image.paste(colour, (corner, corner, corner + 32, corner + 32))
    image.save(path)


def lines_of(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def photographs(squares, tmp_path):
    """A folder of two photographs."""
    for name in ("red-0.png", "blue-0.png"):
        shutil.copy(squares / "Images" / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def without_java(monkeypatch):
    """Evaluate without METEOR, whose Java program needs seven seconds to start."""
    monkeypatch.setattr(shutil, "which", lambda name: None)


@pytest.fixture(scope="session")
def task():
    return Captioner


@pytest.fixture(scope="session")
def squares(tmp_path_factory):
    """Twelve photographs for training and four for validation, in Kaggle's layout."""
    folder = tmp_path_factory.mktemp("squares")
    (folder / "Images").mkdir()
    lines, names = ["image,caption"], []
    for corner in (0, 8, 16, 32):
        for colour in COLOURS:
            name = f"{colour}-{corner}.png"
            write_square(folder / "Images" / name, colour, corner)
            lines += [f"{name},a {colour} square", f"{name},the square is {colour}"]
            names.append(name)
    (folder / "captions.txt").write_text("\n".join(lines))
    (folder / "trainImages.txt").write_text("\n".join(names[:12]))
    (folder / "devImages.txt").write_text("\n".join(names[12:]))
    return folder


@pytest.fixture(scope="session")
def captioner():
    """An untrained captioner that knows a few words."""
    return untrained(TINY)


@pytest.fixture(scope="session")
def hard_captioner():
    """The same with hard attention."""
    return untrained(dataclasses.replace(TINY, attention="hard"))


def untrained(config):
    keras.utils.set_random_seed(3)
    vocabulary = Vocabulary(["a", "the", "square", "is", *COLOURS, "'s"])
    network = build_network(config, len(vocabulary))
    return Captioner(config, vocabulary, network)


@pytest.fixture(scope="session")
def batch():
    """Features of two images, each with three captions of up to five words."""
    random = np.random.default_rng(0)
    token_ids = random.integers(4, 12, (2, 3, 6)).astype("int32")
    token_ids[..., 0] = START
    token_ids[0, 1, 3:] = [END, PAD, PAD]
    features = random.normal(size=(2, 4, 130)).astype("float32")
    return {"features": features, "captions": token_ids}


@pytest.fixture(scope="session")
def model_folder(captioner, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    captioner.save(folder)
    return folder
