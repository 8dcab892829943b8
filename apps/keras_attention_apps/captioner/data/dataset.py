"""Read captioned images from any of the supported layouts of data sets.

docs/captioner.md describes the layouts, which have one reader each. COCO, Hugging Face
and WebDataset may lack dev; all layouts but Karpathy's and COCO's may have no splits.
Then a hash of its name decides the split of an image.

An image in two splits is an error; so are two images with the same id. Captions and
images that are left out are counted in a warning.
"""

import collections
import concurrent.futures
import contextlib
import csv
import dataclasses
import hashlib
import io
import itertools
import math
import os
import re
import sys
import tarfile
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from keras_attention_apps.captioner.images import ImageError, image_suffixes, read_image
from keras_attention_apps.captioner.vocabulary import tokenize
from keras_attention_apps.common.errors import UserError, printable
from keras_attention_apps.common.files import (
    ArchiveMember,
    as_utf8,
    check_bytes,
    check_local,
    opened,
    parse_json,
    read_file,
)
from keras_attention_apps.common.options import described

SPLITS = {name: name for name in ("train", "dev", "test")}
SPLITS |= {name: "dev" for name in ("val", "valid", "validation")}
# For data without splits, share of the images in dev, and in test; for data without
# dev, share of train that becomes dev.
VALIDATION_SHARE = 0.1
TEXT_FOLDERS = ("Flickr8k_text", "annotations")
IMAGE_FOLDERS: tuple[str, ...] = ("Flicker8k_Dataset", "Flickr8k_Dataset")
IMAGE_FOLDERS += ("flickr30k-images", "flickr30k_images", "images", "Images")
# Marks of the beginning and the end of captions, and entities of HTML: parts of other
# programs that are not words.
_MARKS = re.compile(
    r"</?(?:start|end|pad|unk|bos|eos|s)>|\b(?:startseq|endseq)\b|&(?:[a-z]+|#\d+);"
)
# Files that the clients of Kaggle and Hugging Face add to a data set.
NO_CAPTIONS = tuple(
    f"dataset{name}.json" for name in ("-metadata", "_info", "_infos", "_dict")
)


def read_dataset(directory, split):
    """Return the `CaptionedImage`s of one of the `SPLITS`, in the order of its files.

    The directory may also be the folder of images or texts of a data set, if the other
    folder is next to it. Captions without a word, images without captions and missing
    files are left out, and counted in warnings.
    """
    if split not in SPLITS:
        raise unexpected("split", f"one of {list_some(SPLITS)}", repr(split))
    directory = check_directory(directory)
    roots = [directory]
    if directory.name in IMAGE_FOLDERS + TEXT_FOLDERS:
        roots.append(directory.parent)
    for root in roots:
        for read in LAYOUTS:
            listing = read(root)
            if listing is not None:
                return _images_on_disk(roots, listing, SPLITS[split])
    layouts = (
        "dataset*.json (Karpathy), captions_*train*.json (COCO), *.token.txt or "
        "*.token (official Flickr8k or Flickr30k), captions.txt or results.csv "
        "(Kaggle), metadata.csv or metadata.jsonl (Hugging Face), or *.tar (WebDataset)"
    )
    names = list_some(path.name for path in directory.iterdir())
    raise unexpected(directory, layouts, names)


