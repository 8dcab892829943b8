"""Scales of the pixels that networks expect; `apps/captioner/config.py` names them."""

import functools

import numpy as np
from keras import ops
from keras.applications.imagenet_utils import preprocess_input

MODES = {
    "none": lambda images: images,
    "unit": lambda images: images / 255.0,
    **{
        mode: functools.partial(preprocess_input, mode=mode)
        for mode in ("tf", "torch", "caffe")
    },
}


def affine(scale, offset):
    """Return a function that scales images and adds an offset.

    Args:
        scale, offset: A number, one for each channel, or `None`.
    """

    def preprocess(images):
        for combine, values in ((ops.multiply, scale), (ops.add, offset)):
            if values is not None:
                values = ops.convert_to_tensor(np.asarray(values), images.dtype)
                images = combine(images, values)
        return images

    return preprocess
