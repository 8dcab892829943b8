"""Batch normalisation as part of the convolution before it.

In inference it only scales and shifts what a convolution has summed up, so it may as
well scale the kernels: the pictures are then gone over once instead of three times.
"""

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
    normalisation, one `FoldedConvolution` takes the place of both.

    Args:
        cnn: A functional Keras model.
    """
    # The convolution and its input, by the identity of its output; and that, as
    # another tensor might be given the place of one that is gone.
    convolved = {}

    def call(layer, *args, **kwargs):
        convolution, images, _ = convolved.get(id(args[0]), (None, None, None))
        if convolution and type(layer) is layers.BatchNormalization:
            return FoldedConvolution(convolution, layer)(images)
        outputs = layer(*args, **kwargs)
        if _can_be_folded(layer):
            convolved[id(outputs)] = layer, args[0], outputs
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


class FoldedConvolution(layers.Layer):
    """A convolution and the batch normalisation behind it, in inference mode.

        scale  = gamma / sqrt(variance + epsilon)
        output = images * (scale kernel) + scale (bias - mean) + beta

    where `*` is the convolution, and `scale` has a number for each of its filters.

    Args:
        convolution: `Conv2D` or `DepthwiseConv2D` of Keras, built, without activation,
            the channels last.
        normalization: `BatchNormalization` of Keras, built.

    Call arguments:
        images: `(B, height, width, D)`.

    Returns:
        What the two would, one after the other.
    """

    def __init__(self, convolution, normalization):
        super().__init__(dtype=convolution.dtype_policy)
        self.convolution = convolution
        self.normalization = normalization
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
            padding=convolution.padding,
            data_format=convolution.data_format,
            dilation_rate=convolution.dilation_rate,
        )
        return images + shift

    def compute_output_shape(self, images_shape):
        return self.convolution.compute_output_shape(images_shape)
