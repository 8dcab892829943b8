"""Checks that every Keras layer must pass: its config, and Keras' own layer test."""

import inspect
import json
import warnings

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


def assert_config_names_every_argument(layer, arguments):
    """Compare the config of a layer with the arguments that it was created with.

    Args:
        layer: Class of the layer.
        arguments: Dict with every argument of its constructor.
    """
    signature = inspect.signature(layer).parameters
    assert set(signature) - {"kwargs"} <= set(arguments)

    config = layer(**arguments).get_config()

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


def assert_fulfils_the_contract_of_keras(
    layer, arguments, shapes, output_shape, *, weights=0, seed_generators=0
):
    """Build, save, restore and call a layer in eager, symbolic and compiled mode.

    Args:
        layer: Class of the layer.
        arguments: Arguments of its constructor.
        shapes: Shape of the input, or a dict such as `{"query_shape": (2, 3, 5)}`.
        output_shape: Expected shape of the output.
        weights: Expected number of trainable weights.
        seed_generators: Expected number of seed generators.
    """
    from keras.src.testing import TestCase

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        TestCase().run_layer_test(
            layer,
            init_kwargs=arguments,
            input_shape=shapes,
            expected_output_shape=output_shape,
            expected_num_trainable_weights=weights,
            expected_num_non_trainable_weights=0,
            expected_num_seed_generators=seed_generators,
            expected_num_losses=0,
            supports_masking=True,
            # It knows layers of one input only.
            run_training_check=False,
        )
