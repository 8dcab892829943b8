"""Layers in the configurations of the layers that they are part of."""

import keras


def serialize_part(part):
    """A layer for the config of the layer that it is part of, and that builds it."""
    if part is None:
        return None
    config = keras.saving.serialize_keras_object(part)
    config.pop("build_config", None)
    return config


def deserialize_parts(config):
    """A config with the layers that `serialize_part` had written into it."""
    return {
        name: keras.saving.deserialize_keras_object(value)
        if isinstance(value, dict) and "registered_name" in value and name != "dtype"
        else value
        for name, value in config.items()
    }
