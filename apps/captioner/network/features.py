"""Features of a frozen CNN, computed once for every image."""

import contextlib
import hashlib
import os
import sys
import time

import keras
import numpy as np
from keras_attention_apps.captioner.data.batches import ImageBatches
from keras_attention_apps.captioner.data.files import read_content
from keras_attention_apps.common.distribution import predict_rows
from keras_attention_apps.common.errors import printable
from keras_attention_apps.common.files import atomic_path
from keras_attention_apps.common.network.base import shape_multiple

# Seconds without a change after which an incomplete file counts as abandoned.
ABANDONED = 24 * 3600
# Version of the file format, a part of the keys: files of other versions are not read.
_VERSION = 3


def cached_features(backbone, paths, cache, *, name, views=None):
    """Return features `(images, S, D)`, from the cache if nothing has changed.

    The cache is one float16 file for each name and key, which is mapped into memory.
    The key is a digest of the images' contents and order, their views, the backbone
    with its weights and precision, and the image size. A file with this key is used,
    whatever its name; a new file replaces the old one of the same name when it is
    complete. A file that is damaged is removed with a warning, and its features are
    computed again.
    """
    key = _digest(backbone, paths, views)
    shape = (len(paths), *backbone.compute_output_shape((None,))[1:])
    for file in cache.glob(f"[!.]*-{key}.npy"):
        with contextlib.suppress(ValueError, EOFError):
            found = np.load(file, mmap_mode="r")
            if found.shape == shape:
                return found
        print(
            f"Warning: {printable(file)} is damaged; its features are computed again",
            file=sys.stderr,
        )
        # Another host may have removed it.
        file.unlink(missing_ok=True)
    file = cache / f"{name}-{key}.npy"
    with atomic_path(file) as temporary:
        _write_features(temporary, backbone, paths, views, shape)
    for stale in (*cache.glob(f"{name}-*.npy"), *_abandoned(cache)):
        if stale != file:
            # Another training may still be reading it on some systems.
            with contextlib.suppress(OSError):
                stale.unlink()
    return np.load(file, mmap_mode="r")


def _write_features(path, backbone, paths, views, shape):
    """Compute features of images and write them to a file."""
    features = np.lib.format.open_memmap(path, "w+", "float16", shape)
    _reserve(path)
    model = feature_model(backbone)
    batches = ImageBatches(paths, backbone.cnn.input_shape[1], views=views)
    progress = keras.utils.Progbar(len(paths), unit_name="image")
    for index in range(len(batches)):
        begin = index * batches.batch_size
        multiple = shape_multiple(batches.batch_size)
        computed = predict_rows(model, batches[index], multiple)
        features[begin : begin + len(computed)] = computed
        progress.add(len(computed))
    features.flush()


def _abandoned(cache):
    """Yield incomplete files of killed trainings."""
    for file in cache.glob(".part-*"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > ABANDONED:
                yield file


def _reserve(path):
    """Allocate the disk space of a sparse file, or raise an `OSError`.

    On a full disk, writing to mapped memory would kill the process without a message.
    """
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def feature_model(backbone):
    """Return a Keras model from images to the regions of a `Backbone`."""
    model = keras.Sequential([keras.Input(backbone.cnn.input_shape[1:]), backbone])
    model.compile(jit_compile=keras.backend.backend() == "jax")
    return model


def _digest(backbone, paths, views):
    digest = hashlib.blake2b(digest_size=12)
    cnn, computed = backbone.cnn, backbone.compute_dtype
    digest.update(f"{_VERSION} {cnn.name} {cnn.input_shape} ".encode())
    digest.update(f"{computed} {views}".encode())
    for weight in cnn.weights:
        digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight)))
    for path in paths:
        digest.update(hashlib.blake2b(read_content(path), digest_size=16).digest())
    return digest.hexdigest()
