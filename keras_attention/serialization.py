"""Configs of layers, with the layers and seeds that are parts of them."""

from typing import Any, Self

import keras

from keras_attention.typing import Config, Tensor
from keras_attention.validation import check_seed


def config_of(layer: keras.layers.Layer, names: str) -> Config:
    """Return attributes of a layer, named in one string, as entries of its config."""
    return {name: serialize_part(getattr(layer, name)) for name in names.split()}


def serialize_part(part: Any) -> Any:
    """Return the config of a layer or a seed generator, or of each in a list.

    Anything else is returned unchanged. The config of a layer has no build config: its
    owner builds it. Several layers may share the part. When Keras saves a model, every
    config of an object after the first contains its id. Layers that are loaded from
    configs with the same id share the part again.
    """
    if isinstance(part, list):
        return [serialize_part(x) for x in part]
    if isinstance(part, keras.random.SeedGenerator):
        return keras.saving.serialize_keras_object(part)
    if not isinstance(part, keras.layers.Layer):
        return part
    # The first call registers the object, so the second config contains the id.
    keras.saving.serialize_keras_object(part)
    config = keras.saving.serialize_keras_object(part)
    config.pop("build_config", None)
    return config


def deserialize_parts(config: Config) -> Config:
    """Return a config with the parts that `serialize_part` wrote as layers."""

    def restored(value: Tensor) -> Any:
        if isinstance(value, list):
            return [restored(x) for x in value]
        is_part = isinstance(value, dict) and "registered_name" in value
        return keras.saving.deserialize_keras_object(value) if is_part else value

    return {k: x if k == "dtype" else restored(x) for k, x in config.items()}


def from_config(name: str, identifier: Any) -> Any:
    """Return the object of a config, a dict; anything else is returned unchanged."""
    if not isinstance(identifier, dict):
        return identifier
    try:
        return keras.saving.deserialize_keras_object(identifier)
    except Exception as error:
        raise ValueError(
            f"{name} must be a config that Keras can load. Received: {identifier!r:.80}"
        ) from error


def seed_and_generator(seed: Any) -> tuple[Any, keras.random.SeedGenerator]:
    """Return an argument `seed`, which may be a config, and its `SeedGenerator`.

    If the argument is a generator, both results are.
    """
    seed = from_config("seed", seed)
    if isinstance(seed, keras.random.SeedGenerator):
        return seed, seed
    seed = check_seed(seed)
    return seed, keras.random.SeedGenerator(seed)


class CompositeLayer(keras.layers.Layer):
    """Base of layers that are made of other layers.

    Their config and weights file include these layers, quantised or not.

    `from_config` creates the layers that `serialize_part` has written into the config.

    `keras.Model.quantize` quantises sublayers in place, which the config of their owner
    does not show. The build config records it, and `build_from_config` quantises the
    sublayers again, so that the weights in the file fit.
    """

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(**deserialize_parts(config))

    def get_build_config(self) -> dict[str, Any] | None:
        config = super().get_build_config()
        quantized = {
            path: keras.saving.serialize_keras_object(layer.quantization_config)
            for path, layer in _sublayers(self)
            if layer.quantization_mode is not None
        }
        # A layer that is not built has no build config. The layer that built its
        # sublayers records them.
        return {**config, "quantized": quantized} if config and quantized else config

    def build_from_config(self, config: dict[str, Any]) -> None:
        super().build_from_config(config)
        quantized = config.get("quantized", {})
        for path, layer in _sublayers(self):
            # The config of a sublayer may have quantised it already, and a sublayer
            # that is not built belongs to another layer that builds it.
            if path in quantized and layer.built and layer.quantization_mode is None:
                options = keras.saving.deserialize_keras_object(quantized[path])
                layer.quantize(config=options, type_check=False)


def _sublayers(
    layer: keras.layers.Layer, path: str = ""
) -> list[tuple[str, keras.layers.Layer]]:
    """Return pairs of a path and a layer, for the sublayers at every depth."""
    pairs = []
    for sublayer in layer._layers:
        inside = f"{path}/{sublayer.name}"
        pairs += [(inside, sublayer), *_sublayers(sublayer, inside)]
    return pairs
