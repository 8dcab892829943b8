"""Extraction of the feature grid from a model of images.

Shapes: B images, S tokens, D depth.
"""

import math

import keras
import numpy as np
from keras import layers, ops
from keras_attention_apps.common.cli import UserError, reason

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

    Raises:
        UserError: If the model takes no images, none of this size, or has no grid.
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
    """Arranges patch tokens in a grid, and drops the tokens before them.

    Args:
        rows, columns: Size of the grid.

    Call arguments:
        tokens: `(B, S, D)`, those of the patches last, row by row.

    Returns:
        `(B, rows, columns, D)`.
    """

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
    """Return the side of a square grid of patches, or `None`.

    Args:
        tokens: Number of tokens, with those before the patches.
        image_size: Side of the images in pixels.
        patch_size: That of the model, if it has one: an int or a tuple of two.
    """
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