def check_directory(directory):
    """Return the absolute path of a data set; `UserError` if there is none."""
    check_local(directory)
    directory = Path(directory).expanduser().absolute()
    if not directory.is_dir():
        actual = "a file" if directory.exists() else "nothing"
        raise unexpected(directory, "a directory", actual)
    return directory


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
        raise UserError(
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


def _images_on_disk(roots, listing, split):
    """Return the images of a split with captions, and the paths of their files."""
    folders = _Folders(roots)
    images, others = listing.select(split)
    on_disk, missing = [], []
    texts = itertools.chain.from_iterable(image.captions for image in images)
    marked = [(match[0], text) for text in texts if (match := _MARKS.search(text))]
    if marked:
        _warn(
            f"{listing.where}: {len(marked)} captions of the split {split} contain "
            f"marks of another program, which are read as words. The first: "
            f"{marked[0][0]!r} in {marked[0][1]!r:.60}"
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
            on_disk.append(dataclasses.replace(image, path=path, captions=captions))
        elif captions:
            missing.append(image.path.name)
    _warn_of_dropped(listing, split)
    if not on_disk and not missing:
        examples = {f"{text!r:.60}" for image in images for text in image.captions}
        expected = f"captions with a word for the split {split}"
        raise unexpected(roots[0], expected, list_some(examples))
    if missing:
        report = (
            f"{roots[0]}: {len(missing)} of {len(on_disk) + len(missing)} images of "
            f"the split {split} are missing, the first is {missing[0]!r}"
        )
        if len(missing) > len(on_disk):
            raise UserError(f"{report}; looked in {list_some(folders.bases)}")
        _warn(f"{report}; they are left out")
    _check_splits_disjoint(folders, split, on_disk, others)
    return on_disk


def _warn_of_dropped(listing, split):
    """Print a warning for each reason for which a listing left something out."""
    for (its_split, kind), examples in listing.dropped.items():
        if its_split in (None, split):
            _warn(
                f"{listing.where}: {kind} are left out: {len(examples)}, the first is "
                f"{examples[0]!r:.60}"
            )


def _check_splits_disjoint(folders, split, images, others):
    """Raise a `UserError` if the file of an image is in another split, too.

    Files of the same name are compared, whatever paths the data set has for them.
    """
    paths_by_name: dict[str, list] = {}
    for image in images:
        paths_by_name.setdefault(_normalized_name(image.path), []).append(image.path)
    for other, paths in others.items():
        for path in paths:
            alike = paths_by_name.get(_normalized_name(path), [])
            file = folders.find(path) if alike else None
            for image in alike if file else ():
                if _are_same(image, file):
                    duplicate = (
                        f"{path} in {other}, the same image as {image} in {split}"
                    )
                    where = folders.bases[0]
                    raise unexpected(where, "one split for every image", duplicate)


def _warn(message):
    print(f"captioner: warning: {printable(message)}", file=sys.stderr)


def _normalized_name(path):
    return unicodedata.normalize("NFC", path.name).casefold()


def _are_same(first, second):
    with contextlib.suppress(OSError):
        return read_content(first) == read_content(second)
    return False


def _spellings(name):
    """Return the spellings of a name, since macOS decomposes accents."""
    forms = [unicodedata.normalize(form, str(name)) for form in ("NFC", "NFD")]
    return dict.fromkeys((name, *map(Path, forms)))


@dataclass(frozen=True)
class ArchivedFile:
    """A file in a `.tar` archive, with the attributes of `Path` that readers need.

    Its contents are `size` bytes at the `offset` of the archive.
    """

    archive: Path
    inside: str
    offset: int
    size: int

    @property
    def name(self):
        """The name of the file, without folders."""
        return PurePosixPath(self.inside).name

    @property
    def stem(self):
        """The name up to the first dot, which all files of a sample share."""
        return self.name.partition(".")[0]

    @property
    def key(self):
        """The name of the sample to which the file belongs, with its folders."""
        return str(PurePosixPath(self.inside).with_name(self.stem))

    @property
    def suffix(self):
        """The last suffix of the name, in lower case."""
        return PurePosixPath(self.inside).suffix.lower()

    def __str__(self):
        return f"{self.archive}/{self.inside}"

    def read_bytes(self):
        check_bytes(self.size, self)
        with opened(self.archive) as file:
            file.seek(self.offset)
            return file.read(self.size)


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

    Errors name `where`. With `draws_dev`, dev is drawn from train where it is missing.
    `dropped` is a dict from pairs `(split or None, kind)` to the examples of this kind
    that were left out.
    """

    def __init__(self, where, *, draws_dev=True):
        self.where = where
        self.dropped = {}
        self._draws_dev = draws_dev
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
            actual = f"{name} in {image.split or 'none'} and in {split or 'none'}"
            raise unexpected(where, "one split for every image", actual)
        if (image.path, image.image_id) != (path, image_id):
            raise unexpected(where, "one entry for every image", f"two of {name}")
        if image_id is not None:
            other = self._names_of_ids.setdefault((split, image_id), name)
            if other != name:
                actual = f"{image_id!r} of {other} and of {name}"
                raise unexpected(where, "an id of its own for every image", actual)
        image.captions += tuple(captions)
        for word, word_boxes in (boxes or {}).items():
            image.boxes[word] = (
                *dict.fromkeys((*image.boxes.get(word, ()), *word_boxes)),
            )

    def drop(self, kind, example, split=None):
        """Record an example that is left out, and its kind, a plural noun."""
        self.dropped.setdefault((split, kind), []).append(example)

    def select(self, split):
        """Return the images of a split, and a dict from the others to their paths."""
        parts: dict[str | None, list] = {}
        for image in self._images.values():
            parts.setdefault(image.split, []).append(image)
        if set(parts) <= {None}:
            parts = self._drawn_splits(parts.get(None, []), split)
        elif None in parts:
            actual = f"none of {_whole_name(parts[None][0].path)}"
            raise unexpected(self.where, "a split for every image", actual)
        elif self._draws_dev and "train" in parts and "dev" not in parts:
            drawn = self._drawn_splits(parts["train"], split, test="train")
            parts |= {"train": drawn["train"], "dev": drawn["dev"]}
        if split not in parts:
            actual = f"only {list_some(parts)}"
            raise unexpected(self.where, f"images of the split {split}", actual)
        paths = {x: [image.path for image in images] for x, images in parts.items()}
        others = {x: others for x, others in paths.items() if x != split}
        return _with_ids(parts[split]), others

    def _drawn_splits(self, images, split, test="test"):
        """Return a dict from splits to the images that are drawn for them.

        The hash of its name alone decides the split of an image, so that adding images
        never moves the others. Dev has the smallest hashes, and at least one of two or
        more images; test has the largest. If train would be empty, it gets the images
        of test.
        """
        if split == "dev" and len(images) < 2:
            expected = "at least two images, of which one is for validation"
            raise unexpected(self.where, expected, len(images))
        hashes = [_hash_of(_whole_name(image.path)) for image in images]
        limit = VALIDATION_SHARE
        if len(images) > 1:
            limit = max(limit, math.nextafter(min(hashes), 1))
        drawn: dict[str, list] = {name: [] for name in SPLITS.values()}
        for image, number in zip(images, hashes, strict=True):
            is_test = number >= 1 - VALIDATION_SHARE
            part = "dev" if number < limit else test if is_test else "train"
            drawn[part].append(image)
        if not drawn["train"]:
            drawn |= {"train": drawn["test"], "test": []}
        return drawn


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


def _hash_of(name):
    """Return the hash of a name as a number from 0 to 1."""
    name = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(name).digest()[:6]) / 2**48


def read_content(file):
    """Return the bytes of a file, the path of one or an `ArchivedFile`."""
    return file.read_bytes() if isinstance(file, ArchivedFile) else read_file(file)


def archived_samples(archive):
    """Yield the name of each sample of an archive, and its files of one stem."""
    try:
        with (
            opened(archive) as tar,
            tarfile.open(fileobj=tar, mode="r:", tarinfo=ArchiveMember) as archived,
        ):
            files = (
                ArchivedFile(archive, x.name, x.offset_data, x.size)
                for x in archived
                if x.isfile()
            )
            # Archives made on a Mac bring a hidden `._name` beside every file. A
            # damaged one may have a file without a name.
            named = (file for file in files if file.stem)
            for key, sample in itertools.groupby(named, lambda x: x.key):
                yield key, list(sample)
    # A header may ask for more memory than there is.
    except (tarfile.TarError, OSError, OverflowError, MemoryError) as error:
        raise unexpected(archive, "an uncompressed tar archive", error) from error


def unexpected(where, expected, actual):
    # Names of files and texts may contain line feeds.
    return UserError(printable(f"{where}: expected {expected}, but found {actual}"))


def list_some(names, limit=6):
    names = sorted(map(str, names))
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) + more) or "nothing"


def find_file(root, *patterns, without=()):
    """Return the file of a pattern in a data set or its folders of texts, or `None`."""
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


def find_split_files(root, pattern, names):
    """Return a dict from splits to the files of a pattern that list one each."""
    files = {x: find_file(root, pattern.format(name)) for x, name in names.items()}
    return {split: path for split, path in files.items() if path}


def _text_of(path):
    data = as_utf8(read_content(path), path)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"the byte 0x{data[error.start]:02x}"
        raise unexpected(f"{path}, line {line}", "UTF-8", byte) from None


def read_lines(path):
    """Yield the lines of a text file."""
    # Unlike `str.splitlines`, this leaves a caption's U+2028 and form feeds alone.
    return io.StringIO(_text_of(path), newline=None)


def read_rows(path):
    """Yield the first line number and the cells of every row of a CSV file."""
    rows, line = csv.reader(io.StringIO(_text_of(path), newline="")), 1
    try:
        for row in rows:
            yield line, row
            line = rows.line_num + 1
    except csv.Error as error:
        where = f"{path}, line {line}"
        raise unexpected(where, "CSV", f"a mistake ({error})") from None


def read_table(path):
    """Yield the position, for errors, and every row of a CSV file with a header."""
    header = None
    for line, row in read_rows(path):
        where = f"{path}, line {line}"
        if header is None:
            header = [cell.strip() for cell in row]
        elif row and len(row) != len(header):
            raise unexpected(where, f"{len(header)} cells", f"{len(row)}: {row!r:.60}")
        elif row:
            yield where, dict(zip(header, row, strict=True))


def read_json(path):
    """Return the content of a JSON file."""
    return _parse(_text_of(path), path)


def read_json_lines(path):
    """Yield the position, for errors, and the object of every line of a JSONL file."""
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _parse(line, where)


def _parse(text, where):
    try:
        return parse_json(text)
    except ValueError as error:
        raise unexpected(where, "JSON", f"a mistake ({error})") from None


def get(entry, key, kind, where):
    """Return the value of a key that an object must have, of a type such as `str`."""
    if not isinstance(entry, dict):
        raise unexpected(where, f"an object with the key {key!r}", f"{entry!r:.60}")
    if key not in entry:
        raise unexpected(where, f"the key {key!r}", f"only {list_some(entry)}")
    # In Python, `True` is an integer.
    if not isinstance(entry[key], kind) or isinstance(entry[key], bool):
        expected = f"{described(kind)} as {key!r}"
        raise unexpected(where, expected, f"{entry[key]!r:.60}")
    return entry[key]


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
    files = find_split_files(root, "captions_*{}*.json", COCO_SPLITS)
    if not files:
        return None
    listing = Listing(root)
    for split, path in files.items():
        _read_file(path, split, listing)
    return listing


def _read_file(path, split, listing):
    captions, images = _read_annotations(path)
    folder = path.stem.removeprefix("captions_")
    for image_id, name, where in images:
        texts = captions.pop(image_id, ())
        listing.add(Path(folder, name), texts, split, where=where, image_id=image_id)
    for caption in itertools.chain.from_iterable(captions.values()):
        listing.drop("captions of images that are not listed", caption, split)


def read_coco_captions(path):
    """Yield the name of every image in a file of COCO's format, and its captions."""
    captions, images = _read_annotations(path)
    for image_id, name, _ in images:
        yield name, captions.get(image_id, [])


def _read_annotations(path):
    """Return a dict from ids to captions, and the id, name and position of images."""
    content = read_json(path)
    captions: dict[int | str, list[str]] = {}
    for index, annotation in enumerate(get(content, "annotations", list, path)):
        where = f"{path}: annotations[{index}]"
        image_id = get(annotation, "image_id", int | str, where)
        caption = get(annotation, "caption", str | None, where) or ""
        captions.setdefault(image_id, []).append(caption)
    images = []
    for index, image in enumerate(get(content, "images", list, path)):
        where = f"{path}: images[{index}]"
        image_id = get(image, "id", int | str, where)
        images.append((image_id, get(image, "file_name", str, where), where))
    return captions, images


def read_flickr(root):
    # Flickr8k has a second file of the captions, as lemmas.
    path = find_file(root, "*.token.txt", "*.token", without=".lemma.token.txt")
    if path is None:
        return None
    captions: dict[str, list] = {}
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
    files = find_split_files(root, "*{}Images.txt", names)
    if not files:
        listing = Listing(path)
        for name, texts in captions.items():
            listing.add(Path(name), texts, where=path)
        return listing
    listing = Listing(root, draws_dev=False)
    unsplit = dict(captions)
    for split, path in files.items():
        lines = (line.strip() for line in read_lines(path))
        for name in dict.fromkeys(filter(None, lines)):
            unsplit.pop(name, None)
            listing.add(Path(name), captions.get(name, ()), split, where=path)
    for name in unsplit:
        listing.drop("images in no split", name)
    return listing


# A line inside of a cell that begins like a row.
_ROW = re.compile(r"\n[^\n,]*\.[a-z0-9]{3,4}\s*,", re.IGNORECASE)


def read_kaggle(root):
    path = find_file(root, "captions.txt")
    if path is None:
        return None
    captions: dict[str, list] = {}
    for line, row in read_rows(path):
        where = f"{path}, line {line}"
        joined = ",".join(row)
        if line == 1 and joined.lower().replace(" ", "") != "image,caption":
            raise unexpected(where, "the header image,caption", f"{joined!r:.60}")
        # After an unclosed quote, the following lines belong to the same cell.
        if len(row) == 1 or _ROW.search(joined):
            raise unexpected(where, "image,caption on one line", f"{joined!r:.60}")
        if line > 1 and row:
            # Captions may have commas without quotes.
            name, *parts = row
            captions.setdefault(name.strip(), []).append(",".join(parts))
    return listing_of(root, path, captions)


# A row of Flickr30k; a known one lacks the second bar.
_NUMBERED = re.compile(r"([^|]+)\|\s*[0-9]+\s*(?:\||\s)(.*)")
_NUMBERED_HEADER = "image_name|comment_number|comment"


def read_kaggle_flickr30k(root):
    # Kaggle's archive has it beside the images' folder, in a folder of the same name.
    folders = (root, root / "flickr30k_images")
    paths = (find_file(folder, "results.csv") for folder in folders)
    path = next(filter(None, paths), None)
    if path is None:
        return None
    lines = enumerate(read_lines(path), 1)
    _, header = next(lines, (1, ""))
    # Other programs, too, write files of this name.
    if header.strip("\ufeff\n").lower().replace(" ", "") != _NUMBERED_HEADER:
        return None
    captions: dict[str, list] = {}
    for number, line in lines:
        match = _NUMBERED.fullmatch(line.rstrip("\n"))
        if match:
            captions.setdefault(match[1].strip(), []).append(match[2].strip())
        elif line.strip():
            where = f"{path}, line {number}"
            raise unexpected(where, "image_name| number| comment", f"{line!r:.60}")
    return listing_of(root, path, captions)


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
            captions, boxes = captions_of(entry, where), boxes_of(entry, where)
            listing.add(name, captions, split, where=where, boxes=boxes)
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


def captions_of(entry, where):
    """Return the captions of a JSON object or a row: a string or a list of strings.

    A missing one, `null`, is an empty one. Of several keys, the first of
    `CAPTION_NAMES` is used.
    """
    names = [name for name in CAPTION_NAMES if name in entry]
    if not names:
        expected = f"one of the keys {list_some(CAPTION_NAMES)}"
        raise unexpected(where, expected, f"only {list_some(entry)}")
    value = entry[names[0]]
    captions = value if isinstance(value, list) else [value]
    captions = ["" if text is None else text for text in captions]
    if not all(isinstance(text, str) for text in captions):
        expected = f"a string or a list of strings as {names[0]!r}"
        raise unexpected(where, expected, f"{value!r:.60}")
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


def check_boxes(boxes):
    """Validate a dict from words to a box or a list of boxes; return it with tuples.

    Words are normalised by `tokenize`, like captions. A phrase keeps its spaces, so it
    matches no single word of a caption. Words without boxes are left out.
    """
    checked: dict[str, tuple] = {}
    for word, word_boxes in boxes.items():
        if not len(word_boxes):
            continue
        try:
            corners = np.atleast_2d(np.array(word_boxes, "float64"))
        except OverflowError as error:
            raise ValueError(f"{word!r} has a box with too large a number") from error
        if corners.shape[1:] != (4,) or not np.isfinite(corners).all():
            raise ValueError(f"{word!r} must have boxes of four numbers")
        left, top, right, bottom = corners.T
        are_ordered = ((left < right) & (top < bottom)).all()
        if not are_ordered or not ((corners >= 0) & (corners <= 1)).all():
            raise ValueError(
                f"{word!r} must have boxes left, top, right, bottom, from 0 to 1"
            )
        spelt = " ".join(tokenize(word))
        checked[spelt] = (*checked.get(spelt, ()), *map(tuple, corners.tolist()))
    return checked


# The image of a sample has one of these suffixes if other images, such as masks, are
# beside it.
COMMON_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def read_webdataset(root):
    shards = sorted(path for path in root.glob("*.tar") if path.name[0] != ".")
    if not shards:
        return None
    listing = Listing(root)
    for shard in shards:
        split = SPLITS.get(re.split("[^a-z]", shard.name.lower(), maxsplit=1)[0])
        for key, files in archived_samples(shard):
            _read_sample(f"{shard}: {key}", files, split, listing)
    return listing


def _read_sample(where, files, split, listing):
    """Add an image with the captions that share its name."""
    images = [file for file in files if file.suffix in image_suffixes()]
    if len(images) > 1:
        images = [file for file in images if file.suffix in COMMON_SUFFIXES]
    if len(images) != 1:
        names = list_some(file.name for file in files)
        raise unexpected(where, "one image", names)
    texts = [file for file in files if file.suffix == ".txt"]
    captions = [line.strip("\n") for file in texts for line in read_lines(file)]
    boxes: dict[str, tuple] = {}
    for file in files:
        if file.suffix == ".json":
            entry = read_json(file)
            if not isinstance(entry, dict):
                raise unexpected(file, "an object", f"{entry!r:.60}")
            boxes |= boxes_of(entry, file)
            captions = captions or captions_of(entry, file)
    listing.add(images[0], captions, split, where=where, boxes=boxes)


# In the order in which they are tried. A reader returns the `Listing` of a data set, or
# `None` if it does not recognise its layout.
LAYOUTS = (
    read_karpathy,
    read_coco,
    read_flickr,
    read_kaggle,
    read_kaggle_flickr30k,
    read_metadata,
    read_webdataset,
)
