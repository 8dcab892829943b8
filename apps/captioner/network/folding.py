"""Batch normalisation as part of the convolution before it.

In inference it only scales and shifts what a convolution has summed up, so it may as
well scale the kernels: the pictures are then gone over once instead of three times, or
four where zeros are put around them first.
"""

import math

import keras
from keras import layers, ops

CONVOLUTIONS = {
    layers.Conv2D: ops.conv,
    layers.DepthwiseConv2D: ops.depthwise_conv,
}


def fold_normalization(cnn):
    """A model that computes the same as `cnn` in inference mode, sooner.

    It has the layers of `cnn`, and with them its weights, and follows what they learn,
    until it is frozen: wherever a convolution without activation goes before a batch
    normalisation, one `FoldedConvolution` takes the place of both, and of zeros that
    are put around what it reads if it can do so itself.

    Args:
        cnn: A functional Keras model.
    """
    # A layer and its input, by the identity of its output; and that, as another tensor
    # might be given the place of one that is gone.
    origins = {}

    def origin(tensor):
        layer, images, _ = origins.get(id(tensor), (None, None, None))
        return layer, images

    def call(layer, *args, **kwargs):
        convolution, images = origin(args[0])
        if type(layer) is layers.BatchNormalization and _can_be_folded(convolution):
            padding, unpadded = origin(images)
            if _pads_the_same(padding, convolution, unpadded):
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


def _pads_the_same(padding, convolution, images):
    """Whether a layer before a convolution pads as its own padding, `"same"`, would."""
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
    for size, kernel, stride, dilation, (before, behind) in windows:
        extent = dilation * (kernel - 1) + 1
        steps = math.ceil(size / stride)
        missing = max(stride * (steps - 1) + extent - size, 0)
        # What is read begins at the same place, and as often.
        same_steps = (before + size + behind - extent) // stride + 1 == steps
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
        padding: `ZeroPadding2D` before them, that pads as `"same"` would, if any.

    Call arguments:
        images: `(B, height, width, D)`.

    Returns:
        What they would, one after the other.
    """

    def __init__(self, convolution, normalization, padding=None):
        super().__init__(dtype=convolution.dtype_policy)
        self.convolution = convolution
        self.normalization = normalization
        self.padding = padding
        self._frozen = None
        self.built = True

    def freeze(self):
        """Fold the weights as they are, once, instead of in every call."""
        if self._frozen is None:
            # What is no tensor yet is a constant in the graph that is made of a call.
            self._frozen = tuple(map(ops.convert_to_numpy, self._fold()))

    def _fold(self):
        """The scaled kernel, and what is added: `scale (bias - mean) + beta`."""
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
        # The last axis of a depthwise kernel is that of each channel's filters.
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
