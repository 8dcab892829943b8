"""Image encoders whose feature grid is attended to.

Shapes: B images, S regions, D depth of a region.
"""

import math
import sys

import keras
from keras import layers, ops
from keras_attention_apps.captioner.network import efficientnet_lite
from keras_attention_apps.captioner.network.weight_files import load_weights
from keras_attention_apps.common.errors import UserError, did_you_mean, listed

CONVOLUTIONS = {layers.Conv2D: ops.conv, layers.DepthwiseConv2D: ops.depthwise_conv}
EFFICIENTNETS_LITE = ("EfficientNetLite0", "EfficientNetLite1", "EfficientNetLite2")


class Backbone(layers.Layer):
    """Image encoder that returns the cells of its feature grid as regions.

    Its dropout and batch normalisation always run in inference mode, also while it is
    fine-tuned.

    Args:
        name: Name of a model in `keras.applications`, `"EfficientNetLite0"`, `1` or
            `2`, or `"SmallCNN"`.
        image_size: Side of the square images in pixels.
        weights: `"imagenet"`, `None`, or a file; see `load_weights`.

    Attributes:
        cnn: The Keras model from preprocessed images to the grid.

    Raises:
        UserError: If there is no such model, or it cannot be built for this size.

    Call arguments:
        images: `(B, image_size, image_size, 3)`, values from 0 to 255.

    Returns:
        Regions, `(B, S, D)`, row by row.
    """

    def __init__(self, name, image_size, weights=None):
        super().__init__(name="backbone")
        from_file = weights not in (None, "imagenet")
        initial = None if from_file else weights
        self.cnn, self.preprocess = build_application(name, image_size, initial)
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
        """Make the upper `share` of the layers trainable."""
        self.trainable = True
        for layer in self.cnn.layers[: round(len(self.cnn.layers) * (1 - share))]:
            layer.trainable = False

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


def build_application(name, image_size, weights):
    """Return a CNN without its top, and its preprocessing."""
    build, preprocess = find_application(name)
    shape = (image_size, image_size, 3)
    try:
        cnn = build(include_top=False, weights=weights, input_shape=shape)
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

    With them, the network can distinguish left from right. A grid
    `(B, rows, columns, D)` becomes `(B, rows, columns, D + 2)`.

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
    known = ["SmallCNN", *EFFICIENTNETS_LITE, *applications]
    raise UserError(
        f"backbone must be SmallCNN, one of {', '.join(EFFICIENTNETS_LITE)}, or a "
        f"model of keras.applications, such as {listed(name, applications)}. "
        f"Received: {name!r}{did_you_mean(name, known)}"
    )


def fold_normalization(cnn):
    """Return a faster model with the outputs of `cnn` in inference mode.

    One `FoldedConvolution` replaces every convolution without activation and the batch
    normalisation after it, and zero padding before it that equals `"same"`. The model
    shares all layers of `cnn`, and follows changes of their weights until it is frozen.
    """
    # From the `id` of each output to the layer, its input and the output. Keeping the
    # output alive keeps its `id` from being reused.
    origins = {}

    def origin(tensor):
        layer, images, _ = origins.get(id(tensor), (None, None, None))
        return layer, images

    def call(layer, *args, **kwargs):
        if not args:
            return layer(**kwargs)
        convolution, images = origin(args[0])
        is_norm = type(layer) is layers.BatchNormalization and layer.axis in (-1, 3)
        if is_norm and _can_be_folded(convolution):
            padding, unpadded = origin(images)
            if _is_same_padding(padding, convolution, unpadded):
                return FoldedConvolution(convolution, layer, padding)(unpadded)
            return FoldedConvolution(convolution, layer)(images)
        outputs = layer(*args, **kwargs)
        origins[id(outputs)] = layer, args[0], outputs
        return outputs

    return keras.models.clone_model(
        cnn, clone_function=lambda layer: layer, call_function=call
    )


def _can_be_folded(layer):
    return (
        type(layer) in CONVOLUTIONS
        and layer.activation is keras.activations.linear
        and layer.data_format == "channels_last"
    )


def _is_same_padding(padding, convolution, images):
    """Return whether a layer before a convolution pads like `"same"` of that."""
    if type(padding) is not layers.ZeroPadding2D or convolution.padding != "valid":
        return False
    if None in images.shape[1:3]:
        return False
    windows = zip(
        images.shape[1:3],
        convolution.kernel_size,
        convolution.strides,
        convolution.dilation_rate,
        padding.padding,
        strict=True,
    )
    for size, kernel, stride, dilation, (before, after) in windows:
        extent = dilation * (kernel - 1) + 1
        steps = math.ceil(size / stride)
        missing = max(stride * (steps - 1) + extent - size, 0)
        # Both must start at the same position and take the same number of steps.
        same_steps = (before + size + after - extent) // stride + 1 == steps
        if before != missing // 2 or not same_steps:
            return False
    return True


class FoldedConvolution(layers.Layer):
    """Padding, a convolution and batch normalisation, in inference mode.

        scale  = gamma / sqrt(variance + epsilon)
        output = images * (scale kernel) + scale (bias - mean) + beta

    where `*` is the convolution, and `scale` has a number for each of its filters.

    The output is that of the three layers in sequence.

    Args:
        convolution: `Conv2D` or `DepthwiseConv2D` of Keras, built, without activation,
            the channels last.
        normalization: `BatchNormalization` of Keras, built.
        padding: `ZeroPadding2D` before them that pads like `"same"`, or `None`.
    """

    def __init__(self, convolution, normalization, padding=None):
        super().__init__(dtype=convolution.dtype_policy)
        self.convolution = convolution
        self.normalization = normalization
        self.padding = padding
        self._frozen = None
        self.built = True

    def freeze(self):
        """Fold the current weights once, instead of in every call."""
        if self._frozen is None:
            # Arrays become constants of a graph; eager tensors would be captured.
            self._frozen = tuple(map(ops.convert_to_numpy, self._fold()))

    def _fold(self):
        """Return the scaled kernel and the shift, `scale (bias - mean) + beta`."""
        convolution, normalization = self.convolution, self.normalization

        def exact(weight):
            return ops.cast(weight, normalization.variable_dtype)

        variance = exact(normalization.moving_variance)
        scale = ops.rsqrt(variance + normalization.epsilon)
        if normalization.scale:
            scale = scale * exact(normalization.gamma)
        shift = -exact(normalization.moving_mean)
        if convolution.use_bias:
            shift = shift + exact(convolution.bias)
        shift = shift * scale
        if normalization.center:
            shift = shift + exact(normalization.beta)
        kernel = exact(convolution.kernel)
        # The last axis of a depthwise kernel counts the filters of one channel.
        filters = ops.reshape(scale, (-1, kernel.shape[-1]))
        return kernel * filters, shift

    def call(self, images):
        convolution = self.convolution
        folded = self._frozen or self._fold()
        kernel, shift = (ops.cast(x, images.dtype) for x in folded)
        convolve = CONVOLUTIONS[type(convolution)]
        images = convolve(
            images,
            kernel,
            strides=convolution.strides,
            padding="same" if self.padding else convolution.padding,
            data_format=convolution.data_format,
            dilation_rate=convolution.dilation_rate,
        )
        return images + shift

    def compute_output_shape(self, images_shape):
        if self.padding:
            images_shape = self.padding.compute_output_shape(images_shape)
        return self.convolution.compute_output_shape(images_shape)
