"""Serialisation of seeds, and of layers that are parts of other layers."""

import keras


def serialize_part(part):
    """Return the config of a layer, without its build config: its owner builds it.

    Several layers may share the part. When Keras saves a model, every config of an
    object after the first contains its id. Layers that are loaded from configs with the
    same id share the part again.

    Anything else, such as `None` for no layer, is returned unchanged.
    """
    if not isinstance(part, keras.layers.Layer):
        return part
    # The first call registers the object, so the second config contains the id.
    keras.saving.serialize_keras_object(part)
    config = keras.saving.serialize_keras_object(part)
    config.pop("build_config", None)
    return config


def seed_and_generator(seed):
    """Return an argument `seed`, and its `SeedGenerator`.

    The argument may be a config that `serialize_seed` returned, or a generator: then
    both results are the generator.
    """
    if isinstance(seed, dict):
        seed = keras.saving.deserialize_keras_object(seed)
    if isinstance(seed, keras.random.SeedGenerator):
        return seed, seed
    return seed, keras.random.SeedGenerator(seed)


def serialize_seed(seed):
    """Return the config of a seed, for `seed_and_generator`."""
    if isinstance(seed, keras.random.SeedGenerator):
        return keras.saving.serialize_keras_object(seed)
    return seed


def deserialize_parts(config):
    """Return a config with the parts that `serialize_part` wrote as layers."""
    return {
        name: keras.saving.deserialize_keras_object(value)
        if isinstance(value, dict) and "registered_name" in value and name != "dtype"
        else value
        for name, value in config.items()
    }
