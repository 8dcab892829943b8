"""Reads captioned photographs from the four layouts that such data comes in.

- Official Flickr8k and Flickr30k: `*.token.txt` or `*.token` with lines
  `name.jpg#0<TAB>caption`, and `*trainImages.txt`, `*devImages.txt` and
  `*testImages.txt` with one name per line.
- Kaggle: `captions.txt`, a CSV file with the header `image,caption`. Without split
  files as above, a hash of each name decides which split an image belongs to.
- Karpathy: `dataset*.json`, which holds the captions and the splits.
- COCO: `captions_*train*.json`, `captions_*val*.json`, `captions_*test*.json`.

The layout is recognised by these files; where several are there, Karpathy comes
first, then COCO, official, Kaggle. Photographs are looked for, but never opened.
"""

import codecs
import csv
import hashlib
import io
import json
import warnings
from dataclasses import dataclass
from pathlib import Path

from keras_attention_apps.common.cli import UserError

SPLITS = {name: name for name in ("train", "dev", "test")}
SPLITS |= {name: "dev" for name in ("val", "valid", "validation")}
TEXT_FOLDERS = ("Flickr8k_text", "annotations")
IMAGE_FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset")
IMAGE_FOLDERS += ("flickr30k-images", "flickr30k_images", "images", "Images")


class DataError(UserError):
    """A data set that cannot be read: what was wrong, expected, and what came."""


@dataclass(frozen=True)
class CaptionedImage:
    """A photograph on disk, its captions, and the number its data set gives it.

    Where the data set has no numbers, `image_id` is the file's name without suffix.
    """

    path: Path
    captions: tuple[str, ...]
    image_id: int | str


def read_dataset(directory, split, *, validation_share=0.1):
    """Returns the images of one split that have a caption and a photograph.

    Args:
        directory: Path of the data set. The folder of its photographs or of its
            texts will do as well, if the rest lies beside it.
        split: `"train"`, `"dev"` or `"test"`; `"val"`, `"valid"` and
            `"validation"` mean `"dev"`.
        validation_share: Share of the images that go to dev, and again to test,
            where the data comes without splits (Kaggle). At least 0, below 0.5.

    Returns:
        List of `CaptionedImage`, in the order of the split file or, where there is
        none, of the file with the captions. Images without caption are left out.
        So are missing photographs, with one warning that counts them.

    Raises:
        DataError: If no layout is recognised, a file is broken, the split is not in
            the data, or more than half of its photographs are missing.
    """
    if split not in SPLITS:
        raise _error("split", f"one of {_list(SPLITS)}", repr(split))
    if not 0 <= validation_share < 0.5:
        raise _error("validation_share", "0 or more, below 0.5", repr(validation_share))
    directory = Path(directory).expanduser().absolute()
    if not directory.is_dir():
        found = "a file" if directory.exists() else "nothing"
        raise _error(directory, "a directory", found)
    roots = [directory]
    if directory.name in IMAGE_FOLDERS + TEXT_FOLDERS:
        roots.append(directory.parent)
    for root in roots:
        for read in (_read_karpathy, _read_coco, _read_official, _read_kaggle):
            images = read(root, SPLITS[split], validation_share)
            if images is not None:
                return _find_photographs(roots, SPLITS[split], images)
    layouts = (
        "dataset*.json (Karpathy), captions_*train*.json (COCO), *.token.txt or "
        "*.token (official Flickr8k or Flickr30k) or captions.txt (Kaggle)"
    )
    raise _error(directory, layouts, _list_files(directory))


# A reader returns `None` where it does not recognise its layout, otherwise the images
# of the split with paths as the data set gives them and captions as they stand there.


def _read_karpathy(root, split, _):
    # The metadata that Kaggle's own client writes also fits the pattern.
    path = _find_file(root, "dataset*.json", without="-metadata.json")
    if path is None:
        return None
    splits = SPLITS | {"restval": "train"}
    images = []
    for index, image in enumerate(_get(_read_json(path), "images", list, path)):
        where = f"{path}: images[{index}]"
        name = Path(_get(image, "filename", str, where))
        its_split = _get(image, "split", str, where)
        sentences = _get(image, "sentences", list, where)
        if its_split not in splits:
            raise _error(where, f"split one of {_list(splits)}", repr(its_split))
        if splits[its_split] == split:
            captions = tuple(_get(entry, "raw", str, where) for entry in sentences)
            keys = [key for key in ("cocoid", "imgid") if key in image]
            image_id = _get(image, keys[0], int | str, where) if keys else name.stem
            folder = _get({"filepath": "", **image}, "filepath", str, where)
            images.append(CaptionedImage(folder / name, captions, image_id))
    if not images:
        raise _error(path, f"images of the split {split}", "none")
    return images


def _read_coco(root, split, _):
    patterns = {"train": "captions_*train*.json", "dev": "captions_*val*.json"}
    patterns["test"] = "captions_*test*.json"
    if not any(_find_file(root, pattern) for pattern in patterns.values()):
        return None
    path = _find_split_file(root, patterns[split], split)
    content = _read_json(path)
    captions = {}
    for index, annotation in enumerate(_get(content, "annotations", list, path)):
        where = f"{path}: annotations[{index}]"
        image_id = _get(annotation, "image_id", int | str, where)
        caption = _get(annotation, "caption", str, where)
        captions.setdefault(image_id, []).append(caption)
    folder = path.stem.removeprefix("captions_")
    images = []
    for index, image in enumerate(_get(content, "images", list, path)):
        where = f"{path}: images[{index}]"
        image_id = _get(image, "id", int | str, where)
        name = Path(folder, _get(image, "file_name", str, where))
        images.append(CaptionedImage(name, tuple(captions.get(image_id, ())), image_id))
    return images


