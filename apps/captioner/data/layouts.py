"""The layouts of data sets, one reader each; docs/captioner.md describes them.

COCO, Hugging Face and WebDataset may lack dev; all layouts but Karpathy's and COCO's
may have no splits. Then a hash of its name decides the split of an image.

All readers follow the same rules. An image in two splits is an error. So is an
ambiguous file, such as one with two columns of the same name, two images with the same
id, or an id that is text in one place and a number in another. Captions and images that
are left out are counted in a warning.
"""

import collections
import hashlib
import math
import re
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from keras_attention_apps.captioner.data.boxes import check_boxes
from keras_attention_apps.captioner.data.files import (
    NO_CAPTIONS,
    ArchivedFile,
    archived_samples,
    find_file,
    find_split_files,
    get,
    list_files,
    list_some,
    read_json,
    read_json_lines,
    read_lines,
    read_rows,
    read_table,
    unexpected,
)
from keras_attention_apps.captioner.images import image_suffixes

SPLITS = {name: name for name in ("train", "dev", "test")}
SPLITS |= {name: "dev" for name in ("val", "valid", "validation")}


@dataclass
class CaptionedImage:
    """An image on disk, its captions, and its id in the data set.

    In a data set without ids, `image_id` is the file's name without suffix, or its
    path within the data set if several files have that name. `boxes` is a dict from
    words of the captions to the boxes of the objects that they name. `teacher_captions`
    are captions of other models, for training.
    """

    path: Path | ArchivedFile
    captions: tuple[str, ...]
    image_id: int | str | None
    boxes: dict = field(default_factory=dict)
    teacher_captions: tuple[str, ...] = ()
    split: str | None = field(default=None, compare=False)


