"""Weight files in half precision."""

import h5py
import numpy as np
from keras_attention_apps.common.files import WeightsInMemory


def save_half(model, path):
    """Write a model's weights as a Keras `.weights.h5` file in float16.

    They are rounded to eight significant bits, as in bfloat16, which makes the
    compressed file a quarter smaller than the eleven bits of float16.

    Args:
        model: A built Keras model. Its optimiser's state is left out.
        path: Name of the file, ending in `.weights.h5`.
    """
    full, half = WeightsInMemory(), WeightsInMemory()
    model.save_weights(full)
    with h5py.File(full) as source, h5py.File(half, "w", libver="latest") as target:
        _copy_half(source, target)
    half.save(path)


def _copy_half(source, target):
    target.attrs.update(source.attrs)
    for name, item in source.items():
        if name == "optimizer":
            continue
        if isinstance(item, h5py.Group):
            _copy_half(item, target.create_group(name))
            continue
        value = item[()]
        if item.dtype.kind == "f":
            value = _rounded(value.astype("float16"))
        packed = {"compression": "gzip", "shuffle": True, "chunks": value.shape}
        target.create_dataset(
            name, data=value, **packed if value.size > 1 else {}
        ).attrs.update(item.attrs)


def _rounded(value):
    """Round to the nearest float16 whose last three bits are zero, ties to even."""
    bits = value.view("uint16")
    carry = 3 + (bits >> 3 & 1)
    rounded = (bits + carry & 0xFFF8).astype("uint16").view("float16")
    return np.where(np.isfinite(value) & np.isfinite(rounded), rounded, value)
