"""Third-party image encoders as backbones: `.keras` files, and presets of KerasHub.

Shapes: B images, S tokens, D depth.
"""

import contextlib
import copy
import dataclasses
import importlib
import importlib.util
import json
import math
import re
import warnings
from pathlib import Path

import keras
import numpy as np
from keras import layers, ops
from keras_attention_apps.common.errors import UserError, reason
from keras_attention_apps.common.files import WeightsInMemory, read_json, write_json
from keras_attention_apps.common.options import from_json

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
        """Return a Keras model from images to a feature grid; see `grid_model`."""
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
        """Return the encoder that a model's folder describes, or `None`."""
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

    The name is the path of a `.keras` file, or `"hub:"` and a preset of KerasHub, as
    its `Backbone.from_preset` takes it.
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


# Maximum number of class and register tokens before the patch tokens.
PREFIX_TOKENS = 8


def grid_model(model, image_size, name):
    """Return a model from square images to a feature grid `(B, rows, columns, D)`.

    The grid is the last output of the model with several regions:
    `(B, rows, columns, D)`, or tokens `(B, S, D)`, whose class and register tokens are
    dropped. If all outputs are pooled, as in a classifier, the grid is that of the last
    layer before the pooling. The returned model shares its layers with `model`.

    Args:
        model: A Keras model of images, `(B, height, width, 3)`.
        image_size: Side of the images in pixels.
        name: Name of the model in messages.
    """
    image = _image_input(model, name)
    images = keras.Input((image_size, image_size, 3), name=image.name)
    try:
        outputs = _outputs(model, images)
        grid = _grid(outputs, image_size, getattr(model, "patch_size", None), name)
        # A separate model excludes the layers after the grid.
        found = keras.Model(images, grid, name=model.name)
        if image.shape[1] not in (None, image_size):
            _check_shape(found, image_size)
    except UserError:
        raise
    # Third-party layers may raise any type of exception.
    except Exception as error:
        raise UserError(
            f"{name} takes images of {image.shape[1]} x {image.shape[2]} pixels. "
            f"Received: image_size {image_size} ({reason(error)[:200]})"
        ) from error
    return found


class PatchGrid(layers.Layer):
    """Arranges patch tokens `(B, S, D)` in a grid, and drops the tokens before them."""

    def __init__(self, rows, columns, **kwargs):
        super().__init__(**kwargs)
        self.grid = (rows, columns)

    def call(self, tokens):
        patches = tokens[:, -math.prod(self.grid) :]
        return ops.reshape(patches, (-1, *self.grid, tokens.shape[-1]))

    def compute_output_shape(self, tokens_shape):
        return (tokens_shape[0], *self.grid, tokens_shape[-1])


def _image_input(model, name):
    """Return a model's input or, if it declares none, one of images of any size."""
    inputs = getattr(model, "inputs", None) or [keras.Input((None, None, 3))]
    if len(inputs) == 1 and len(inputs[0].shape) == 4 and inputs[0].shape[-1] == 3:
        return inputs[0]
    shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
    raise UserError(
        f"{name} must take images, (None, height, width, 3). Received a model of "
        f"inputs {shapes}"
    )


def _outputs(model, images):
    """Return the outputs of a model's operations, in order, and then its own."""
    if isinstance(model, keras.Sequential):
        outputs = [images]
        for layer in model.layers:
            outputs.append(layer(outputs[-1]))
        return outputs
    if not hasattr(model, "operations"):
        return keras.tree.flatten(model(images))
    outputs = []

    def record(operation, *args, **kwargs):
        result = operation(*args, **kwargs)
        outputs.extend(keras.tree.flatten(result))
        return result

    called = keras.models.clone_model(
        model,
        input_tensors=keras.tree.map_structure(lambda _: images, model.input),
        clone_function=lambda layer: layer,
        call_function=record,
    )
    return [images, *outputs, *called.outputs]


def _grid(outputs, image_size, patch_size, name):
    """Return the last of the outputs with several regions, as a grid."""
    last = next((x for x in reversed(outputs) if _count(x.shape) != 1), None)
    shape = () if last is None else tuple(last.shape)
    if len(shape) == 4 and None not in shape[1:] and max(shape[1:3]) < image_size:
        return last
    if len(shape) == 3 and None not in shape[1:]:
        side = _side(shape[1], image_size, patch_size)
        if side:
            return PatchGrid(side, side)(last)
    raise UserError(
        f"{name} must give a grid of features, (images, rows, columns, depth), or "
        "tokens of rows x columns patches, (images, patches, depth), after at most "
        f"{PREFIX_TOKENS} other tokens. Received a model whose last output with "
        f"several regions has the shape {shape}"
    )


def _count(shape):
    """Return the number of regions of an output, or `None` if it is not known."""
    regions = shape[1:-1] if len(shape) in (3, 4) else ()
    return None if None in regions else math.prod(regions)


def _side(tokens, image_size, patch_size):
    """Return the side of a square grid of patches, or `None`."""
    largest = math.isqrt(tokens)
    sizes = [largest]
    if patch_size:
        sizes.insert(0, image_size // np.ravel(patch_size)[0].item())
    for side in sizes:
        if side > 1 and 0 <= tokens - side**2 <= PREFIX_TOKENS:
            return side
    return None


def _check_shape(model, image_size):
    """Raise a `ValueError` if the output does not have the shape of its layers."""
    image = np.zeros((1, image_size, image_size, 3), "float32")
    shape = tuple(model(image, training=False).shape)
    if shape[1:] != model.output_shape[1:]:
        raise ValueError(f"expected {model.output_shape}. Received: {shape}")
