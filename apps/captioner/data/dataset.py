"""Reads captioned photographs, whatever layout the data comes in."""

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
    """Returns the images of one split that have a caption and a photograph.

    Args:
        directory: Path of the data set. The folder of its photographs or of its
            texts will do as well, if the rest lies beside it.
        split: `"train"`, `"dev"` or `"test"`; `"val"`, `"valid"` and
            `"validation"` mean `"dev"`.
        validation_share: Share of the images that go to dev, and again to test,
            where the data comes without splits; where only dev is missing, share of
            train that becomes dev. At least 0, below 0.5.

    Returns:
        List of `CaptionedImage`, in the order of the split file or, where there is
        none, of the file with the captions. Images without caption are left out.
        So are missing photographs, with one warning that counts them.

    Raises:
        DataError: If no layout is recognised, a file is broken, the split is not in
            the data, or more than half of its photographs are missing.
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
                return _find_photographs(roots, SPLITS[split], images)
    layouts = (
        "dataset*.json (Karpathy), captions_*train*.json (COCO), *.token.txt or "
        "*.token (official Flickr8k or Flickr30k), captions.txt (Kaggle), metadata.csv "
        "or metadata.jsonl (Hugging Face), or *.tar (WebDataset)"
    )
    raise unexpected(directory, layouts, list_files(directory))


def readable(images, limit):
    """The images whose photographs can be read; the others are named on the way.

    Args:
        images: List of `CaptionedImage`.
        limit: Largest share of them that may be left out.

    Raises:
        DataError: If there are more, or no others.
    """

    def problem(image):
        try:
            read_image(image.path, draft=True)
        except ImageError as error:
            # The exception itself would keep the picture in memory.
            return str(error)
        return None

    with concurrent.futures.ThreadPoolExecutor() as pool:
        problems = list(pool.map(problem, images))
    broken = [problem for problem in problems if problem]
    if len(broken) > limit * len(images) or len(broken) == len(images):
        raise DataError(
            f"{len(broken)} of {len(images)} photographs cannot be read, and at most "
            f"{limit:.2%} may be left out, but not all. The first: {broken[0]}"
        )
    for reason in broken:
        print(f"captioner: warning: {reason}; it is left out", file=sys.stderr)
    return [
        image
        for image, problem in zip(images, problems, strict=True)
        if problem is None
    ]


def _find_photographs(roots, split, images):
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
        # Folders that the data set names may be missing on disk: try without them.
        parts = image.path.parts
        names = (Path(*parts[start:]) for start in range(len(parts)))
        names = (spelt for name in names for spelt in _spellings(name))
        paths = (base / name for name in names for base in bases)
        # Of a name that no file can have, `Path.is_file` may raise an error.
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
            f"{roots[0]}: {len(missing)} of {len(found) + len(missing)} photographs of "
            f"the split {split} are missing, the first is {missing[0]!r}"
        )
        if len(missing) > len(found):
            raise DataError(f"{report}; looked in {list_some(bases)}")
        print(f"captioner: warning: {report}; they are left out", file=sys.stderr)
    return found


def _spellings(name):
    """A name, and those that look the same: on a Mac, accents stand on their own."""
    forms = (unicodedata.normalize(form, str(name)) for form in ("NFC", "NFD"))
    return dict.fromkeys((name, *map(Path, forms)))
