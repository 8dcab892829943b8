"""Layers that are made of other layers, in `.keras` files."""

from typing import Any, Self

import keras

from keras_attention.serialization import deserialize_parts
from keras_attention.typing import Config


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


def _sublayers(layer, path=""):
    """Return pairs of a path and a layer, for the sublayers at every depth."""
    found = []
    for sublayer in layer._layers:
        inside = f"{path}/{sublayer.name}"
        found += [(inside, sublayer), *_sublayers(sublayer, inside)]
    return found
