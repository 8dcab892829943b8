"""Read captioned images from any of the supported layouts."""

import concurrent.futures
import contextlib
import dataclasses
import os
import re
import sys
import unicodedata
from pathlib import Path

from keras_attention_apps.captioner.data.files import (
    TEXT_FOLDERS,
    ArchivedFile,
    DataError,
    list_files,
    list_some,
    read_content,
    unexpected,
)
from keras_attention_apps.captioner.data.layouts import LAYOUTS, SPLITS
from keras_attention_apps.captioner.images import ImageError, read_image
from keras_attention_apps.captioner.text import tokenize
from keras_attention_apps.common.errors import printable
from keras_attention_apps.common.files import check_local

IMAGE_FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset")
IMAGE_FOLDERS += ("flickr30k-images", "flickr30k_images", "images", "Images")
# Marks of the beginning and the end of captions, and entities of HTML: parts of other
# programs that are not words.
_MARKS = re.compile(
    r"</?(?:start|end|pad|unk|bos|eos|s)>|\b(?:startseq|endseq)\b|&(?:[a-z]+|#\d+);"
)


def read_dataset(directory, split, *, validation_share=0.1):
    """Return the `CaptionedImage`s of one split, in the order of its files.

    Captions without a word, images without captions and missing files are left out, and
    counted in warnings.

    Args:
        directory: Path of the data set, or of its folder of images or texts if the
            other folder is next to it.
        split: One of the `SPLITS`.
        validation_share: For data without splits, share of the images in dev, and in
            test; for data without dev, share of train that becomes dev. At least 0,
            below 0.5.
    """
    if split not in SPLITS:
        raise unexpected("split", f"one of {list_some(SPLITS)}", repr(split))
    if not 0 <= validation_share < 0.5:
        found = repr(validation_share)
        raise unexpected("validation_share", "0 or more, below 0.5", found)
    check_local(directory)
    directory = Path(directory).expanduser().absolute()
    if not directory.is_dir():
        found = "a file" if directory.exists() else "nothing"
        raise unexpected(directory, "a directory", found)
    roots = [directory]
    if directory.name in IMAGE_FOLDERS + TEXT_FOLDERS:
        roots.append(directory.parent)
    for root in roots:
        for read in LAYOUTS:
            listing = read(root)
            if listing is not None:
                return _images_on_disk(roots, listing, SPLITS[split], validation_share)
    layouts = (
        "dataset*.json (Karpathy), captions_*train*.json (COCO), *.token.txt or "
        "*.token (official Flickr8k or Flickr30k), captions.txt (Kaggle), metadata.csv "
        "or metadata.jsonl (Hugging Face), or *.tar (WebDataset)"
    )
    raise unexpected(directory, layouts, list_files(directory))


def readable(images, limit):
    """Return the images that can be read, and warn of each of the others."""

    def problem(image):
        try:
            read_image(image.path, draft=True)
        except ImageError as error:
            # The traceback of the exception would keep the image in memory.
            return str(error)
        return None

    with concurrent.futures.ThreadPoolExecutor() as pool:
        problems = list(pool.map(problem, images))
    broken = list(filter(None, problems))
    if len(broken) > limit * len(images) or len(broken) == len(images):
        raise DataError(
            f"{len(broken)} of {len(images)} images cannot be read; at most "
            f"{limit:.2%} may be left out (--max-unreadable), and never all. "
            f"The first: {broken[0]}"
        )
    for reason in broken:
        _warn(f"{reason}; it is left out")
    return [x for x, problem in zip(images, problems, strict=True) if not problem]


