"""Image encoders whose feature grid is attended to.

Shapes: B images, S regions, D depth of a region.
"""

import sys

import keras
from keras import layers, ops
from keras_attention_apps.captioner.network import efficientnet_lite
from keras_attention_apps.captioner.network.encoders import is_encoder, read_encoder
from keras_attention_apps.captioner.network.folding import (
    FoldedConvolution,
    fold_normalization,
)
from keras_attention_apps.captioner.network.preprocessing import MODES, affine
from keras_attention_apps.captioner.network.weight_files import load_weights
from keras_attention_apps.common.cli import UserError

EFFICIENTNETS_LITE = ("EfficientNetLite0", "EfficientNetLite1", "EfficientNetLite2")


class Backbone(layers.Layer):
    """Image encoder that returns the cells of its feature grid as regions.

    Its dropout and batch normalisation always run in inference mode, also while it is
    fine-tuned.

    Args:
        name: Name of a model in `keras.applications`, `"EfficientNetLite0"`, `1` or
            `2`, or `"SmallCNN"`; the path of a `.keras` file, or `"hub:"` and a preset
            of KerasHub.
        image_size: Side of the square images in pixels.
        weights: `"imagenet"`, which also stands for those of the file or preset;
            `None`, or another file; see `load_weights`.
        preprocessing: `"own"`, or another one of `preprocessing.MODES`.
        encoder: `Encoder` that describes the model; then the name is not read.

    Attributes:
        cnn: The Keras model from preprocessed images to the grid.
        encoder: The `Encoder` of a file or a preset, otherwise `None`.

    Raises:
        UserError: If there is no such model, or it cannot be built for this size.

    Call arguments:
        images: `(B, image_size, image_size, 3)`, values from 0 to 255.

    Returns:
        Regions, `(B, S, D)`, row by row.
    """

    def __init__(
        self,
        name,
        image_size,
        weights=None,
        *,
        preprocessing="own",
        encoder=None,
        **kwargs,
    ):
        super().__init__(name="backbone", **kwargs)
        from_file = weights not in (None, "imagenet")
        initial = None if from_file else weights
        values = None
        if encoder is None and is_encoder(name):
            encoder, values = read_encoder(name)
        if encoder:
            self.cnn = encoder.build(image_size, values if initial else None)
            self.preprocess = affine(encoder.scale, encoder.offset)
            encoder = encoder.at(image_size)
        else:
            self.cnn, self.preprocess = build_application(name, image_size, initial)
        self.encoder = encoder
        self.preprocess = MODES.get(preprocessing, self.preprocess)
        self.preprocessing = preprocessing
        if from_file:
            load_weights(self.cnn, weights)
        _, self.rows, self.columns, self.depth = self.cnn.output_shape
        folded = fold_normalization(self.cnn)
        # A closure hides the model from Keras: its weights are those of the CNN.
        self._folded = lambda: folded
        # Before a search with a layer that is not built, Keras runs it eagerly on JAX,
        # which compiles every operation by itself.
        self.built = True

    def unfreeze(self, share):
        """Make the upper layers trainable.

        Args:
            share: Share of the layers, counted from the top. For an `Encoder`, whose
                layers are nested, it is the share of the weights, and position
                embeddings stay frozen.
        """
        self.trainable = True
        parts = self.cnn.trainable_weights if self.encoder else self.cnn.layers
        frozen = parts[: round(len(parts) * (1 - share))]
        if self.encoder:
            # KerasHub interpolates some when it saves them.
            frozen += [part for part in parts if "position_embedding" in part.path]
        for part in frozen:
            part.trainable = False

    def freeze(self):
        """Fold the current weights once, which makes calls faster."""
        for layer in self._folded().layers:
            if isinstance(layer, FoldedConvolution):
                layer.freeze()

    def call(self, images):
        images = ops.cast(images, self.compute_dtype)
        grid = self._folded()(self.preprocess(images), training=False)
        return ops.reshape(grid, (-1, self.rows * self.columns, self.depth))

    def compute_output_shape(self, images_shape):
        return (images_shape[0], self.rows * self.columns, self.depth)


