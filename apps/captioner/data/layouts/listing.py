"""The images and captions that a data set lists, and their splits."""

import collections
import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path

from keras_attention_apps.captioner.data.archives import ArchivedFile
from keras_attention_apps.captioner.data.layouts.files import (
    list_files,
    list_some,
    unexpected,
)

SPLITS = {name: name for name in ("train", "dev", "test")}
SPLITS |= {name: "dev" for name in ("val", "valid", "validation")}


@dataclass(frozen=True)
class CaptionedImage:
    """An image on disk, its captions, and its id in the data set.

    In a data set without ids, `image_id` is the file's name without suffix, or its
    path within the data set if several files have that name. `boxes` is a dict from
    words of the captions to the boxes of the objects that they name. `teacher_captions`
    are captions of other models, for training.
    """

    path: Path | ArchivedFile
    captions: tuple[str, ...]
    image_id: int | str
    boxes: dict = field(default_factory=dict)
    teacher_captions: tuple[str, ...] = ()


@dataclass
class _Listed:
    """An image whose captions and boxes are still being read."""

    path: Path | ArchivedFile
    split: str | None
    image_id: int | str | None
    captions: list = field(default_factory=list)
    boxes: dict = field(default_factory=dict)


class Listing:
    """The images that the files of a data set list, each in one split or in none.

    Args:
        where: Path of the data set, or of its file, for errors.
        lacking: For a layout with a file for each split: dict from the splits without a
            file to the expected file. `None` for layouts in which a split exists as
            soon as an image names it.
        draws_dev: Whether dev is drawn from train where it is missing.
        drawn_by: Function from a path to the text whose hash decides its split.

    Attributes:
        dropped: Dict from pairs `(split or None, kind)` to the list of the examples of
            this kind that were left out.
    """

    def __init__(self, where, *, lacking=None, draws_dev=True, drawn_by=None):
        self.where = where
        self.dropped = {}
        self._lacking = lacking
        self._draws_dev = draws_dev
        self._drawn_by = drawn_by or _whole_name
        self._images = {}
        self._names_of_ids = {}

    def add(self, path, captions, split=None, *, where, image_id=None, boxes=None):
        """Add an image, or further captions of one.

        Args:
            path: Its path within the data set, or `ArchivedFile`.
            captions: Its captions.
            split: Its split, if the data set names one.
            where: Position in a file, for errors.
            image_id: Its number or name, if the data set names one.
            boxes: Boxes of objects, by word.

        Raises:
            DataError: If the image is in another split, has another id, or is another
                file of the same name; or if another image of the split has this id.
        """
        if not isinstance(path, ArchivedFile):
            # Paths of Windows, also on other systems.
            path = Path(str(path).replace("\\", "/"))
        name = _whole_name(path)
        image = self._images.setdefault(name, _Listed(path, split, image_id))
        if image.split != split:
            found = f"{name} in {image.split or 'none'} and in {split or 'none'}"
            raise unexpected(where, "one split for every image", found)
        if (image.path, image.image_id) != (path, image_id):
            raise unexpected(where, "one entry for every image", f"two of {name}")
        if image_id is not None:
            other = self._names_of_ids.setdefault((split, image_id), name)
            if other != name:
                found = f"{image_id!r} of {other} and of {name}"
                raise unexpected(where, "an id of its own for every image", found)
        image.captions += captions
        for word, found in (boxes or {}).items():
            image.boxes[word] = (*dict.fromkeys((*image.boxes.get(word, ()), *found)),)

    def drop(self, kind, example, split=None):
        """Record an example that is left out, and its kind, a plural noun."""
        self.dropped.setdefault((split, kind), []).append(example)

    def select(self, split, validation_share):
        """Return the images of a split, and those of the others.

        Args:
            split: The split.
            validation_share: Share of the images that are drawn for dev, and for test.

        Returns:
            images: List of `CaptionedImage`.
            others: Dict from each other split to the list of its paths.

        Raises:
            DataError: If there is no such split, or only a part of the images has one.
        """
        parts = {}
        if self._lacking is not None:
            parts = {x: [] for x in SPLITS.values() if x not in self._lacking}
        for image in self._images.values():
            parts.setdefault(image.split, []).append(image)
        if set(parts) <= {None}:
            parts = self._drawn_splits(parts.get(None, []), validation_share, split)
        elif None in parts:
            found = f"none of {_whole_name(parts[None][0].path)}"
            raise unexpected(self.where, "a split for every image", found)
        elif self._draws_dev and "train" in parts and "dev" not in parts:
            drawn = self._drawn_splits(
                parts["train"], validation_share, split, test="train"
            )
            parts |= {"train": drawn["train"], "dev": drawn["dev"]}
        if split not in parts:
            raise self._missing_split(split, parts)
        paths = {x: [image.path for image in images] for x, images in parts.items()}
        others = {other: found for other, found in paths.items() if other != split}
        return _captioned(parts[split]), others

    def _drawn_splits(self, images, validation_share, split, test="test"):
        """Return a dict from splits to the images that are drawn for them.

        Args:
            images: The images.
            validation_share: See `select`.
            split: The requested split.
            test: The split of the images that are drawn for test.
        """
        if split == "dev" and len(images) < 2:
            expected = "at least two images, of which one is for validation"
            raise unexpected(self.where, expected, len(images))
        texts = [self._drawn_by(image.path) for image in images]
        splits = _splits_of(texts, validation_share)
        drawn = {name: [] for name in SPLITS.values()}
        for image, text in zip(images, texts, strict=True):
            drawn[test if splits[text] == "test" else splits[text]].append(image)
        return drawn

    def _missing_split(self, split, parts):
        if self._lacking:
            expected = f"{self._lacking[split]} for the split {split}"
            return unexpected(self.where, expected, list_files(self.where))
        found = f"only {list_some(parts)}"
        return unexpected(self.where, f"images of the split {split}", found)


def _captioned(images):
    stems = collections.Counter(image.path.stem for image in images)

    def id_of(image):
        if image.image_id is not None:
            return image.image_id
        stem = image.path.stem
        return stem if stems[stem] == 1 else _whole_name(image.path)

    return [
        CaptionedImage(image.path, tuple(image.captions), id_of(image), image.boxes)
        for image in images
    ]


def _whole_name(path):
    """Return the path of an image within its data set."""
    if isinstance(path, ArchivedFile):
        path = Path(f"{path.archive.name}/{path.inside}")
    return path.as_posix()


def _splits_of(names, validation_share):
    """Return a dict from names to splits, drawn by a hash of the name.

    The hash depends on the name alone, so that adding images never moves the others.
    Dev has the smallest hashes and test the largest, so that a change of the share
    never moves an image from one to the other. With a share above 0, dev has at least
    one of two or more images. If train would be empty, it gets the images of test.
    """
    hashes = {name: _hash_of(name) for name in names}
    first = min(hashes.values(), default=0)
    limit = validation_share
    if validation_share and len(hashes) > 1:
        limit = max(limit, math.nextafter(first, 1))
    splits = {
        name: "dev"
        if number < limit
        else ("test" if number >= 1 - validation_share else "train")
        for name, number in hashes.items()
    }
    if "train" not in splits.values():
        return {name: split.replace("test", "train") for name, split in splits.items()}
    return splits


def _hash_of(name):
    """Return the hash of a name as a number from 0 to 1."""
    name = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(name).digest()[:6]) / 2**48
