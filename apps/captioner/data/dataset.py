"""Read captioned images from any of the supported layouts."""

import concurrent.futures
import dataclasses
import os
import sys
import unicodedata
from pathlib import Path

from keras_attention_apps.captioner.data.archives import ArchivedFile
from keras_attention_apps.captioner.data.layouts import (
    IMAGE_FOLDERS,
    LAYOUTS,
    SPLITS,
    TEXT_FOLDERS,
    DataError,
    list_files,
    list_some,
    unexpected,
)
from keras_attention_apps.captioner.data.text import tokenize
from keras_attention_apps.captioner.images.reading import ImageError, read_image


def read_dataset(directory, split, *, validation_share=0.1):
    """Return the captioned images of one split.

    Args:
        directory: Path of the data set, or of its folder of images or texts if the
            other folder is beside it.
        split: `"train"`, `"dev"` or `"test"`; `"val"`, `"valid"` and
            `"validation"` mean `"dev"`.
        validation_share: For data without splits, share of the images in dev, and in
            test; for data without dev, share of train that becomes dev. At least 0,
            below 0.5.

    Returns:
        List of `CaptionedImage`, in the order of the split file or, if there is none,
        of the file with the captions. Images without captions and missing files are
        left out; a warning gives the number of missing files.

    Raises:
        DataError: If no layout is recognised, a file is broken, the data has no such
            split, or more than half of its images are missing.
    """
    if split not in SPLITS:
        raise unexpected("split", f"one of {list_some(SPLITS)}", repr(split))
    if not 0 <= validation_share < 0.5:
        raise unexpected(
            "validation_share", "0 or more, below 0.5", repr(validation_share)
        )
    directory = Path(directory).expanduser().absolute()
    if not directory.is_dir():
        found = "a file" if directory.exists() else "nothing"
        raise unexpected(directory, "a directory", found)
    roots = [directory]
    if directory.name in IMAGE_FOLDERS + TEXT_FOLDERS:
        roots.append(directory.parent)
    for root in roots:
        for read in LAYOUTS:
            images = read(root, SPLITS[split], validation_share)
            if images is not None:
                return _locate_images(roots, SPLITS[split], images)
    layouts = (
        "dataset*.json (Karpathy), captions_*train*.json (COCO), *.token.txt or "
        "*.token (official Flickr8k or Flickr30k), captions.txt (Kaggle), metadata.csv "
        "or metadata.jsonl (Hugging Face), or *.tar (WebDataset)"
    )
    raise unexpected(directory, layouts, list_files(directory))


def readable(images, limit):
    """Return the images that can be read, and print a warning for each of the others.

    Args:
        images: List of `CaptionedImage`.
        limit: Maximum share of unreadable images.

    Raises:
        DataError: If the share is larger, or no image can be read.
    """

    def problem(image):
        try:
            read_image(image.path, draft=True)
        except ImageError as error:
            # The traceback of the exception would keep the image in memory.
            return str(error)
        return None

    with concurrent.futures.ThreadPoolExecutor() as pool:
        problems = list(pool.map(problem, images))
    broken = [problem for problem in problems if problem]
    if len(broken) > limit * len(images) or len(broken) == len(images):
        raise DataError(
            f"{len(broken)} of {len(images)} images cannot be read, and at most "
            f"{limit:.2%} may be left out, but not all. The first: {broken[0]}"
        )
    for reason in broken:
        print(f"captioner: warning: {reason}; it is left out", file=sys.stderr)
    return [
        image
        for image, problem in zip(images, problems, strict=True)
        if problem is None
    ]


def _locate_images(roots, split, images):
    """Return the images that have captions, with the paths of their files."""
    bases = [*roots]
    for root in roots:
        for outer in IMAGE_FOLDERS:
            bases += [root / outer, *(root / outer / inner for inner in IMAGE_FOLDERS)]
    bases = [base for base in bases if base.is_dir()]
    found, missing = [], []
    for image in images:
        captions = tuple(text.strip() for text in image.captions if tokenize(text))
        if isinstance(image.path, ArchivedFile):
            found += [dataclasses.replace(image, captions=captions)] if captions else []
            continue
        # The folders in a data set's paths may be missing on disk: also try without.
        parts = image.path.parts
        names = (Path(*parts[start:]) for start in range(len(parts)))
        names = (spelt for name in names for spelt in _spellings(name))
        paths = (base / name for name in names for base in bases)
        # Unlike `os.path.isfile`, `Path.is_file` may raise an error for invalid names.
        path = next((path for path in paths if os.path.isfile(path)), None)
        if captions and path:
            found.append(dataclasses.replace(image, path=path, captions=captions))
        elif captions:
            missing.append(image.path.name)
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
            raise DataError(f"{report}; looked in {list_some(bases)}")
        print(f"captioner: warning: {report}; they are left out", file=sys.stderr)
    return found


def _spellings(name):
    """Return a name and its Unicode normal forms; macOS decomposes accents."""
    forms = (unicodedata.normalize(form, str(name)) for form in ("NFC", "NFD"))
    return dict.fromkeys((name, *map(Path, forms)))
