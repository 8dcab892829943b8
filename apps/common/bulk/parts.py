"""The output of a bulk inference: a folder of parts, Parquet or JSON lines."""

import contextlib
import hashlib
import importlib
import io
import json
import os
import posixpath
import re
import uuid
from pathlib import Path

import numpy as np
from keras_attention_apps.common.errors import UserError, reason
from keras_attention_apps.common.files import locked, parse_json, to_json

# A URI; `pathlib` merges its slashes into one. A drive letter is no scheme.
_URI = re.compile("([a-z][a-z0-9+.-]+):/+", re.IGNORECASE)


def located(path):
    """Return the `pyarrow.fs.FileSystem` of a path or URI, and the path inside it."""
    fs = require("pyarrow.fs")
    uri = as_text(path)
    if not _URI.match(uri):
        return fs.LocalFileSystem(), os.path.abspath(uri)
    try:
        return fs.FileSystem.from_uri(uri)
    # Errors of Arrow are subclasses of these.
    except (OSError, ValueError) as error:
        raise UserError(f"cannot open {uri!r}: {reason(error)}") from error


def as_text(path):
    """Return a path or URI as a string, with the slashes that `pathlib` removed."""
    text = str(path)
    found = _URI.match(text)
    if not found:
        return text
    scheme, rest = found[1].lower(), text[found.end() :]
    return f"{scheme}:///{rest}" if scheme == "file" else f"{scheme}://{rest}"


def located_all(paths):
    """Return the file system of several paths, and the paths inside it."""
    places = [located(path) for path in paths]
    if any(filesystem != places[0][0] for filesystem, _ in places):
        raise UserError(
            "expected inputs on one file system. Received: "
            f"{', '.join(map(str, paths))}"
        )
    return places[0][0], [path for _, path in places]


def is_local(path):
    """Return whether a path or URI is on the local file system."""
    return not _URI.match(str(path)) or str(path).lower().startswith("file:")


