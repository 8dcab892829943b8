"""Layers that come back from their config, as every Keras layer must."""

import inspect
import json

import keras
import pytest

# Options of a projection, none of which is the default.
PROJECTION_OPTIONS = {
    "kernel_initializer": keras.initializers.RandomNormal(stddev=0.3, seed=2),
    "kernel_regularizer": keras.regularizers.L2(0.5),
    "kernel_constraint": keras.constraints.MaxNorm(3.0),
    "bias_initializer": keras.initializers.Constant(-0.25),
    "bias_regularizer": keras.regularizers.L1(0.75),
    "bias_constraint": keras.constraints.NonNeg(),
}


def restored_from_json(layer):
    """Return a copy of a layer, made from its config as JSON, and compare both configs.

    Args:
        layer: The layer.
    """
    restored = type(layer).from_config(json.loads(json.dumps(layer.get_config())))

    assert restored.get_config() == layer.get_config()
    return restored


def restored_from_config(layer, arguments):
    """Return a copy of a layer from its config, which names every argument.

    Args:
        layer: Class of the layer.
        arguments: Dict with every argument of its constructor.
    """
    signature = inspect.signature(layer).parameters
    assert set(signature) - {"kwargs"} <= set(arguments)

    original = layer(**arguments)
    config = original.get_config()

    assert set(config) == set(arguments)
    for name, argument in arguments.items():
        if hasattr(argument, "get_config"):
            assert config[name]["class_name"] == type(argument).__name__
            for option, value in argument.get_config().items():
                if isinstance(value, (int, float)):
                    value = pytest.approx(value)
                assert config[name]["config"][option] == value
        elif name != "dtype":
            assert config[name] == argument
    return restored_from_json(original)
