"""Batches of images and their captions, and features of a frozen CNN."""

import contextlib
import dataclasses
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np

from keras_attention_apps.captioner.data.dataset import read_content
from keras_attention_apps.captioner.images import read_array
from keras_attention_apps.captioner.metrics import coverage
from keras_attention_apps.captioner.network.backbone import feature_model
from keras_attention_apps.common.distribution import predict_rows, rows_of_host
from keras_attention_apps.common.errors import counted, printable
from keras_attention_apps.common.files import atomic_path
from keras_attention_apps.common.network.decoder_network import (
    rounded_up,
    shape_multiple,
)
from keras_attention_apps.common.output import progress_bar
from keras_attention_apps.common.tokenizer import PAD
from keras_attention_apps.common.training.data_sets import Mixture

# Images are sorted by the length of their captions within buckets of this many batches.
BUCKET_BATCHES = 8
# Images whose features are computed at a time.
FEATURE_BATCH = 32
# Minimum share of an image's width, and of its height, that a crop keeps.
MIN_CROP = 0.8
# Seconds without a change after which an incomplete file counts as abandoned.
ABANDONED = 24 * 3600
# Version of the file format, a part of the keys: files of other versions are not read.
_VERSION = 3
# The view of the whole image: the box of a crop, and whether it is mirrored.
WHOLE = (0.0, 0.0, 1.0, 1.0), False


def image_batches(paths, size, batch_size, views=None):
    """Yield the images in order, as arrays `(B, size, size, 3)` of uint8."""
    views = views or [WHOLE] * len(paths)
    for begin in range(0, len(paths), batch_size):
        batch = slice(begin, begin + batch_size)
        yield load_images(paths[batch], size, views[batch])


def load_images(paths, size, views):
    """Load images as one array `(B, size, size, 3)` of uint8."""

    def load(path, view):
        box, mirrored = view
        array = read_array(path, size, None if box == WHOLE[0] else box)
        return array[:, ::-1] if mirrored else array

    with ThreadPoolExecutor(os.cpu_count()) as readers:
        return np.stack(list(readers.map(load, paths, views)))


def random_views(count, random):
    """Return random views of images: the box of a crop, and whether it is mirrored."""
    views = []
    for _ in range(count):
        size = random.uniform(MIN_CROP, 1, 2)
        begin = random.random(2) * (1 - size)
        box = tuple(np.concatenate([begin, begin + size]).tolist())
        views.append((box, bool(random.random() < 0.5)))
    return views


def viewed(boxes, view):
    """Return the parts of boxes inside a view, in coordinates of the view."""
    (left, top, right, bottom), mirrored = view
    scale = np.array([right - left, bottom - top] * 2)
    visible = []
    for box in boxes:
        box = np.clip((np.array(box) - [left, top, left, top]) / scale, 0, 1)
        if mirrored:
            box = np.array([1 - box[2], box[1], 1 - box[0], box[3]])
        if box[0] < box[2] and box[1] < box[3]:
            visible.append(tuple(box.tolist()))
    return visible