def require(name):
    """Import a module of Ray or pyarrow, which are optional."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f'--engine ray needs Ray and pyarrow: pip install ".[ray]" ({error})'
        ) from error


# File with the options on which the results depend. Readers of Parquet skip names that
# start with an underscore or a dot.
OPTIONS = "_options.json"
# Size of the digest of an id or of a text, in bytes.
DIGEST = 16


class Parts:
    """A folder of parts, each of which is written atomically.

    The name of a part is a digest of its ids. A part that is written again, after a
    process was killed, has the same name, so no row exists twice.
    """

    def __init__(self, path, columns):
        self.suffix = posixpath.splitext(str(path).rstrip("/\\"))[1].lower()
        if self.suffix not in (".parquet", ".jsonl"):
            raise UserError(
                "--output must end in .parquet or .jsonl: a folder of parts of this "
                f"format. Received: {str(path)!r}"
            )
        self.name = as_text(path)
        self.columns = {"id": str, **columns}
        self.filesystem, self.folder = located(path)
        fs = require("pyarrow.fs")
        if self.filesystem.get_file_info(self.folder).type == fs.FileType.File:
            raise UserError(
                f"--output must be a folder. Received a file: {self.name!r}"
            )

    @contextlib.contextmanager
    def locked(self):
        """Lock the folder against other jobs. Only a local folder can be locked."""
        local = isinstance(self.filesystem, require("pyarrow.fs").LocalFileSystem)
        with locked(Path(self.folder)) if local else contextlib.nullcontext():
            yield

    def begin(self, options):
        """Create the folder, or check that its parts have these options."""
        self.filesystem.create_dir(self.folder, recursive=True)
        name = f"{self.folder}/{OPTIONS}"
        options = json.loads(json.dumps(options))
        try:
            with self.filesystem.open_input_stream(name) as file:
                before = parse_json(file.read())
            if not isinstance(before, dict):
                raise ValueError("it is not an object")
        except ValueError as error:
            raise UserError(
                f"{name!r} is damaged ({reason(error)}): choose another output"
            ) from error
        except FileNotFoundError:
            if self._names():
                raise UserError(
                    f"{self.name!r} has parts, but no {OPTIONS}: choose another output"
                ) from None
            before = None
        if before == options:
            return
        if self._names():
            different = ", ".join(
                f"{x}={before.get(x)!r} instead of {options.get(x)!r}"
                for x in {**before, **options}
                if before.get(x) != options.get(x)
            )
            raise UserError(
                f"{self.name!r} was written with {different}: choose another output"
            )
        self._replace(OPTIONS, to_json(options, indent=2).encode())

    def finished(self):
        """Return the sorted digests of the ids that have results; see `digests`.

        Rows with an error are removed from the parts, so that their inputs are retried.
        """
        found = []
        for name in self._names():
            table = self._read(name)
            kept = table.filter(table["error"].is_null())
            if not len(kept):
                self.filesystem.delete_file(f"{self.folder}/{name}")
            elif len(kept) < len(table):
                self._replace(name, self._encode(kept))
            found.append(digests(kept["id"].to_pylist()))
        return np.sort(np.concatenate([digests([]), *found]))

    def write(self, batch):
        """Write a part with the rows of a batch, a dict of columns.

        Returns a dict of columns of one value: the number of rows, and of errors.
        """
        table = self._table({name: list(batch[name]) for name in self.columns})
        ids = hashlib.blake2b(digest_size=DIGEST)
        ids.update(digests(table["id"].to_pylist()).tobytes())
        name = f"part-{ids.hexdigest()}{self.suffix}"
        self._replace(name, self._encode(table))
        errors = len(table) - table["error"].null_count
        return {"rows": [len(table)], "errors": [errors]}

    def read(self):
        """Yield the rows of all parts as dicts."""
        for name in self._names():
            yield from self._read(name).to_pylist()

    def _names(self):
        fs = require("pyarrow.fs")
        files = self.filesystem.get_file_info(fs.FileSelector(self.folder))
        names = sorted(file.base_name for file in files)
        return [x for x in names if x.startswith("part-") and x.endswith(self.suffix)]

    def _table(self, columns):
        pa = require("pyarrow")
        # NaN becomes null, since JSON has no NaN.
        kinds = self.columns.items()
        arrays = [
            pa.array(columns[x], _type(kind), from_pandas=True) for x, kind in kinds
        ]
        return pa.table(arrays, names=list(self.columns))

    def _read(self, name):
        """Return the table of a part."""
        try:
            return self._decode(name)
        # Readers of damaged files fail with many types of exceptions.
        except Exception as error:
            raise UserError(
                f"cannot read '{self.folder}/{name}': {reason(error)}. If it is "
                "damaged, remove it"
            ) from error

    def _decode(self, name):
        with self.filesystem.open_input_file(f"{self.folder}/{name}") as file:
            if self.suffix == ".parquet":
                parquet = require("pyarrow.parquet")
                return parquet.read_table(file, columns=list(self.columns))
            rows = [parse_json(line) for line in file.read().splitlines()]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("a line is not an object")
        return self._table({x: [row.get(x) for row in rows] for x in self.columns})

    def _encode(self, table):
        if self.suffix == ".jsonl":
            lines = [f"{to_json(row)}\n" for row in table.to_pylist()]
            return "".join(lines).encode()
        content = io.BytesIO()
        require("pyarrow.parquet").write_table(table, content)
        return content.getvalue()

    def _replace(self, name, content):
        """Write a file under a temporary name, and rename it."""
        temporary = f"{self.folder}/.{uuid.uuid4().hex}-{name}"
        try:
            with self.filesystem.open_output_stream(temporary) as file:
                file.write(content)
            self.filesystem.move(temporary, f"{self.folder}/{name}")
        except OSError:
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(temporary)
            raise


def digests(ids):
    """Return an array of the digests of ids, each of `DIGEST` bytes."""
    names = (str(x).encode("utf-8", "surrogateescape") for x in ids)
    found = [hashlib.blake2b(name, digest_size=DIGEST).digest() for name in names]
    return np.array(found, f"S{DIGEST}")


def is_missing(ids, finished):
    """Return a boolean array: which ids are not among the finished ones."""
    wanted = digests(ids)
    if not len(finished):
        return np.ones(len(wanted), bool)
    places = np.searchsorted(finished, wanted).clip(max=len(finished) - 1)
    return finished[places] != wanted


def _type(kind):
    """Return the Arrow type of a type of `ModelBatch.fields`."""
    pa = require("pyarrow")
    if isinstance(kind, list):
        return pa.list_(_type(kind[0]))
    return {str: pa.string(), float: pa.float64(), bool: pa.bool_()}[kind]
