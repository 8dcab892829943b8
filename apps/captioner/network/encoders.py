"""Third-party image encoders as backbones: `.keras` files, and presets of KerasHub."""

import contextlib
import copy
import dataclasses
import importlib
import importlib.util
import json
import re
import warnings
from pathlib import Path

import keras
from keras_attention_apps.captioner.network.grids import grid_model
from keras_attention_apps.common.cli import UserError, reason
from keras_attention_apps.common.files import WeightsInMemory, read_json, write_json
from keras_attention_apps.common.schema import from_json

HUB = "hub:"
SUFFIX = ".keras"

# File of a model's folder that describes its encoder.
ENCODER_FILE = "backbone.json"

# Attributes of vision-language backbones of KerasHub that hold the image encoder.
PARTS = ("vision_encoder", "image_encoder", "vit_encoder")


def is_encoder(name):
    """Return whether a name is that of a `.keras` file, or of a preset of KerasHub."""
    return name.startswith(HUB) or name.endswith(SUFFIX)


def public_name(name):
    """Return the name of an encoder without the folders of this machine."""
    prefix = HUB if name.startswith(HUB) else ""
    place = name.removeprefix(prefix)
    is_path = is_encoder(name) and Path(place).expanduser().exists()
    return f"{prefix}{Path(place).expanduser().resolve().name}" if is_path else name


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Architecture and preprocessing of an image encoder, without its weights.

    Attributes:
        name: Its name in messages.
        model: The Keras model, as `keras.saving.serialize_keras_object` describes it.
        scale, offset: Those of the pixels; see `affine`.
    """

    name: str
    model: dict
    scale: float | list | None = None
    offset: float | list | None = None

    def build(self, image_size, weights=None):
        """Return a Keras model from images to a feature grid; see `grid_model`.

        Args:
            image_size: Side of the images in pixels.
            weights: File of the weights of the whole model; random if omitted.

        Raises:
            UserError: If it cannot be built, at all or for this size.
        """
        if "keras_hub" in json.dumps(self.model):
            keras_hub(self.name)
        with _as_user_error(f"{self.name} cannot be built"):
            model = self._deserialized()
        if self._takes(image_size):
            if weights:
                model.load_weights(weights)
        else:
            model = self._resized(image_size, weights or weights_of(model))
        return grid_model(model, image_size, self.name)

    def at(self, image_size):
        """Return this encoder with the architecture for a size of images."""
        if self._takes(image_size):
            return self
        model = copy.deepcopy(self.model)
        model["config"]["image_shape"] = [image_size, image_size, 3]
        return dataclasses.replace(self, model=model)

    def _takes(self, image_size):
        """Return whether the architecture fits a size of images.

        KerasHub builds some models for one size. Layers of Keras may take any.
        """
        shape = self.model["config"].get("image_shape") or [None]
        return None in shape or shape[:2] == [image_size, image_size]

    def _resized(self, image_size, weights):
        """Build the model for another size of images, and load its weights."""
        height, width, _ = self.model["config"]["image_shape"]
        message = (
            f"{self.name} takes images of {height} x {width} pixels. Received: "
            f"image_size {image_size}"
        )
        with _as_user_error(message):
            model = self.at(image_size)._deserialized()
        try:
            # Keras warns before it fails.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.load_weights(weights)
        except ValueError as error:
            raise UserError(
                f"{message}, for which it has no position embeddings"
            ) from error
        return model

    def _deserialized(self):
        """Build the model, with the precision of the current dtype policy."""
        model = copy.deepcopy(self.model)
        _set_policy(model, keras.config.dtype_policy().name)
        return keras.saving.deserialize_keras_object(model, safe_mode=True)

    @classmethod
    def load(cls, folder):
        """Return the encoder that a model's folder describes, or `None`.

        Raises:
            UserError: If the description is invalid.
        """
        file = Path(folder) / ENCODER_FILE
        if not file.is_file():
            return None
        encoder = from_json(cls, read_json(file))
        if not isinstance(encoder.model.get("config"), dict):
            raise UserError(f"{ENCODER_FILE} has no configuration of a model")
        return encoder

    def save(self, folder):
        write_json(Path(folder) / ENCODER_FILE, dataclasses.asdict(self))


def read_encoder(name):
    """Return the `Encoder` of a name, and its weights as a file in memory.

    Args:
        name: Path of a `.keras` file; or `"hub:"` and the name of a KerasHub preset, as
            its `Backbone.from_preset` takes it.

    Raises:
        UserError: If it cannot be read.
    """
    read = _read_preset if name.startswith(HUB) else _read_file
    model, pixels = read(name)
    return Encoder(public_name(name), _serialized(model), **pixels), weights_of(model)


def weights_of(model):
    """Return the weights of a Keras model as a file in memory."""
    file = WeightsInMemory()
    model.save_weights(file)
    file.seek(0)
    return file


def keras_hub(name):
    """Import KerasHub, which the encoder of this name needs."""
    if not importlib.util.find_spec("keras_hub"):
        raise UserError(
            f"{name} is a model of KerasHub, which is not installed: "
            "python -m pip install keras-hub"
        )
    return importlib.import_module("keras_hub")


def _read_file(name):
    path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(f"expected a {SUFFIX} file of a model. Received: {name!r}")
    with _as_user_error(f"{name} cannot be read as a {SUFFIX} file of a model"):
        return keras.saving.load_model(path, compile=False, safe_mode=True), {}


def _read_preset(name):
    hub, preset = keras_hub(name), name.removeprefix(HUB)
    with _as_user_error(f"{name} cannot be loaded from KerasHub"):
        model = hub.models.Backbone.from_preset(preset)
    try:
        converter = hub.layers.ImageConverter.from_preset(preset)
    except (FileNotFoundError, ValueError):
        # The preset has no preprocessing of images.
        converter = None
    if len(model.inputs) > 1:
        parts = (getattr(model, part, None) for part in PARTS)
        model = next((part for part in parts if part is not None), model)
    return model, {x: getattr(converter, x, None) for x in ("scale", "offset")}


def _serialized(model):
    described = keras.saving.serialize_keras_object(model)
    # JSON turns tuples into lists, as in the file.
    return json.loads(json.dumps(described))


def _set_policy(config, name):
    """Set the dtype policy of all layers of a serialised model."""
    if isinstance(config, list):
        for item in config:
            _set_policy(item, name)
    elif isinstance(config, dict):
        if config.get("class_name") == "DTypePolicy":
            config["config"]["name"] = name
        for item in config.values():
            _set_policy(item, name)


@contextlib.contextmanager
def _as_user_error(message):
    """Replace every error inside by a `UserError` with a message and the reason.

    Files, downloads and third-party layers may raise any type of exception.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{message}: {_explained(error)}") from error


def _explained(error):
    text = reason(error)
    if text.startswith("Unknown preset"):
        return "it is neither one of its presets nor a folder with one"
    missing = re.search(r"Could not locate (\w+ '[^']+')", text)
    if missing:
        return (
            f"Keras does not know the {missing[1]}. Models may have layers and "
            "functions of Keras, of KerasHub, and registered ones"
        )
    if re.search("`Lambda`|Python lambda", text):
        return (
            "it has Lambda layers, whose code is never run. Replace them by layers of "
            "Keras, such as Rescaling"
        )
    return text[:300]