def _read_official(root, split, _):
    # Flickr8k ships its captions a second time, as lemmas.
    path = _find_file(root, "*.token.txt", "*.token", without=".lemma.token.txt")
    if path is None:
        return None
    captions = {}
    for number, line in enumerate(_read_lines(path), 1):
        key, tab, caption = line.partition("\t")
        name, mark, _ = key.rpartition("#")
        if tab and mark:
            captions.setdefault(name, []).append(caption)
        elif line.strip():
            where = f"{path}, line {number}"
            raise _error(where, "name#number<TAB>caption", f"{line!r:.60}")
    return _select(captions, _read_split(root, split))


def _read_kaggle(root, split, validation_share):
    path = _find_file(root, "captions.txt")
    if path is None:
        return None
    captions = {}
    for line, row in _read_rows(path):
        where, found = f"{path}, line {line}", f"{','.join(row)!r:.60}"
        if line == 1 and [cell.strip().lower() for cell in row] != ["image", "caption"]:
            raise _error(where, "the header image,caption", found)
        # A quote that is never closed swallows the lines after it.
        if len(row) == 1 or any("\n" in cell for cell in row):
            raise _error(where, "image,caption on one line", found)
        if line > 1 and row:
            captions.setdefault(row[0].strip(), []).append(",".join(row[1:]))
    if any(_find_file(root, f"*{name}Images.txt") for name in set(SPLITS.values())):
        return _select(captions, _read_split(root, split))
    drawn = [name for name in captions if _draw_split(name, validation_share) == split]
    return _select(captions, drawn)


def _select(captions, names):
    return [
        CaptionedImage(Path(name), tuple(captions.get(name, ())), Path(name).stem)
        for name in names
    ]


def _draw_split(name, validation_share):
    # The name alone decides, so that adding images never moves the others; dev and
    # test lie at opposite ends, so that another share never trades between them.
    draw = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6]) / 2**48
    if draw < validation_share:
        return "dev"
    return "test" if draw >= 1 - validation_share else "train"


def _find_photographs(roots, split, images):
    bases = [*roots]
    for root in roots:
        for outer in IMAGE_FOLDERS:
            bases += [root / outer, *(root / outer / inner for inner in IMAGE_FOLDERS)]
    bases = [base for base in bases if base.is_dir()]
    found, missing = [], []
    for image in images:
        captions = tuple(text.strip() for text in image.captions if text.strip())
        # Folders that the data set names may be missing on disk: try without them.
        parts = image.path.parts
        names = (Path(*parts[start:]) for start in range(len(parts)))
        paths = (base / name for name in names for base in bases)
        path = next((path for path in paths if path.is_file()), None)
        if captions and path:
            found.append(CaptionedImage(path, captions, image.image_id))
        elif captions:
            missing.append(image.path.name)
    if not found and not missing:
        raise _error(roots[0], f"captions for the split {split}", "none")
    if missing:
        report = (
            f"{roots[0]}: {len(missing)} of {len(found) + len(missing)} photographs of "
            f"the split {split} are missing, the first is {missing[0]!r}"
        )
        if len(missing) > len(found):
            raise DataError(f"{report}; looked in {_list(bases)}")
        warnings.warn(f"{report}; they are left out", stacklevel=3)
    return found


def _find_file(root, *patterns, without=()):
    for folder in (root, *(root / name for name in TEXT_FOLDERS)):
        paths = [path for pattern in patterns for path in folder.glob(pattern)]
        # Archives made on a Mac bring a hidden `._name` beside every file.
        paths = [path for path in paths if path.is_file() and path.name[0] != "."]
        paths = [path for path in paths if not path.name.endswith(without)]
        if len(paths) > 1:
            names = _list(path.name for path in paths)
            raise _error(folder, f"one file {' or '.join(patterns)}", names)
        if paths:
            return paths[0]
    return None


def _find_split_file(root, pattern, split):
    path = _find_file(root, pattern)
    if path is None:
        expected = f"a file {pattern} for the split {split}"
        raise _error(root, expected, _list_files(root))
    return path


def _read_split(root, split):
    lines = _read_lines(_find_split_file(root, f"*{split}Images.txt", split))
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def _read_text(path):
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"the byte 0x{data[error.start]:02x}"
        raise _error(f"{path}, line {line}", "UTF-8", byte) from None


def _read_lines(path):
    # Unlike `str.splitlines`, this leaves a caption's U+2028 and form feeds alone.
    return io.StringIO(_read_text(path), newline=None)


def _read_rows(path):
    rows = csv.reader(io.StringIO(_read_text(path), newline=""))
    line = 0  # Rows count as lines because a row of several lines is refused.
    try:
        for line, row in enumerate(rows, 1):
            yield line, row
    except csv.Error as error:
        where = f"{path}, line {line + 1}"
        raise _error(where, "CSV", f"a mistake ({error})") from None


def _read_json(path):
    try:
        return json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise _error(path, "JSON", f"a mistake ({error})") from None


def _get(entry, key, kind, where):
    if not isinstance(entry, dict):
        raise _error(where, f"an object with the key {key!r}", f"{entry!r:.60}")
    if key not in entry:
        raise _error(where, f"the key {key!r}", f"only {_list(entry)}")
    if not isinstance(entry[key], kind):
        name = getattr(kind, "__name__", kind)
        raise _error(where, f"{name} as {key!r}", f"{entry[key]!r:.60}")
    return entry[key]


def _error(where, expected, found):
    return DataError(f"{where}: expected {expected}, but found {found}")


def _list_files(directory):
    return _list(path.name for path in directory.iterdir())


def _list(names, limit=6):
    names = sorted(map(str, names))
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) + more) or "nothing"
