"""Bulk inference with Ray Data: one model per actor, inputs with ids, output in parts.

`from_names`, `from_parquet`, `from_shards` and `from_lines` return a `ray.data.Dataset`
with the columns `id` and `value`; that of Parquet files and shards also has `error`. A
dataset is lazy: only file names and line offsets are read before the inference starts.
"""

import codecs
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import io
import itertools
import json
import logging
import os
import posixpath
import re
import sys
import tarfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from keras_attention_apps.common.errors import UserError, did_you_mean, listed, reason
from keras_attention_apps.common.files import (
    CHUNK,
    MARKS,
    MAX_BYTES,
    ArchiveMember,
    at_most,
    is_litert,
    locked,
    parse_json,
    read_all,
    to_json,
)
from keras_attention_apps.common.hypotheses import check_batch_size
from keras_attention_apps.common.models import changes_in
from keras_attention_apps.common.options import RuntimeConfig
from keras_attention_apps.common.output import progress_bar

# Number of threads that read remote files.
READERS = 16


class ModelBatch:
    """A model as a callable for `ray.data.Dataset.map_batches`.

    An actor loads the model once, and then processes one batch after another. It needs
    no Ray: a batch is a dict of columns. Subclasses implement `rows`, and set the
    `runtimes` of the program and the columns of the result with their types, `fields`
    and, for the attention maps, `map_fields`: `str`, `float`, `bool`, or a list.

    Args:
        model: Name of a preset, or path of a folder or LiteRT file on every node.
        column: Column of the inputs.
        maps: Whether the result has the columns of `map_fields`.
        runtime: `"litert"`, `"keras"`, or `"auto"`: LiteRT if the model has a LiteRT
            file with these options and the defaults of Keras.
        threads: Number of threads of LiteRT; give the actor as many CPUs (`num_cpus`).
        batch_size: Number of inputs that Keras processes at a time.
        search: Dict of options of the beam search; the defaults if omitted, or those of
            the file with `runtime="litert"`.
        options: Dict of further arguments of `Task.from_preset`.
        max_bytes: Maximum size of an input that is read from a file, in bytes.
        filesystem: The `pyarrow.fs.FileSystem` of inputs that are paths; by default
            that of the URI, or the local one.

    Raises:
        UserError: If the model cannot be loaded, or the options contradict one another.
    """

    runtimes = None
    fields = map_fields = None

    def __init__(
        self,
        model,
        *,
        column,
        maps=False,
        runtime="auto",
        threads=1,
        batch_size=64,
        search=None,
        options=None,
        max_bytes=MAX_BYTES,
        filesystem=None,
    ):
        check_batch_size(batch_size)
        self.column = column
        self.columns = self.columns_of(maps)
        self.batch_size = batch_size
        self.max_bytes = max_bytes
        self.filesystem = filesystem
        self.search = search or {}
        config = RuntimeConfig(runtime=runtime, threads=threads)
        with at_most(max_bytes):
            # With `count=1`, "auto" prefers LiteRT, the runtime for actors on CPUs.
            self.model = self.runtimes.load(
                model, config, count=1, search=self.search, **options or {}
            )

    @classmethod
    def columns_of(cls, maps):
        """Return the columns of the result and their types, with those of the maps."""
        return {**cls.fields, **(cls.map_fields if maps else {}), "error": str}

    def __call__(self, batch):
        """Return the columns of a batch, a dict of equal length, and of the result.

        The column of the inputs is left out if it contains bytes. Where an input cannot
        be read, `error` has the reason, and the other columns of the result are empty;
        elsewhere it is `None`. A row of the batch that has an `error`, a string that is
        not empty, keeps it.

        Raises:
            UserError: If the batch has no such column.
        """
        if self.column not in batch:
            raise UserError(
                f"expected a column {self.column!r} in the batch. Received: "
                f"{', '.join(batch)}"
            )
        values = list(batch[self.column])
        errors = batch.get("error", [None] * len(values))
        # A missing string is NaN in a column of pandas.
        errors = [x if x and isinstance(x, str) else None for x in errors]
        pairs = zip(values, errors, strict=True)
        with at_most(self.max_bytes):
            found = iter(self.rows([x for x, error in pairs if error is None]))
        rows = [next(found) if error is None else {"error": error} for error in errors]
        kept = dict(batch)
        if any(isinstance(value, bytes) for value in values):
            del kept[self.column]
        columns = {x: _column(rows, x, kind) for x, kind in self.columns.items()}
        return {**kept, **columns}

    def rows(self, values):
        """Return a dict for each input of a batch, with `error` if it failed."""
        raise NotImplementedError

    def contents(self, values):
        """Return inputs with the bytes, or the error, of a remote file for its path."""
        if not any(map(self._is_remote, values)):
            return values
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(self._content, values))

    def _is_remote(self, value):
        may_be = self.filesystem is not None or "://" in str(value)
        return isinstance(value, str) and may_be

    def _content(self, value):
        if not self._is_remote(value):
            return value
        from pyarrow.fs import FileSystem

        filesystem, path = self.filesystem, value
        try:
            if filesystem is None:
                filesystem, path = FileSystem.from_uri(value)
            with filesystem.open_input_stream(path) as file:
                return read_all(file, value)
        # Errors of Arrow are subclasses of these.
        except (OSError, ValueError, UserError) as error:
            return UserError(f"Cannot read {value!r}: {reason(error)}")