class NoBackbone(layers.Layer):
    """Placeholder for the image encoder of a model whose regions come from files.

    Args:
        depth: Depth of the regions D.
    """

    rows = columns = encoder = None

    def __init__(self, depth, **kwargs):
        super().__init__(name="backbone", **kwargs)
        self.depth = depth
        self.built = True

    def freeze(self):
        """Do nothing: there is no weight."""

    def call(self, images):
        raise UserError("the model needs detected regions. Received: images")


def build_application(name, image_size, weights):
    """Return a CNN without its top, and its preprocessing.

    Args:
        name: As of `find_application`.
        image_size: Side of the square images in pixels.
        weights: `"imagenet"` or `None`.
    """
    build, preprocess = find_application(name)
    try:
        cnn = build(
            include_top=False,
            weights=weights,
            input_shape=(image_size, image_size, 3),
        )
    except UserError:
        raise
    except ValueError as error:
        raise UserError(
            f"{name} cannot be built for images of {image_size} x "
            f"{image_size} pixels: {' '.join(str(error).split())}"
        ) from error
    return cnn, preprocess


def small_cnn(*, include_top, weights, input_shape):
    """Build a CNN that learns simple images from random weights, in minutes.

    The last two channels are the coordinates of each cell. Arguments are those of the
    models in `keras.applications`; there is no top.
    """
    if weights is not None:
        raise UserError(
            "SmallCNN comes without weights: backbone_weights must be none or a "
            f"file. Received: {weights!r}"
        )
    images = keras.Input(input_shape)
    x = images
    # Even kernels centre the receptive field on the cell: kernels of 3 with strides of
    # 2 would shift it to the right and down.
    for depth, kernel, strides in ((32, 4, 2), (64, 4, 2), (128, 4, 2), (128, 3, 1)):
        x = layers.Conv2D(depth, kernel, strides, padding="same")(x)
        x = layers.LayerNormalization()(x)
        x = layers.ReLU()(x)
    return keras.Model(images, Coordinates()(x), name="small_cnn")


class Coordinates(layers.Layer):
    """Appends the row and the column of every cell of a grid, from -1 to 1.

    With them, the network can distinguish left from right.

    Call arguments:
        grid: `(B, rows, columns, D)`.

    Returns:
        `(B, rows, columns, D + 2)`.

    Reference: [Liu et al., 2018](https://arxiv.org/abs/1807.03247).
    """

    def call(self, grid):
        shape = (ops.shape(grid)[0], *grid.shape[1:3], 1)
        across = [
            ops.broadcast_to(ops.reshape(ops.linspace(-1.0, 1.0, count), where), shape)
            for count, where in ((shape[1], (1, -1, 1, 1)), (shape[2], (1, 1, -1, 1)))
        ]
        cast = [ops.cast(values, grid.dtype) for values in across]
        return ops.concatenate([grid, *cast], axis=-1)

    def compute_output_shape(self, grid_shape):
        return (*grid_shape[:-1], grid_shape[-1] + 2)


def find_application(name):
    """Return the constructor of a CNN, and its preprocessing."""
    if name == "SmallCNN":
        return small_cnn, lambda images: images / 127.5 - 1
    if name in EFFICIENTNETS_LITE:
        build = getattr(efficientnet_lite, name)
        return build, efficientnet_lite.preprocess_input
    applications = {
        name: value
        for name, value in vars(keras.applications).items()
        if callable(value) and name[0].isupper()
    }
    if name in applications:
        build = applications[name]
        return build, sys.modules[build.__module__].preprocess_input
    raise UserError(
        f"backbone must be SmallCNN, one of {', '.join(EFFICIENTNETS_LITE)}, the path "
        "of a .keras file, hub: and a preset of KerasHub, or a model of "
        f"keras.applications, one of {', '.join(sorted(applications))}. "
        f"Received: {name!r}"
    )