@dataclasses.dataclass(eq=False)
class TrainingBatches(keras.utils.PyDataset):
    """Shuffled batches of images, each with several of its captions.

    The order depends on the seed and the epoch alone, so an interrupted training
    continues with the same batches. Images whose longest captions have similar lengths
    share a batch, which saves padding.

    Attributes:
        captions: For each image, its captions as lists of token ids.
        mixture: `Mixture` of the images, from which every epoch is drawn; each once if
            omitted.
        features, views: Arrays `(images, S, D)`, and the views of the images in each;
            an epoch draws one for each image. Without them, the images of `paths` are
            read, in random views if `augment`.
        boxes, grid: Attention supervision: a dict from token ids to boxes for each
            image, and the numbers of rows and columns of the regions.
        multiple: The rows of a batch are padded to a multiple of this. Rows of padding
            repeat an image and have empty captions, which do not count in the loss. On
            several hosts, each process gets its share of the rows.
    """

    captions: list
    _: dataclasses.KW_ONLY
    mixture: Mixture | None = None
    features: Sequence = ()
    views: Sequence = ()
    paths: Sequence = ()
    image_size: int | None = None
    augment: bool = True
    boxes: list | None = None
    grid: Sequence[int] = ()
    batch_images: int
    captions_per_image: int
    multiple: int = 1
    seed: int
    epoch: int = 0

    def __post_init__(self):
        super().__init__(workers=2)
        self._mixture = self.mixture or Mixture([len(self.captions)])
        largest = max(map(len, self.captions))
        self.captions_per_image = min(self.captions_per_image, largest)
        self._longest = max(len(text) for texts in self.captions for text in texts)
        self._batches = self._plan()

    def __len__(self):
        return len(self._batches)

    def on_epoch_end(self):
        self.epoch += 1
        self._batches = self._plan()

    def _plan(self):
        """Return the images of every batch of this epoch."""
        random = np.random.default_rng((self.seed, self.epoch))
        order = self._mixture.draw(random)
        longest = np.array([max(map(len, texts)) for texts in self.captions])
        bucket = self.batch_images * BUCKET_BATCHES
        batches = []
        for begin in range(0, len(order), bucket):
            chosen = order[begin : begin + bucket]
            chosen = chosen[np.argsort(longest[chosen], kind="stable")]
            batches += [
                chosen[i : i + self.batch_images]
                for i in range(0, len(chosen), self.batch_images)
            ]
        return [batches[i] for i in random.permutation(len(batches))]

    def __getitem__(self, index):
        chosen = self._batches[index]
        random = np.random.default_rng((self.seed, self.epoch, index))
        # If the first two batches have the same length, Keras assumes it for all
        # batches. So the first one is padded to more than any other.
        min_length = self._longest + 1 if index == 0 else 0
        captions = self._caption_batch(chosen, min_length, random)
        missing = len(captions) - len(chosen)
        chosen = np.append(chosen, np.repeat(chosen[-1:], missing))
        if self.features:
            drawn = random.integers(len(self.features), size=len(chosen))
            views = [self.views[view][i] for view, i in zip(drawn, chosen, strict=True)]
        else:
            views = [WHOLE] * len(chosen)
            if self.augment:
                views = random_views(len(chosen), random)
        rows = rows_of_host(len(chosen))
        chosen, captions, views = chosen[rows], captions[rows], views[rows]
        batch = {"captions": captions}
        if self.features:
            pairs = zip(drawn[rows], chosen, strict=True)
            batch["features"] = np.stack([self.features[view][i] for view, i in pairs])
        else:
            paths = [self.paths[i] for i in chosen]
            batch["images"] = load_images(paths, self.image_size, views)
        if self.boxes is not None:
            boxes = [self.boxes[i] for i in chosen]
            batch["coverage"] = self._coverage(boxes, views, captions)
        return (batch,)

    def _coverage(self, boxes_of_words, views, captions):
        """Return the share of each region that the boxes of each word cover."""
        targets = captions[..., 1:]
        regions = np.zeros((*targets.shape, np.prod(self.grid)), "float32")
        for row, (words, view) in enumerate(zip(boxes_of_words, views, strict=True)):
            for token, boxes in words.items():
                covered = coverage(viewed(boxes, view), *self.grid)
                regions[row, targets[row] == token] = covered
        return regions

    def _caption_batch(self, chosen, min_length, random):
        rows = []
        for image in chosen:
            texts = self.captions[image]
            picked = random.permutation(len(texts))[: self.captions_per_image]
            rows.append([texts[i] for i in picked])
        longest = max(min_length, *(len(text) for texts in rows for text in texts))
        # Without its last token, which is only a target.
        longest = rounded_up(longest - 1, shape_multiple()) + 1
        count = rounded_up(len(rows), shape_multiple(self.batch_images))
        count = rounded_up(count, self.multiple)
        shape = (count, self.captions_per_image, longest)
        token_ids = np.full(shape, PAD, "int32")
        for row, texts in enumerate(rows):
            for column, text in enumerate(texts):
                token_ids[row, column, : len(text)] = text
        return token_ids


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
            cached = np.load(file, mmap_mode="r")
            if cached.shape == shape:
                return cached
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
    print(f"Computing the features of {counted(len(paths), 'image')}", flush=True)
    features = np.lib.format.open_memmap(path, "w+", "float16", shape)
    _reserve(path)
    model = feature_model(backbone)
    size, multiple = backbone.cnn.input_shape[1], shape_multiple(FEATURE_BATCH)
    begin = 0
    with progress_bar(total=len(paths), unit="image") as progress:
        for images in image_batches(paths, size, FEATURE_BATCH, views):
            end = begin + len(images)
            features[begin:end] = predict_rows(model, images, multiple)
            progress.update(len(images))
            begin = end
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


def _digest(backbone, paths, views):
    digest = hashlib.blake2b(digest_size=12)
    cnn, computed = backbone.cnn, backbone.compute_dtype
    digest.update(f"{_VERSION} {cnn.name} {cnn.input_shape} ".encode())
    digest.update(f"{computed} {views}".encode())
    for weight in cnn.weights:
        digest.update(keras.ops.convert_to_numpy(weight).tobytes())
    for path in paths:
        digest.update(hashlib.blake2b(read_content(path), digest_size=16).digest())
    return digest.hexdigest()