class _Folders:
    """The folders in which the images of a data set may lie."""

    def __init__(self, roots):
        bases = [*roots]
        for root in roots:
            for outer in IMAGE_FOLDERS:
                inner = (root / outer / name for name in IMAGE_FOLDERS)
                bases += [root / outer, *inner]
        self.bases = [base for base in bases if base.is_dir()]

    def find(self, path):
        """Return the file of an image, or `None` if it is missing."""
        if isinstance(path, ArchivedFile):
            return path
        # A data set's paths may begin with folders that are missing on disk, so shorter
        # paths are tried, too.
        parts = path.parts
        names = (Path(*parts[start:]) for start in range(len(parts)))
        names = (spelt for name in names for spelt in _spellings(name))
        paths = (base / name for name in names for base in self.bases)
        # Unlike `os.path.isfile`, `Path.is_file` may raise an error for invalid names.
        return next((path for path in paths if os.path.isfile(path)), None)


def _images_on_disk(roots, listing, split, validation_share):
    """Return the images of a split with captions, and the paths of their files."""
    folders = _Folders(roots)
    images, others = listing.select(split, validation_share)
    found, missing = [], []
    marked = [x for image in images for x in image.captions if _MARKS.search(x)]
    if marked:
        _warn(
            f"{listing.where}: {len(marked)} captions of the split {split} contain "
            f"marks of another program, which are read as words. The first: "
            f"{_MARKS.search(marked[0])[0]!r} in {marked[0]!r:.60}"
        )
    for image in images:
        captions = tuple(text.strip() for text in image.captions if tokenize(text))
        for text in image.captions:
            if not tokenize(text):
                listing.drop("captions without a word", text, split)
        if not image.captions:
            listing.drop("images without a caption", str(image.path), split)
        path = folders.find(image.path) if captions else None
        if path:
            found.append(dataclasses.replace(image, path=path, captions=captions))
        elif captions:
            missing.append(image.path.name)
    _warn_of_dropped(listing, split)
    if not found and not missing:
        texts = {f"{text!r:.60}" for image in images for text in image.captions}
        expected = f"captions with a word for the split {split}"
        raise unexpected(roots[0], expected, list_some(texts))
    if missing:
        report = (
            f"{roots[0]}: {len(missing)} of {len(found) + len(missing)} images of "
            f"the split {split} are missing, the first is {missing[0]!r}"
        )
        if len(missing) > len(found):
            raise DataError(f"{report}; looked in {list_some(folders.bases)}")
        _warn(f"{report}; they are left out")
    _check_splits_disjoint(folders, split, found, others)
    return found


def _warn_of_dropped(listing, split):
    """Print a warning for each reason for which a listing left something out."""
    for (its_split, kind), examples in listing.dropped.items():
        if its_split in (None, split):
            _warn(
                f"{listing.where}: {kind} are left out: {len(examples)}, the first is "
                f"{examples[0]!r:.60}"
            )


def _check_splits_disjoint(folders, split, images, others):
    """Raise a `DataError` if the file of an image is in another split, too.

    Files of the same name are compared, whatever paths the data set has for them.
    """
    own = {}
    for image in images:
        own.setdefault(_normalized_name(image.path), []).append(image.path)
    for other, paths in others.items():
        for path in paths:
            alike = own.get(_normalized_name(path))
            file = folders.find(path) if alike else None
            for image in alike if file else ():
                if _are_same(image, file):
                    found = f"{path} in {other}, the same image as {image} in {split}"
                    where = folders.bases[0]
                    raise unexpected(where, "one split for every image", found)


def _warn(message):
    print(f"captioner: warning: {printable(message)}", file=sys.stderr)


def _normalized_name(path):
    return unicodedata.normalize("NFC", path.name).casefold()


def _are_same(first, second):
    """Return whether two files are one, or have the same content."""
    with contextlib.suppress(OSError):
        sizes = {_size(first), _size(second)}
        return len(sizes) == 1 and read_content(first) == read_content(second)
    return False


def _size(path):
    return path.size if isinstance(path, ArchivedFile) else path.stat().st_size


def _spellings(name):
    """Return the spellings of a name that a file may have.

    macOS decomposes accents, and some programs unpack folders of archives that were
    made on Windows as parts of the names of files.
    """
    forms = [unicodedata.normalize(form, str(name)) for form in ("NFC", "NFD")]
    forms += [form.replace("/", "\\") for form in forms]
    return dict.fromkeys((name, *map(Path, forms)))
