"""Readers of data sets of captioned images, one for each layout.

- Official Flickr8k and Flickr30k: `*.token.txt` or `*.token` with lines
  `name.jpg#0<TAB>caption`, and `*trainImages.txt`, `*devImages.txt` and
  `*testImages.txt` with one name per line.
- Kaggle: `captions.txt`, a CSV file with the header `image,caption`, with or without
  split files as above.
- Karpathy: `dataset*.json`, which holds the captions and the splits.
- COCO: `captions_*train*.json`, `captions_*val*.json`, `captions_*test*.json`.
- Hugging Face: `metadata.csv` or `metadata.jsonl`, with `file_name`, one of the keys
  `caption`, `captions` and `text`, and optionally `split`; in the folder, or one in
  each of its folders `train`, `validation` and `test`. JSON may also have `boxes`: for
  words of the captions, lists of `[left, top, right, bottom]` in shares of width and
  height.
- WebDataset: `*.tar`, in which an image and its captions share a name: `0001.jpg` with
  `0001.txt`, one caption per line, or `0001.json`, with the same keys as above. The
  name of an archive, such as `train-000.tar` or `val-000.tar`, begins with the split.

COCO, Kaggle, Hugging Face and WebDataset may lack dev, or have no splits: then a hash
of each name decides on the split of an image. The layout is recognised by these files.
If there are several, the order is Karpathy, COCO, official, Kaggle, Hugging Face,
WebDataset.
"""

import collections
import csv
import hashlib
import io
import json
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from keras_attention_apps.captioner.data.archives import ArchivedFile, archived_samples
from keras_attention_apps.captioner.data.boxes import check_boxes
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.encodings import as_utf8

SPLITS = {name: name for name in ("train", "dev", "test")}
SPLITS |= {name: "dev" for name in ("val", "valid", "validation")}
TEXT_FOLDERS = ("Flickr8k_text", "annotations")
IMAGE_FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset")
IMAGE_FOLDERS += ("flickr30k-images", "flickr30k_images", "images", "Images")
CAPTION_NAMES = ("caption", "captions", "text")
# Files that the clients of Kaggle and Hugging Face add to a data set.
NO_CAPTIONS = ("dataset-metadata.json", "dataset_info.json", "dataset_infos.json")
NO_CAPTIONS += ("dataset_dict.json",)
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


class DataError(UserError):
    """A data set that cannot be read."""


@dataclass(frozen=True)
class CaptionedImage:
    """An image on disk, its captions, and its number in the data set.

    In a data set without numbers, `image_id` is the file's name without suffix, or its
    path within the data set if several files have that name. `boxes` is a dict from
    words of the captions to the boxes of the objects that they name.
    """

    path: Path | ArchivedFile
    captions: tuple[str, ...]
    image_id: int | str
    boxes: dict = field(default_factory=dict)


# A reader returns `None` if it does not recognise its layout, otherwise the images of
# the split, with the paths and captions of the data set.


def _read_karpathy(root, split, _):
    path = _find_file(root, "dataset*.json", without=NO_CAPTIONS)
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
            raise unexpected(
                where, f"split one of {list_some(splits)}", repr(its_split)
            )
        if splits[its_split] == split:
            captions = tuple(_get(entry, "raw", str, where) for entry in sentences)
            keys = [key for key in ("cocoid", "imgid") if key in image]
            image_id = _get(image, keys[0], int | str, where) if keys else name.stem
            folder = _get({"filepath": "", **image}, "filepath", str, where)
            images.append(CaptionedImage(folder / name, captions, image_id))
    if not images:
        raise unexpected(path, f"images of the split {split}", "none")
    return images


def _read_coco(root, split, validation_share):
    patterns = {"train": "captions_*train*.json", "dev": "captions_*val*.json"}
    patterns["test"] = "captions_*test*.json"
    files = {name: _find_file(root, pattern) for name, pattern in patterns.items()}
    if not any(files.values()):
        return None
    if split in ("train", "dev") and files["train"] and not files["dev"]:
        images = _read_coco_file(files["train"])
        names = {image.path.name: () for image in images}
        kept = _of_split(files["train"], {"train": names}, split, validation_share)
        kept = {image.path.name for image in kept}
        return [image for image in images if image.path.name in kept]
    return _read_coco_file(_find_split_file(root, patterns[split], split))


def _read_coco_file(path):
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
    # Flickr8k has a second file of the captions, as lemmas.
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
            raise unexpected(where, "name#number<TAB>caption", f"{line!r:.60}")
    return _select(captions, _read_split(root, split))


def _read_kaggle(root, split, validation_share):
    path = _find_file(root, "captions.txt")
    if path is None:
        return None
    captions = {}
    for line, row in _read_rows(path):
        where, found = f"{path}, line {line}", f"{','.join(row)!r:.60}"
        if line == 1 and [cell.strip().lower() for cell in row] != ["image", "caption"]:
            raise unexpected(where, "the header image,caption", found)
        # After an unclosed quote, the following lines belong to the same cell.
        if len(row) == 1 or any("\n" in cell for cell in row):
            raise unexpected(where, "image,caption on one line", found)
        if line > 1 and row:
            captions.setdefault(row[0].strip(), []).append(",".join(row[1:]))
    if any(_find_file(root, f"*{name}Images.txt") for name in set(SPLITS.values())):
        return _select(captions, _read_split(root, split))
    return _of_split(path, {None: captions}, split, validation_share)