def details(result, columns):
    """Return the columns of a `Caption` or a `Translation`."""
    found = vars(result) | result.details()
    return {name: found[name] for name in columns if name in found}


def _column(rows, name, kind):
    """Return a column as an array; a missing value is `None`, NaN, or an empty list."""
    if kind is float:
        return np.array([row.get(name, np.nan) for row in rows], "float64")
    if kind is bool:
        return np.array([row.get(name, False) for row in rows], bool)
    empty = [] if isinstance(kind, list) else None
    column = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        column[i] = row.get(name, empty)
    return column


# Maximum number of batches per actor, queued or running. More take more memory.
BATCHES_IN_FLIGHT = 2


@contextlib.contextmanager
def cluster(address=None):
    """Connect to a Ray cluster, or start one here; an open connection is used."""
    # Ray reads this variable when it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = require("ray")
    if ray.is_initialized():
        yield ray
        return
    # Without "local", Ray would connect to the cluster that RAY_ADDRESS names.
    options = {"address": "local", "include_dashboard": False}
    if address:
        options = {"address": address}
    try:
        ray.init(logging_level=logging.WARNING, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        failed = f"connect to Ray at {address!r}" if address else "start Ray"
        raise UserError(f"cannot {failed}: {reason(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def run(inputs, model_batch, parts, *, config, arguments, progress=None):
    """Process all inputs that have no results yet.

    Returns the number of rows written, of those with an error, and of earlier ones.
    """
    with cluster(config.address) as ray:
        context = require("ray.data").DataContext.get_current()
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        finished = parts.finished()
        resources, arguments, actors = _resources(ray, config, arguments)
        data = (
            inputs(finished)
            .map_batches(
                model_batch,
                fn_constructor_kwargs={**arguments, "column": "value"},
                batch_size=arguments["batch_size"],
                compute=require("ray.data").ActorPoolStrategy(
                    min_size=1,
                    max_size=actors,
                    # Ray would add none while so few batches are in flight.
                    initial_size=actors,
                    max_tasks_in_flight_per_actor=BATCHES_IN_FLIGHT,
                ),
                **resources,
            )
            .map_batches(
                functools.partial(_write, parts=parts),
                batch_size=config.part_size,
                # As NumPy, a column without any value would become NaN.
                batch_format="pyarrow",
                num_cpus=IO_CPUS,
            )
        )
        rows = errors = 0
        with _errors_of(ray):
            for part in data.iter_rows():
                if part["problem"]:
                    raise UserError(f"cannot write {parts.name!r}: {part['problem']}")
                rows, errors = rows + part["rows"], errors + part["errors"]
                if progress:
                    progress(part["rows"])
        return rows, errors, len(finished)


def _write(table, *, parts):
    """Write a table as a part, and return a table with its counts or the problem."""
    pa, problem = require("pyarrow"), None
    written = {"rows": [0], "errors": [0]}
    try:
        written = parts.write(table.to_pydict())
    except OSError as error:
        problem = reason(error)
    return pa.table({**written, "problem": pa.array([problem], pa.string())})


def _resources(ray, config, arguments):
    """Return the resources of an actor, its arguments, and the number of actors."""
    available = ray.cluster_resources()
    model, runtime = arguments["model"], arguments.get("runtime", "auto")
    threads = arguments.get("threads") or 1
    arguments = {**arguments, "threads": threads}
    if available.get("GPU") and runtime != "litert" and not is_litert(model):
        arguments["runtime"] = "keras"
        actors = config.actors or int(available["GPU"])
        return {"num_gpus": 1, "num_cpus": threads}, arguments, actors
    actors = config.actors or max(int(available.get("CPU", 1) // threads), 1)
    # If each actor reserved a whole CPU, none would be left for the tasks that read and
    # write, and the last actor would not start. Ray allows fractions below one only.
    cpus = 1 - 2 * IO_CPUS if threads == 1 else threads
    return {"num_cpus": cpus}, arguments, actors


@contextlib.contextmanager
def _errors_of(ray):
    """Replace errors of the cluster, such as a lost actor, by a `UserError`."""
    exceptions = ray.exceptions
    try:
        yield
    except (exceptions.RayTaskError, exceptions.UserCodeException):
        raise
    except exceptions.RayError as error:
        raise UserError(f"Ray failed: {reason(error)}") from error


def check_options(config, excluded):
    """Raise a `UserError` for options that `--engine ray` does not support."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name in excluded:
        value = getattr(config, name)
        if value != defaults[name]:
            option = name.replace("_", "-")
            shown = str(value) if isinstance(value, Path) else value
            raise UserError(
                f"--{option} cannot be used with --engine ray. Received: {shown!r}"
            )
    if config.output is None:
        raise UserError(
            "--engine ray needs --output, the name of a folder that ends in .parquet "
            "or .jsonl. Received: none"
        )


def run_command(
    program, inputs, model_batch, config, filesystem, describe_input=None, **options
):
    """Run a bulk inference, print its totals, and return the exit code.

    `describe_input` returns a dict of properties of the input, such as its digest,
    which must be those of the job that is resumed. `**options` are those of
    `model_batch`.
    """
    require("ray.data")
    bulk, runtime = config.bulk, config.runtime
    parts = Parts(config.output, model_batch.columns_of(bulk.maps))
    # Workers may have another working directory.
    model = model_batch.runtimes.with_absolute_paths(config.model.name)
    local = isinstance(filesystem, require("pyarrow.fs").LocalFileSystem)
    arguments = {
        "model": model,
        "maps": bulk.maps,
        "runtime": runtime.runtime,
        "threads": runtime.threads,
        "batch_size": config.batch_size,
        "search": config.search.given,
        "options": config.model.options,
        "max_bytes": config.reading.max_bytes,
        "filesystem": None if local else filesystem,
        **options,
    }
    _check_model(model_batch, arguments)
    columns = {"column": bulk.column, "id_column": bulk.id_column}
    names = ("model", "maps", "search", "options", *options)
    recorded = {**{name: arguments[name] for name in names}, **columns}
    recorded["options"] = changes_in(recorded["options"])
    if describe_input is not None:
        recorded |= describe_input()
    with parts.locked(), progress_bar(unit="row") as bar:
        parts.begin(recorded)
        options = {"config": bulk, "arguments": arguments, "progress": bar.update}
        rows, errors, earlier = run(inputs, model_batch, parts, **options)
    print(
        f"{program}: wrote {rows:,} rows to {parts.name}, {errors:,} of them with an "
        f"error; {earlier:,} rows were written by earlier runs",
        file=sys.stderr,
    )
    return 2 if errors else 0


def _check_model(model_batch, arguments):
    """Raise a `UserError` for a missing model, or options that contradict one another.

    Otherwise, an actor would find them after the output was begun.
    """
    runtimes = model_batch.runtimes
    if is_litert(arguments["model"]) or arguments["runtime"] == "litert":
        model_batch(column="value", **{**arguments, "threads": 1})
    elif not runtimes.files(arguments["model"]):
        # Loading raises the error that lists the presets.
        model_batch(column="value", **arguments)
    else:
        runtimes.search_options(arguments["search"])


# Number of names in a block, and of lines that one task reads. An actor processes whole
# blocks, so that large ones would leave actors without work.
BLOCK = 256
# Number of rows of a Parquet file that are read at once.
ROWS = 64
# CPUs that Ray reserves for a task that reads or writes files.
IO_CPUS = 0.1


def found_files(filesystem, folders, suffixes):
    """Return the paths of the files in folders, recursively."""
    fs = require("pyarrow.fs")
    found = []
    for info, path in zip(filesystem.get_file_info(folders), folders, strict=True):
        if info.type != fs.FileType.Directory:
            found.append(path)
            continue
        inside = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
        names = sorted(
            x.path
            for x in inside
            if x.is_file
            and f".{x.extension.lower()}" in suffixes
            and not x.base_name.startswith(".")
        )
        if not names:
            raise UserError(
                f"expected files {', '.join(sorted(suffixes))} in {path!r}. Received: "
                f"{sum(x.is_file for x in inside)} other files"
            )
        found += names
    return found


def from_names(ids, values, finished):
    """Return a dataset of values, such as names of files."""
    pa = require("pyarrow")
    table = pa.table({"id": pa.array(ids), "value": pa.array(values)})
    return _in_blocks(_unfinished(table, finished), BLOCK)


def _in_blocks(table, size):
    """Return a dataset of a table, in blocks of `size` rows."""
    blocks = [table.slice(i, size) for i in range(0, len(table), size)]
    return require("ray.data").from_arrow(blocks or [table])


def _map_rows(table, function, **options):
    """Return a dataset of what a function returns of each row of a table, in a task."""
    return _in_blocks(table, 1).map_batches(
        functools.partial(function, **options),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=IO_CPUS,
    )


def from_parquet(filesystem, paths, column, id_column, finished):
    """Return a dataset of a column; a damaged file is a row with its path as the id."""
    paths = found_files(filesystem, paths, {".parquet"})
    read = functools.partial(
        _rows_of_parquet, filesystem=filesystem, column=column, id_column=id_column
    )
    for path in paths:
        with contextlib.suppress(OSError, require("pyarrow").ArrowException):
            # A wrong option is an error before the inference starts.
            next(read(path), None)
            break
    return _from_files(paths, read, finished)


def _rows_of_parquet(path, *, filesystem, column, id_column):
    """Yield tables of ids and values."""
    pa, compute = require("pyarrow"), require("pyarrow.compute")
    with filesystem.open_input_file(path) as opened:
        file = require("pyarrow.parquet").ParquetFile(opened)
        for name in (column, id_column):
            if name not in file.schema_arrow.names:
                raise UserError(
                    f"expected a column {name!r} in {path!r} (--column, --id-column). "
                    f"Received: {listed(name, file.schema_arrow.names)}"
                    f"{did_you_mean(name, file.schema_arrow.names)}"
                )
        # One group after the other, so that those before a damaged one are read.
        batches = itertools.chain.from_iterable(
            file.iter_batches(ROWS, [group], columns=[id_column, column])
            for group in range(file.num_row_groups)
        )
        for batch in batches:
            ids, values = batch[id_column].cast(pa.string()), batch[column]
            if pa.types.is_struct(values.type):
                values = compute.struct_field(values, "bytes")
            yield pa.table({"id": ids, "value": values})


def from_shards(filesystem, paths, suffixes, finished):
    """Return a dataset of the images in WebDataset shards (tar files).

    The id is the path of the shard, a slash, and the key; of a damaged shard, its path.
    """
    read = functools.partial(_images_of_shard, filesystem=filesystem, suffixes=suffixes)
    return _from_files(paths, read, finished)


def _images_of_shard(path, *, filesystem, suffixes):
    """Yield tables of ids and values, the first image of every sample."""
    pa, last = require("pyarrow"), None
    with (
        filesystem.open_input_stream(path) as stream,
        tarfile.open(fileobj=stream, mode="r|", tarinfo=ArchiveMember) as shard,
    ):
        for member in shard:
            folder, name = posixpath.split(member.name)
            stem, _, extension = name.partition(".")
            key = posixpath.join(folder, stem)
            # Archives made on a Mac bring a hidden `._name` beside every file.
            if not stem or f".{extension.lower()}" not in suffixes or key == last:
                continue
            if member.isfile():
                last, content = key, shard.extractfile(member).read()
                yield pa.table({"id": [f"{path}/{key}"], "value": [content]})


def _from_files(paths, read, finished):
    """Return a dataset of the rows of files, one file a task."""
    pa = require("pyarrow")
    table = pa.table({"path": pa.array(paths, pa.string())})
    return _map_rows(table, _rows_of_files, read=read, finished=finished)


def _rows_of_files(paths, *, read, finished):
    """Yield tables of the rows of files, with a row for the error of a damaged file."""
    pa = require("pyarrow")
    damage = (OSError, pa.ArrowException, tarfile.TarError, UserError)
    for path in paths["path"].to_pylist():
        try:
            for table in read(path):
                errors = pa.nulls(len(table), pa.string())
                yield _unfinished(table.append_column("error", errors), finished)
        except damage as error:
            found = f"Cannot read {path!r}: {reason(error)}"
            values = pa.nulls(1)
            yield pa.table({"id": [path], "value": values, "error": [found]})


def from_lines(filesystem, path, finished):
    """Return a dataset of the lines of a text file, as bytes without line feeds.

    The id of a line is its number. The file is read once to find the line offsets.
    """
    pa = require("pyarrow")
    schema = pa.schema([("number", pa.int64()), ("start", pa.int64())])
    table = pa.Table.from_pylist(list(_starts(filesystem, path)), schema)
    options = {"filesystem": filesystem, "path": path, "finished": finished}
    return _map_rows(table, _lines, **options)


def text_digest(filesystem, path):
    """Return a dict with the size and digest of a text, whose ids are line numbers."""
    digest, size = hashlib.blake2b(digest_size=DIGEST), 0
    with filesystem.open_input_stream(path) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"input_size": size, "input_digest": digest.hexdigest()}


def _starts(filesystem, path):
    """Yield the number and the byte offset of the first line of every chunk."""
    with _buffered(filesystem, path) as file:
        if file.peek(4).startswith(tuple(MARKS)):
            raise UserError(
                f"expected UTF-8 in {path!r}. Received: UTF-16 or UTF-32. Save it as "
                "UTF-8"
            )
        start = 0
        for number, line in enumerate(file):
            if number % BLOCK == 0:
                yield {"number": number + 1, "start": start}
            start += len(line)


def _lines(table, *, filesystem, path, finished):
    pa = require("pyarrow")
    ids, lines = [], []
    with _buffered(filesystem, path) as file:
        for row in table.to_pylist():
            file.seek(row["start"])
            for number in range(row["number"], row["number"] + BLOCK):
                line = file.readline()
                if not line:
                    break
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                ids.append(str(number))
                lines.append(line.rstrip(b"\r\n"))
    table = pa.table({"id": pa.array(ids, pa.string()), "value": pa.array(lines)})
    return _unfinished(table, finished)


def _buffered(filesystem, path):
    return io.BufferedReader(filesystem.open_input_file(path), 2**20)


def _unfinished(table, finished):
    """Return the rows of a table whose ids are not finished."""
    keep = is_missing(table["id"].to_pylist(), finished)
    return table.filter(require("pyarrow").array(keep))


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

        Rows with an error are removed, so that their inputs are retried.
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
        """Write a part with the rows of a batch; return counts of rows and errors."""
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