class Listing:
    """The images that the files of a data set list, each in one split or in none.

    Args:
        where: Path of the data set, or of its file, for errors.
        lacking: For a layout with a file for each split: dict from the splits without a
            file to the expected file.
        draws_dev: Whether dev is drawn from train where it is missing.
        drawn_by: Function from a path to the text whose hash decides its split.

    Attributes:
        dropped: Dict from pairs `(split or None, kind)` to the examples of this kind
            that were left out.
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
        """Add an image, or further captions of one."""
        if not isinstance(path, ArchivedFile):
            # Paths of Windows, also on other systems.
            path = Path(str(path).replace("\\", "/"))
        name = _whole_name(path)
        new = CaptionedImage(path, (), image_id, split=split)
        image = self._images.setdefault(name, new)
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
        image.captions += tuple(captions)
        for word, found in (boxes or {}).items():
            image.boxes[word] = (*dict.fromkeys((*image.boxes.get(word, ()), *found)),)

    def drop(self, kind, example, split=None):
        """Record an example that is left out, and its kind, a plural noun."""
        self.dropped.setdefault((split, kind), []).append(example)

    def select(self, split, validation_share):
        """Return the images of a split, and a dict from the others to their paths."""
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
        return _with_ids(parts[split]), others

    def _drawn_splits(self, images, validation_share, split, test="test"):
        """Return a dict from splits to the images that are drawn for them."""
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


def _with_ids(images):
    """Give an id to the images of a data set without ids."""
    stems = collections.Counter(image.path.stem for image in images)
    for image in images:
        if image.image_id is None:
            stem = image.path.stem
            image.image_id = stem if stems[stem] == 1 else _whole_name(image.path)
    return images


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
    splits = {}
    for name, number in hashes.items():
        is_test = number >= 1 - validation_share
        splits[name] = "dev" if number < limit else "test" if is_test else "train"
    if "train" not in splits.values():
        return {name: split.replace("test", "train") for name, split in splits.items()}
    return splits


def _hash_of(name):
    """Return the hash of a name as a number from 0 to 1."""
    name = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(name).digest()[:6]) / 2**48


KARPATHY_SPLITS = SPLITS | {"restval": "train"}


def read_karpathy(root):
    path = find_file(root, "dataset*.json", without=NO_CAPTIONS)
    if path is None:
        return None
    listing = Listing(path, draws_dev=False)
    for index, image in enumerate(get(read_json(path), "images", list, path)):
        where = f"{path}: images[{index}]"
        name = Path(get(image, "filename", str, where))
        split = get(image, "split", str, where)
        sentences = get(image, "sentences", list, where)
        if split not in KARPATHY_SPLITS:
            expected = f"split one of {list_some(KARPATHY_SPLITS)}"
            raise unexpected(where, expected, repr(split))
        keys = [key for key in ("cocoid", "imgid") if key in image]
        listing.add(
            get({"filepath": "", **image}, "filepath", str, where) / name,
            [get(sentence, "raw", str | None, where) or "" for sentence in sentences],
            KARPATHY_SPLITS[split],
            where=where,
            image_id=get(image, keys[0], int | str, where) if keys else None,
        )
    return listing


COCO_SPLITS = {"train": "train", "dev": "val", "test": "test"}


def read_coco(root):
    files, lacking = find_split_files(root, "captions_*{}*.json", COCO_SPLITS)
    if not files:
        return None
    listing = Listing(root, lacking=lacking, drawn_by=attrgetter("name"))
    for split, path in files.items():
        _read_file(path, split, listing)
    return listing


def _read_file(path, split, listing):
    content, captions = read_json(path), {}
    for index, annotation in enumerate(get(content, "annotations", list, path)):
        where = f"{path}: annotations[{index}]"
        image_id = get(annotation, "image_id", int | str, where)
        caption = get(annotation, "caption", str | None, where) or ""
        captions.setdefault(image_id, []).append(caption)
    folder = path.stem.removeprefix("captions_")
    ids = set()
    for index, image in enumerate(get(content, "images", list, path)):
        where = f"{path}: images[{index}]"
        image_id = get(image, "id", int | str, where)
        name = Path(folder, get(image, "file_name", str, where))
        found = captions.pop(image_id, ())
        listing.add(name, found, split, where=where, image_id=image_id)
        ids.add(str(image_id))
    for image_id, found in captions.items():
        if str(image_id) in ids:
            expected = "image_id and id both texts, or both numbers"
            raise unexpected(path, expected, f"{image_id!r} as image_id only")
        for caption in found:
            listing.drop("captions of images that are not listed", caption, split)


def read_flickr(root):
    # Flickr8k has a second file of the captions, as lemmas.
    path = find_file(root, "*.token.txt", "*.token", without=".lemma.token.txt")
    if path is None:
        return None
    captions = {}
    for number, line in enumerate(read_lines(path), 1):
        key, tab, caption = line.partition("\t")
        name, mark, _ = key.rpartition("#")
        if tab and mark:
            captions.setdefault(name, []).append(caption)
        elif line.strip():
            where = f"{path}, line {number}"
            raise unexpected(where, "name#number<TAB>caption", f"{line!r:.60}")
    return listing_of(root, path, captions)


def listing_of(root, path, captions):
    """Return the `Listing` of a data set.

    Split files decide the splits; without them, a hash of the file name does.
    """
    names = {split: split for split in SPLITS.values()}
    files, lacking = find_split_files(root, "*{}Images.txt", names)
    if not files:
        listing = Listing(path)
        for name, found in captions.items():
            listing.add(Path(name), found, where=path)
        return listing
    listing = Listing(root, lacking=lacking, draws_dev=False)
    unsplit = dict(captions)
    for split, path in files.items():
        lines = (line.strip() for line in read_lines(path))
        for name in dict.fromkeys(filter(None, lines)):
            unsplit.pop(name, None)
            listing.add(Path(name), captions.get(name, ()), split, where=path)
    for name in unsplit:
        listing.drop("images in no split", name)
    return listing


# The headers of Flickr8k and of Flickr30k, which has either separator.
FLICKR8K = ["image", "caption"]
FLICKR30K = ["image_name", "comment_number", "comment"]
# A line of Flickr30k. One line of the data set lacks the second separator.
_LINE = re.compile(r"([^|]+)\|\s*\d+\s*\|?(.*)", re.DOTALL)


def read_kaggle(root):
    path = find_file(root, "captions.txt") or find_file(root, "results.csv")
    if path is None:
        return None
    header = next(iter(read_lines(path)), "")
    cells = [cell.strip(' "\n').lower() for cell in re.split("[,|]", header)]
    if cells not in (FLICKR8K, FLICKR30K):
        if path.name == "results.csv":
            return None
        expected = "the header image,caption or image_name|comment_number|comment"
        raise unexpected(f"{path}, line 1", expected, f"{header.rstrip()!r:.60}")
    captions = {}
    read = _lines_of_flickr30k if "|" in header else _rows
    for name, caption in read(path, cells):
        captions.setdefault(name.strip(), []).append(caption)
    return listing_of(root, path, captions)


def _rows(path, header):
    """Yield the names and captions of CSV; captions may have commas without quotes."""
    for line, row in read_rows(path):
        # After an unclosed quote, the following lines belong to the same cell.
        if 0 < len(row) < len(header) or any("\n" in cell for cell in row):
            expected = f"{','.join(header)} on one line"
            found = f"{','.join(row)!r:.60}"
            raise unexpected(f"{path}, line {line}", expected, found)
        if line > 1 and row:
            yield row[0], ",".join(row[len(header) - 1 :])


def _lines_of_flickr30k(path, _):
    """Yield the names and captions of lines with `|`, in which quotes mean nothing."""
    for number, line in enumerate(read_lines(path), 1):
        cells = _LINE.fullmatch(line)
        if cells and number > 1:
            yield cells[1], cells[2].strip()
        elif line.strip() and number > 1:
            where = f"{path}, line {number}"
            raise unexpected(where, "|".join(FLICKR30K), f"{line!r:.60}")


FILE_NAMES = ("file_name", "filename", "file", "image")
CAPTION_NAMES = ("caption", "captions", "text")


def read_metadata(root):
    # There is one file for all splits, or one in the folder of each split.
    folders = {root: None} | {root / name: split for name, split in SPLITS.items()}
    paths = {x: find_file(x, "metadata.jsonl", "metadata.csv") for x in folders}
    paths = {x: path for x, path in paths.items() if path and path.parent == x}
    if not paths:
        return None
    listing = Listing([*paths.values()][-1])
    for folder, path in paths.items():
        rows = read_json_lines if path.suffix == ".jsonl" else read_table
        for where, entry in rows(path):
            keys = (key for key in FILE_NAMES if key in entry)
            file_name = get(entry, next(keys, FILE_NAMES[0]), str, where)
            name = folder.relative_to(root) / file_name
            split = _split_of(entry, folders[folder], where)
            captions = captions_of(entry, where, listing, split)
            listing.add(
                name, captions, split, where=where, boxes=boxes_of(entry, where)
            )
    return listing


def _split_of(entry, folder_split, where):
    """Return the split that an entry names, or else that of its folder."""
    named = entry.get("split")
    if not named:
        return folder_split
    if named not in [*SPLITS]:
        raise unexpected(where, f"split one of {list_some(SPLITS)}", f"{named!r:.60}")
    if folder_split not in (None, SPLITS[named]):
        expected = f"the split of the folder, {folder_split}"
        raise unexpected(where, expected, named)
    return SPLITS[named]


def captions_of(entry, where, listing, split):
    """Return the captions of a JSON object or a row: a string or a list of strings.

    A missing one, `null`, is an empty one. Of several keys, the first of
    `CAPTION_NAMES` is used. Different values of the others are recorded as dropped.
    """
    names = [name for name in CAPTION_NAMES if name in entry]
    if not names:
        expected = f"one of the keys {list_some(CAPTION_NAMES)}"
        raise unexpected(where, expected, f"only {list_some(entry)}")
    found = entry[names[0]]
    captions = found if isinstance(found, list) else [found]
    captions = ["" if text is None else text for text in captions]
    if not all(isinstance(text, str) for text in captions):
        expected = f"a string or a list of strings as {names[0]!r}"
        raise unexpected(where, expected, f"{found!r:.60}")
    for name in names[1:]:
        if entry[name] and entry[name] not in (found, captions):
            listing.drop(f"values of {name!r} beside {names[0]!r}", entry[name], split)
    return captions


def boxes_of(entry, where):
    """Return the boxes of a JSON object; a row of a CSV file has none."""
    boxes = entry.get("boxes") or {}
    if isinstance(boxes, str):
        return {}
    try:
        return check_boxes(boxes)
    except (AttributeError, TypeError, ValueError) as error:
        raise unexpected(where, "boxes by words", f"{boxes!r:.60} ({error})") from None


# The image of a sample has one of these suffixes if other images, such as masks, are
# beside it.
COMMON_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def read_webdataset(root):
    shards = sorted(path for path in root.glob("*.tar") if path.name[0] != ".")
    if not shards:
        return None
    listing = Listing(root)
    for shard in shards:
        split = SPLITS.get(re.match("[a-z]*", shard.name.lower()).group())
        for key, files in archived_samples(shard):
            _read_sample(f"{shard}: {key}", files, split, listing)
    return listing


def _read_sample(where, files, split, listing):
    """Add an image with the captions that share its name."""
    images = [file for file in files if file.suffix in image_suffixes()]
    if len(images) > 1:
        images = [file for file in images if file.suffix in COMMON_SUFFIXES]
    if len(images) != 1:
        found = list_some(file.name for file in files)
        raise unexpected(where, "one image", found)
    texts = [file for file in files if file.suffix == ".txt"]
    captions = [line.strip("\n") for file in texts for line in read_lines(file)]
    boxes = {}
    for file in files:
        if file.suffix == ".json":
            entry = read_json(file)
            if not isinstance(entry, dict):
                raise unexpected(file, "an object", f"{entry!r:.60}")
            boxes |= boxes_of(entry, file)
            if captions and not any(name in entry for name in CAPTION_NAMES):
                continue
            found = captions_of(entry, file, listing, split)
            captions = captions or found
            # img2dataset writes the captions to both files.
            for text in set(found) - set(captions):
                listing.drop("captions in JSON that another file lacks", text, split)
    listing.add(images[0], captions, split, where=where, boxes=boxes)


# In the order in which they are tried. A reader returns the `Listing` of a data set, or
# `None` if it does not recognise its layout.
LAYOUTS = (read_karpathy, read_coco, read_flickr, read_kaggle, read_metadata)
LAYOUTS += (read_webdataset,)