def _read_metadata(root, split, validation_share):
    named, boxes, last = {}, {}, None
    # One file for all splits, or one in the folder of each split.
    folders = [(root, None)]
    folders += [(root / name, its_split) for name, its_split in SPLITS.items()]
    for folder, its_split in folders:
        path = _find_file(folder, "metadata.jsonl", "metadata.csv")
        if path is None or path.parent != folder:
            continue
        last = path
        rows = _read_json_lines if path.suffix == ".jsonl" else _read_table
        for where, entry in rows(path):
            name = folder.relative_to(root) / _get(entry, "file_name", str, where)
            chosen = entry.get("split") or its_split
            if chosen not in (None, *SPLITS):
                raise unexpected(where, f"split one of {list_some(SPLITS)}", chosen)
            captions = named.setdefault(SPLITS.get(chosen), {})
            captions.setdefault(str(name), []).extend(_captions_of(entry, where))
            boxes.setdefault(name, {}).update(_boxes_of(entry, where))
    if last is None:
        return None
    images = _of_split(last, named, split, validation_share)
    return [replace(image, boxes=boxes[image.path]) for image in images]


def _read_webdataset(root, split, validation_share):
    shards = sorted(path for path in root.glob("*.tar") if path.name[0] != ".")
    if not shards:
        return None
    named, boxes = {}, {}
    for shard in shards:
        its_split = re.match("[a-z]*", shard.name.lower()).group()
        named_captions = named.setdefault(SPLITS.get(its_split), {})
        for key, files in archived_samples(shard):
            images = [file for file in files if file.suffix in IMAGE_SUFFIXES]
            if len(images) != 1:
                found = list_some(file.name for file in files)
                raise unexpected(f"{shard}: {key}", "one image", found)
            captions = named_captions.setdefault(images[0], [])
            for file in files:
                if file.suffix == ".txt":
                    captions += _read_lines(file)
            for file in files:
                if file.suffix == ".json":
                    entry = _read_json(file)
                    if not isinstance(entry, dict):
                        raise unexpected(file, "an object", f"{entry!r:.60}")
                    # img2dataset writes the captions to both files.
                    captions += () if captions else _captions_of(entry, file)
                    boxes[images[0]] = _boxes_of(entry, file)
    images = _of_split(root, named, split, validation_share)
    return [replace(image, boxes=boxes.get(image.path, {})) for image in images]


def _captions_of(entry, where):
    """Return the captions of a JSON object: a text or a list of texts."""
    names = [name for name in CAPTION_NAMES if name in entry]
    if not names:
        expected = f"one of the keys {list_some(CAPTION_NAMES)}"
        raise unexpected(where, expected, f"only {list_some(entry)}")
    found = entry[names[0]]
    captions = [found] if isinstance(found, str) else found
    if not isinstance(captions, list) or not all(isinstance(x, str) for x in captions):
        expected = f"a text or a list of texts as {names[0]!r}"
        raise unexpected(where, expected, f"{found!r:.60}")
    return captions


def _boxes_of(entry, where):
    """Return the boxes of a JSON object; a row of a CSV file has none."""
    boxes = entry.get("boxes") or {}
    if isinstance(boxes, str):
        return {}
    try:
        return check_boxes(boxes)
    except (AttributeError, TypeError, ValueError) as error:
        raise unexpected(where, "boxes by words", f"{boxes!r:.60} ({error})") from None


def _of_split(where, named, split, validation_share):
    """Return the images of a split, which is drawn by name if the data has none.

    Args:
        where: Name of the data set in errors.
        named: Dict from a split, or `None`, to the dict from names to captions.
        split: The split.
        validation_share: Share of the images that are drawn for dev, and for test.
    """
    counts = collections.Counter(name for names in named.values() for name in names)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise unexpected(where, "one split for every image", f"two of {twice[0]}")
    if set(named) == {None}:
        chosen, drawn = named[None], (split,)
    elif None in named:
        without = next(iter(named[None]))
        raise unexpected(where, "a split for every image", f"none of {without}")
    elif split in ("train", "dev") and "dev" not in named:
        chosen = named.get("train", {})
        drawn = ("dev",) if split == "dev" else ("train", "test")
    elif split in named:
        chosen, drawn = named[split], None
    else:
        found = f"only {list_some(named)}"
        raise unexpected(where, f"images of the split {split}", found)
    if drawn:
        splits = _draw_splits(chosen, validation_share)
        if split == "dev" and len(splits) < 2:
            expected = "at least two images, of which one is for validation"
            raise unexpected(where, expected, len(splits))
        chosen = {name: x for name, x in chosen.items() if splits[name] in drawn}
    return _select(chosen, chosen)


