"""Keras' own test of what a layer must offer."""

import warnings


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
