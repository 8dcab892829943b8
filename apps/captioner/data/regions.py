"""Files of detected regions: the features and the boxes of one image each.

Shapes: R regions of an image, M maximum number of regions, D depth of a region.
"""

import dataclasses
import os
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from keras_attention_apps.captioner.data.files import ArchivedFile, DataError
from keras_attention_apps.captioner.images import ImageError
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.reading import check_bytes, check_input

SUFFIX = ".npz"
# Number of attempts to read a file; see `_load`.
ATTEMPTS = 5

_load_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Regions:
    """The detected regions of an image.

    Attributes:
        features: Float32 array `(R, D)`, at least one region.
        boxes: Boxes `(R, 4)`: left, top, right and bottom as fractions of width
            and height.
    """

    features: np.ndarray
    boxes: np.ndarray


def regions_file(image, folder=None):
    """Return the path of the regions of an image: its name with the suffix `.npz`.

    Args:
        image: Path of the image, or of the file of regions itself, or `ArchivedFile`.
        folder: Folder of the files; by default that of the image, or of its archive.
    """
    if isinstance(image, ArchivedFile):
        image = image.archive.with_name(image.name)
    path = Path(image)
    if path.suffix == SUFFIX:
        return path
    return Path(path.parent if folder is None else folder) / f"{path.stem}{SUFFIX}"


def read_regions(source, folder=None, *, depth=None, most=None):
    """Read the regions of an image.

    Args:
        source: Path of the image or of its file of regions, `ArchivedFile` of the
            image, or `Regions`.
        folder: As for `regions_file`.
        depth: Depth D that the model needs, if known.
        most: Maximum number of regions, of which the first ones are kept.

    Raises:
        ImageError: If there is no such file, it is damaged, or its arrays do not fit.
    """
    if isinstance(source, Regions):
        return _checked(source.features, source.boxes, depth, most, "the given Regions")
    if not isinstance(source, (str, os.PathLike, ArchivedFile)):
        raise ImageError(
            "a model of detected regions needs the path of an image or of a file of "
            f"regions, or Regions. Received: {type(source).__name__}"
        )
    path = regions_file(source, folder)
    try:
        check_input(path)
        check_bytes(path.stat().st_size, path.name)
        with zipfile.ZipFile(path) as archive:
            check_bytes(sum(x.file_size for x in archive.infolist()), path.name)
        features, boxes = _load(path)
    # NumPy and zipfile fail with many types of exceptions if a file is damaged.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ImageError(f"Cannot read regions {str(path)!r}: {reason}") from error
    return _checked(features, boxes, depth, most, repr(str(path)))


def checksums(image, folder):
    """Return the names and the checksums of the arrays in the regions of an image.

    They are read from the end of the file, without its contents.
    """
    with zipfile.ZipFile(regions_file(image, folder)) as archive:
        return [(member.filename, member.CRC) for member in archive.infolist()]


def _load(path):
    """Return the arrays of a file."""
    # On Python 3.11, parsing the header of an array may fail with a SystemError if
    # another thread parses something at the same time.
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _load_lock, np.load(path, allow_pickle=False) as arrays:
                return [_array(arrays, name) for name in ("features", "boxes")]
        except SystemError:
            if attempt == ATTEMPTS:
                raise


def _array(arrays, name):
    if name not in arrays:
        raise ValueError(
            "expected arrays 'features' and 'boxes', but found "
            f"{', '.join(arrays.files) or 'none'}"
        )
    return arrays[name]


def _checked(features, boxes, depth, most, where):
    """Return `Regions` of arrays, or raise an `ImageError`."""
    features, boxes = np.asarray(features), np.asarray(boxes)
    expected = "D" if depth is None else depth
    problem = None
    if features.ndim != 2 or features.dtype.kind != "f" or not features.size:
        problem = f"features must be floats (R, {expected}), at least one region"
    elif depth is not None and features.shape[1] != depth:
        problem = f"features must have the depth {depth}, that of the model"
    elif boxes.shape != (len(features), 4) or boxes.dtype.kind not in "fiu":
        problem = f"boxes must be numbers ({len(features)}, 4), one box for each region"
    if problem:
        raise ImageError(
            f"{where}: {problem}. Received: features {features.shape} of "
            f"{features.dtype}, boxes {boxes.shape} of {boxes.dtype}"
        )
    features, boxes = features.astype("float32"), boxes.astype("float32")
    if not np.isfinite(features).all():
        raise ImageError(f"{where}: features must be finite numbers")
    # NaN fails these comparisons, too.
    if not ((boxes >= 0) & (boxes <= 1)).all() or not (
        (boxes[:, :2] <= boxes[:, 2:]).all()
    ):
        raise ImageError(
            f"{where}: boxes must be left, top, right, bottom as fractions of width "
            f"and height, from 0 to 1. Received: {boxes.min():g} to {boxes.max():g}"
        )
    return Regions(features[:most], boxes[:most])


def padded(features, most):
    """Return features with rows of zeros, which the network masks, `(most, D)`."""
    return np.pad(features, ((0, most - len(features)), (0, 0)))


class RegionFeatures:
    """The features of many images, read from their files when they are needed.

    An array `(images, M, D)` for indices and slices of the first axis.

    Args:
        paths: Paths of the images.
        folder: Folder of their regions.
        most: Maximum number of regions M.
        depth: Depth D.
    """

    def __init__(self, paths, folder, most, depth):
        self.paths = paths
        self.folder = folder
        self.most = most
        self.depth = depth

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self.with_boxes(index)[0]
        return padded(self._read(index).features, self.most)

    def with_boxes(self, images):
        """Return the features of a slice of the images, and the boxes of each."""
        regions = [self._read(i) for i in range(*images.indices(len(self)))]
        features = np.stack([padded(x.features, self.most) for x in regions])
        return features, [x.boxes for x in regions]

    def boxes(self, index):
        """Return the boxes of an image, `(R, 4)`, R at most M."""
        return self._read(index).boxes

    def _read(self, index):
        return read_regions(
            self.paths[index], self.folder, depth=self.depth, most=self.most
        )


def depth_of_regions(images, folder):
    """Check the regions of all images of a data set, and return their depth D.

    Args:
        images: List of `CaptionedImage`s.
        folder: Folder of their regions.

    Raises:
        UserError: If two images have the same file, or the files of an image are
            missing, damaged, or of another depth than those of the first.
    """
    owners = {}
    for image in images:
        file = regions_file(image.path.name, folder)
        other = owners.setdefault(file.name, image.path)
        if other != image.path:
            raise DataError(
                f"{folder}: expected one image for {file.name}, but it is the file of "
                f"{other} and {image.path}"
            )
    depth = read_regions(images[0].path.name, folder).features.shape[1]

    def problem(image):
        try:
            read_regions(image.path.name, folder, depth=depth)
        except ImageError as error:
            return str(error)
        return None

    with ThreadPoolExecutor() as readers:
        problems = [x for x in readers.map(problem, images) if x]
    if problems:
        raise UserError(
            f"the regions of {len(problems)} of {len(images)} images cannot be read. "
            f"The first: {problems[0]}"
        )
    return depth