def _select(captions, names):
    paths = {x: x if isinstance(x, ArchivedFile) else Path(x) for x in names}
    stems = collections.Counter(path.stem for path in paths.values())
    return [
        CaptionedImage(
            path,
            tuple(captions.get(name, ())),
            path.stem if stems[path.stem] == 1 else _whole_name(name),
        )
        for name, path in paths.items()
    ]


def _whole_name(name):
    """Return the path of an image within its data set."""
    if isinstance(name, ArchivedFile):
        name = f"{name.archive.name}/{name.inside}"
    return Path(name).as_posix()


def _draw_splits(names, validation_share):
    """Return a dict from names to splits, drawn by a hash of the name.

    The hash depends on the name alone, so that adding images never moves the others.
    Dev has the smallest hashes and test the largest, so that another share never moves
    an image between them. If no image is drawn for dev, the first one is; if none is
    left for train, those of test are train.
    """
    draws = {name: _draw(name) for name in names}
    first = min(draws.values(), default=0)
    limit = validation_share
    if validation_share and len(draws) > 1:
        limit = max(limit, math.nextafter(first, 1))
    splits = {
        name: "dev"
        if draw < limit
        else ("test" if draw >= 1 - validation_share else "train")
        for name, draw in draws.items()
    }
    if "train" not in splits.values():
        return {name: split.replace("test", "train") for name, split in splits.items()}
    return splits


def _draw(name):
    """Return the hash of a name as a number from 0 to 1."""
    name = _whole_name(name).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(name).digest()[:6]) / 2**48


# In the order in which they are tried.
LAYOUTS = (
    _read_karpathy,
    _read_coco,
    _read_official,
    _read_kaggle,
    _read_metadata,
    _read_webdataset,
)


def _find_file(root, *patterns, without=()):
    for folder in (root, *(root / name for name in TEXT_FOLDERS)):
        paths = [path for pattern in patterns for path in folder.glob(pattern)]
        # Archives made on macOS have a hidden `._name` for every file.
        paths = [path for path in paths if path.is_file() and path.name[0] != "."]
        paths = [path for path in paths if not path.name.endswith(without)]
        if len(paths) > 1:
            names = list_some(path.name for path in paths)
            raise unexpected(folder, f"one file {' or '.join(patterns)}", names)
        if paths:
            return paths[0]
    return None


def _find_split_file(root, pattern, split):
    path = _find_file(root, pattern)
    if path is None:
        expected = f"a file {pattern} for the split {split}"
        raise unexpected(root, expected, list_files(root))
    return path


def _read_split(root, split):
    lines = _read_lines(_find_split_file(root, f"*{split}Images.txt", split))
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def _text_of(path):
    data = as_utf8(path.read_bytes(), path)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"the byte 0x{data[error.start]:02x}"
        raise unexpected(f"{path}, line {line}", "UTF-8", byte) from None


def _read_lines(path):
    # Unlike `str.splitlines`, this leaves a caption's U+2028 and form feeds alone.
    return io.StringIO(_text_of(path), newline=None)


def _read_rows(path):
    """Yield the first line number and the cells of every row of a CSV file."""
    rows, line = csv.reader(io.StringIO(_text_of(path), newline="")), 1
    try:
        for row in rows:
            yield line, row
            line = rows.line_num + 1
    except csv.Error as error:
        where = f"{path}, line {line}"
        raise unexpected(where, "CSV", f"a mistake ({error})") from None


def _read_json(path):
    try:
        return json.loads(_text_of(path))
    except json.JSONDecodeError as error:
        raise unexpected(path, "JSON", f"a mistake ({error})") from None


def _read_json_lines(path):
    """Yield the position, for errors, and the object of every line of a JSONL file."""
    for number, line in enumerate(_read_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            yield where, json.loads(line)
        except json.JSONDecodeError as error:
            raise unexpected(where, "JSON", f"a mistake ({error})") from None


def _read_table(path):
    """Yield the position, for errors, and every row of a CSV file with a header."""
    header = None
    for line, row in _read_rows(path):
        where = f"{path}, line {line}"
        if header is None:
            header = [cell.strip() for cell in row]
        elif row and len(row) != len(header):
            raise unexpected(where, f"{len(header)} cells", f"{len(row)}: {row!r:.60}")
        elif row:
            yield where, dict(zip(header, row, strict=True))


def _get(entry, key, kind, where):
    if not isinstance(entry, dict):
        raise unexpected(where, f"an object with the key {key!r}", f"{entry!r:.60}")
    if key not in entry:
        raise unexpected(where, f"the key {key!r}", f"only {list_some(entry)}")
    if not isinstance(entry[key], kind):
        name = getattr(kind, "__name__", kind)
        raise unexpected(where, f"{name} as {key!r}", f"{entry[key]!r:.60}")
    return entry[key]


def unexpected(where, expected, found):
    return DataError(f"{where}: expected {expected}, but found {found}")


def list_files(directory):
    return list_some(path.name for path in directory.iterdir())


def list_some(names, limit=6):
    names = sorted(map(str, names))
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) + more) or "nothing"
