"""Files of captions: finding them, text, CSV, JSON and tar archives, and errors."""

import csv
import io
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from keras_attention_apps.common.errors import UserError, printable
from keras_attention_apps.common.files import (
    ArchiveMember,
    as_utf8,
    check_bytes,
    opened,
    parse_json,
    read_file,
)
from keras_attention_apps.common.options import described


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


def read_content(file):
    """Return the bytes of a file, the path of one or an `ArchivedFile`."""
    return file.read_bytes() if isinstance(file, ArchivedFile) else read_file(file)


def archived_samples(archive):
    """Yield the name of each sample of an archive, and its files of one stem."""
    key, files = None, []
    try:
        with (
            opened(archive) as tar,
            tarfile.open(fileobj=tar, mode="r:", tarinfo=ArchiveMember) as archived,
        ):
            for member in archived:
                place = member.offset_data, member.size
                file = ArchivedFile(archive, member.name, *place)
                # Archives made on a Mac bring a hidden `._name` beside every file. A
                # damaged one may have a file without a name.
                if not member.isfile() or not file.stem:
                    continue
                its_key = str(PurePosixPath(member.name).with_name(file.stem))
                if key not in (None, its_key):
                    yield key, files
                    files = []
                key = its_key
                files.append(file)
    # A header may ask for more memory than there is.
    except (tarfile.TarError, OSError, OverflowError, MemoryError) as error:
        raise UserError(
            f"{archive}: expected an uncompressed tar archive, but found {error}"
        ) from error
    if files:
        yield key, files


TEXT_FOLDERS = ("Flickr8k_text", "annotations")
# Files that the clients of Kaggle and Hugging Face add to a data set.
NO_CAPTIONS = ("dataset-metadata.json", "dataset_info.json", "dataset_infos.json")
NO_CAPTIONS += ("dataset_dict.json",)


class DataError(UserError):
    """A data set that cannot be read."""


def unexpected(where, expected, found):
    # Names of files and texts may contain line feeds.
    return DataError(printable(f"{where}: expected {expected}, but found {found}"))


def list_files(directory):
    return list_some(path.name for path in directory.iterdir())


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
    """Find the files that list one split each.

    Returns a dict from splits to the files that are there, and one from the other
    splits to what is expected for them. `names` are the splits in the pattern.
    """
    patterns = {split: pattern.format(name) for split, name in names.items()}
    found = {split: find_file(root, pattern) for split, pattern in patterns.items()}
    files = {split: path for split, path in found.items() if path}
    lacking = {x: f"a file {patterns[x]}" for x in patterns if x not in files}
    return files, lacking


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
            _check_different(filter(None, header), where, "columns")
        elif row and len(row) != len(header):
            raise unexpected(where, f"{len(header)} cells", f"{len(row)}: {row!r:.60}")
        elif row:
            yield where, dict(zip(header, row, strict=True))


def read_json(path):
    """Return the content of a JSON file, whose objects must not repeat a key."""
    return _parse(_text_of(path), path)


def read_json_lines(path):
    """Yield the position, for errors, and the object of every line of a JSONL file."""
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _parse(line, where)


def _parse(text, where):
    def check(pairs):
        entry = dict(pairs)
        if len(entry) < len(pairs):
            _check_different((key for key, _ in pairs), where, "keys")
        return entry

    try:
        return parse_json(text, object_pairs_hook=check)
    except DataError:
        raise
    except ValueError as error:
        raise unexpected(where, "JSON", f"a mistake ({error})") from None


def _check_different(names, where, kind):
    seen = set()
    for name in names:
        if name in seen:
            raise unexpected(where, f"{kind} of different names", f"two {name!r}")
        seen.add(name)


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
