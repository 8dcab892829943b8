"""Batch normalisation folded into the convolution before it.

In inference, batch normalisation scales and shifts the output of a convolution. Scaling
the kernels instead saves two passes over the output, and explicit zero padding a third.
"""

import math

import keras
from keras import layers, ops

CONVOLUTIONS = {
    layers.Conv2D: ops.conv,
    layers.DepthwiseConv2D: ops.depthwise_conv,
}


def fold_normalization(cnn):
    """Return a faster model with the outputs of `cnn` in inference mode.

    One `FoldedConvolution` replaces every convolution without activation and the batch
    normalisation after it, and zero padding before it that equals `"same"`. The model
    shares all layers of `cnn`, and follows changes of their weights until it is frozen.

    Args:
        cnn: A functional Keras model.
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
        if _scales_channels(layer) and _can_be_folded(convolution):
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


def _scales_channels(layer):
    return type(layer) is layers.BatchNormalization and layer.axis in (-1, 3)


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

    Args:
        convolution: `Conv2D` or `DepthwiseConv2D` of Keras, built, without activation,
            the channels last.
        normalization: `BatchNormalization` of Keras, built.
        padding: `ZeroPadding2D` before them that pads like `"same"`, or `None`.

    Call arguments:
        images: `(B, height, width, D)`.

    Returns:
        Output of the three layers in sequence.
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
