"""Bulk inference with Ray Data: one model per actor, inputs with ids, output in parts.

`from_names`, `from_parquet` and `from_lines` return a `ray.data.Dataset` with the
columns `id` and `value`; that of Parquet files also has `error`. A dataset is lazy:
only file names and line offsets are read before the inference starts.
"""

import codecs
import contextlib
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
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, get_args, get_origin

import numpy as np

from keras_attention_apps.common import files
from keras_attention_apps.common.errors import UserError, did_you_mean, listed, reason
from keras_attention_apps.common.inference import check_batch_size
from keras_attention_apps.common.models import Runtimes, changes_in
from keras_attention_apps.common.options import RuntimeConfig
from keras_attention_apps.common.output import progress_bar
from keras_attention_apps.common.schema import Output, json_types

# Number of threads that read remote files.
READERS = 16


class ModelBatch:
    """A model as a callable for `ray.data.Dataset.map_batches`.

    An actor loads the model once, and then processes one batch after another. It needs
    no Ray: a batch is a dict of columns. Subclasses implement `rows`. They set the
    `runtimes` of the program, the class of an `output`, and the columns of the result:
    names of its schema, `fields` and, for the attention maps, `map_fields`.

    Args:
        model: Name of a preset, or path of a folder or LiteRT file on every node.
        column: Column of the inputs.
        maps: Whether the result has the columns of `map_fields`.
        runtime: `"litert"`, `"keras"`, or `"auto"`: LiteRT if the model has a LiteRT
            file, and it has the options that are given.
        threads: Number of threads of LiteRT; give the actor as many CPUs (`num_cpus`).
        batch_size: Number of inputs that Keras processes at a time.
        search: Dict of options of the beam search. The others are those of the file on
            LiteRT, and the defaults on Keras.
        options: Dict of further arguments of `Task.from_preset`.
        max_bytes: Maximum size of an input that is read from a file, in bytes.
        filesystem: The `pyarrow.fs.FileSystem` of inputs that are paths; by default
            that of the URI, or the local one.

    Raises:
        UserError: If the model cannot be loaded, or the options contradict one another.
    """

    runtimes: Runtimes
    output: ClassVar[type[Output]]
    fields: ClassVar[tuple[str, ...]]
    map_fields: ClassVar[tuple[str, ...]]

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
        max_bytes=files.MAX_BYTES,
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
        with files.at_most(max_bytes):
            self.model = self.runtimes.load(
                model, config, search=self.search, **options or {}
            )

    @classmethod
    def columns_of(cls, maps):
        """Return the columns of the result and their types, with those of the maps."""
        names = (*cls.fields, *(cls.map_fields if maps else ()))
        types = json_types(cls.output.schema)
        return {name: types[name] for name in names} | {"error": str}

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
        with files.at_most(self.max_bytes):
            results = iter(self.rows([x for x, error in pairs if error is None]))
        rows = [
            next(results) if error is None else {"error": error} for error in errors
        ]
        inputs = dict(batch)
        if any(isinstance(value, bytes) for value in values):
            del inputs[self.column]
        columns = {x: _column(rows, x, kind) for x, kind in self.columns.items()}
        return {**inputs, **columns}

    def rows(self, values):
        """Return a dict for each input of a batch, with `error` if it failed."""
        raise NotImplementedError

    def contents(self, values):
        """Return inputs with the bytes, or the error, of a remote file for its path."""
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(self._content, values))

    def _content(self, value):
        filesystem, path = self.filesystem, value
        if not isinstance(value, str) or not (filesystem or "://" in value):
            return value
        try:
            if filesystem is None:
                filesystem, path = located(value)
            with filesystem.open_input_stream(path) as file:
                return files.read_all(file, value)
        # Errors of Arrow are subclasses of these.
        except (OSError, ValueError) as error:
            return UserError(f"Cannot read {value!r}: {reason(error)}")


def details(result, columns):
    """Return the columns of a `Caption` or a `Translation`."""
    fields = vars(result) | result.details()
    return {name: fields[name] for name in columns if name in fields}


def _column(rows, name, kind):
    """Return a column as an array; a missing value is `None`, NaN, or an empty list."""
    is_list, others = get_origin(kind) is list, {float: np.nan, bool: False}
    empty: Any = [] if is_list else others.get(kind)
    column = np.empty(len(rows), kind if kind in (float, bool) else object)
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
    try:
        # Without "local", Ray would connect to the cluster that RAY_ADDRESS names.
        ray.init(
            address or "local",
            include_dashboard=None if address else False,
            logging_level=logging.WARNING,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        location = repr(address) if address else "this machine"
        raise UserError(f"cannot use Ray at {location}: {reason(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def run(inputs, model_batch, parts, *, config, arguments, progress=None):
    """Process all inputs that have no results yet.

    Returns the number of rows written, of those with an error, and of earlier ones.
    """
    with cluster(config.address) as ray:
        require("ray.data").DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        finished = parts.finished()
        resources, arguments, actors = _resources(ray, config, arguments)
        data = (
            inputs(finished)
            .map_batches(
                model_batch,
                fn_constructor_kwargs={**arguments, "column": "value"},
                batch_size=arguments["batch_size"],
                compute=ray.data.ActorPoolStrategy(
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
        try:
            for part in data.iter_rows():
                if part["problem"]:
                    raise UserError(f"cannot write {parts.name!r}: {part['problem']}")
                rows, errors = rows + part["rows"], errors + part["errors"]
                if progress:
                    progress(part["rows"])
        # These are bugs; other errors are those of the cluster, such as a lost actor.
        except (ray.exceptions.RayTaskError, ray.exceptions.UserCodeException):
            raise
        except ray.exceptions.RayError as error:
            raise UserError(f"Ray failed: {reason(error)}") from error
        return rows, errors, len(finished)


def _write(table, *, parts):
    """Write a table as a part, and return a table with its counts or the problem."""
    pa, rows, errors, problem = require("pyarrow"), 0, 0, None
    try:
        rows, errors = parts.write(table.to_pydict())
    except OSError as error:
        problem = reason(error)
    problems = pa.array([problem], pa.string())
    return pa.table({"rows": [rows], "errors": [errors], "problem": problems})


def _resources(ray, config, arguments):
    """Return the resources of an actor, its arguments, and the number of actors."""
    available = ray.cluster_resources()
    threads = arguments.get("threads") or 1
    arguments = {**arguments, "threads": threads}
    if available.get("GPU") and not _is_on_litert(arguments):
        arguments["runtime"] = "keras"
        actors = config.actors or int(available["GPU"])
        return {"num_gpus": 1, "num_cpus": threads}, arguments, actors
    actors = config.actors or max(int(available.get("CPU", 1) // threads), 1)
    # If each actor reserved a whole CPU, none would be left for the tasks that read and
    # write, and the last actor would not start. Ray allows fractions below one only.
    cpus = 1 - 2 * IO_CPUS if threads == 1 else threads
    return {"num_cpus": cpus}, arguments, actors


def check_options(config, excluded):
    """Raise a `UserError` for options that `--engine ray` does not support."""
    for name in excluded:
        if (value := getattr(config, name)) != getattr(type(config), name):
            option = name.replace("_", "-")
            raise UserError(
                f"--{option} cannot be used with --engine ray. Received: {value}"
            )
    if config.output is None:
        raise UserError(
            "--engine ray needs --output, the name of a folder that ends in .parquet "
            "or .jsonl. Received: none"
        )


def run_command(
    program, inputs, model_batch, config, filesystem, describe_input=dict, **options
):
    """Run a bulk inference, print its totals, and return the exit code.

    `describe_input` returns a dict of properties of the input, such as its digest,
    which must be those of the job that is resumed. `**options` are those of
    `model_batch`.
    """
    require("ray.data")
    bulk, runtime = config.bulk, config.runtime
    parts = Parts(config.output, model_batch.columns_of(bulk.maps))
    local = isinstance(filesystem, require("pyarrow.fs").LocalFileSystem)
    decisive = {
        # Workers may have another working directory.
        "model": model_batch.runtimes.with_absolute_paths(config.model.name),
        "maps": bulk.maps,
        "search": config.search.given,
        "options": config.model.options,
        **options,
    }
    arguments = {
        **decisive,
        "runtime": runtime.runtime,
        "threads": runtime.threads,
        "batch_size": config.batch_size,
        "max_bytes": config.reading.max_bytes,
        "filesystem": None if local else filesystem,
    }
    _check_model(model_batch, arguments)
    decisive |= {"options": changes_in(config.model.options), **describe_input()}
    decisive |= {"column": bulk.column, "id_column": bulk.id_column}
    with parts.locked(), progress_bar(unit="row") as bar:
        parts.begin(decisive)
        options = {"config": bulk, "arguments": arguments, "progress": bar.update}
        rows, errors, earlier = run(inputs, model_batch, parts, **options)
    print(
        f"{program}: wrote {rows:,} rows to {parts.name}, {errors:,} of them with an "
        f"error; {earlier:,} rows were written by earlier runs",
        file=sys.stderr,
    )
    return 2 if errors else 0


def _is_on_litert(arguments):
    is_file = files.is_litert(arguments["model"])
    return is_file or arguments.get("runtime") == "litert"


def _check_model(model_batch, arguments):
    """Raise a `UserError` for a missing model, or options that contradict one another.

    Otherwise, an actor would find them after the output was begun.
    """
    model, runtimes = arguments["model"], model_batch.runtimes
    # Loading a model that is missing raises the error that lists the presets.
    if _is_on_litert(arguments) or not runtimes.files(model):
        model_batch(column="value", **{**arguments, "threads": 1})
    else:
        runtimes.search_options(arguments["search"])


# Number of names in a block, and of lines that one task reads. An actor processes whole
# blocks, so that large ones would leave actors without work.
BLOCK = 256
# Number of rows of a Parquet file that are read at once.
ROWS = 64
# CPUs that Ray reserves for a task that reads or writes files.
IO_CPUS = 0.1


def find_files(filesystem, folders, suffixes):
    """Return the paths of the files in folders, recursively."""
    fs = require("pyarrow.fs")
    paths = []
    for info in filesystem.get_file_info(folders):
        if info.type != fs.FileType.Directory:
            paths.append(info.path)
            continue
        selector = fs.FileSelector(info.path, recursive=True)
        inside = [x for x in filesystem.get_file_info(selector) if x.is_file]
        names = sorted(
            x.path
            for x in inside
            if f".{x.extension.lower()}" in suffixes and not x.base_name.startswith(".")
        )
        if not names:
            raise UserError(
                f"expected files {', '.join(sorted(suffixes))} in {info.path!r}. "
                f"Received: {len(inside)} other files"
            )
        paths += names
    return paths


def from_names(names, finished):
    pa = require("pyarrow")
    names = pa.array(names, pa.string())
    table = _unfinished(pa.table({"id": names, "value": names}), finished)
    return _in_blocks(table, BLOCK)


def _in_blocks(table, size):
    """Return a dataset of a table, in blocks of `size` rows."""
    blocks = [table.slice(i, size) for i in range(0, len(table), size)]
    return require("ray.data").from_arrow(blocks or [table])


def _map_rows(rows, schema, function, **options):
    """Return a dataset of what a function returns of each row, a dict, in a task."""
    table = require("pyarrow").Table.from_pylist(rows, schema)

    def call(table):
        (row,) = table.to_pylist()
        return function(**row, **options)

    return _in_blocks(table, 1).map_batches(
        call, batch_size=1, batch_format="pyarrow", num_cpus=IO_CPUS
    )


def from_parquet(filesystem, paths, column, id_column, finished):
    """Return a dataset of a column; a damaged file is a row with its path as the id."""
    pa = require("pyarrow")
    paths = find_files(filesystem, paths, {".parquet"})
    options = {"filesystem": filesystem, "column": column, "id_column": id_column}
    for path in paths:
        with contextlib.suppress(OSError, pa.ArrowException):
            # A wrong option is an error before the inference starts.
            next(_rows_of_parquet(path, **options), None)
            break
    schema = pa.schema({"path": pa.string()})
    rows = [{"path": path} for path in paths]
    return _map_rows(rows, schema, _rows_of_file, finished=finished, **options)


def _rows_of_parquet(path, *, filesystem, column, id_column):
    """Yield tables of ids and values."""
    pa, parquet = require("pyarrow"), require("pyarrow.parquet")
    with filesystem.open_input_file(path) as opened:
        file = parquet.ParquetFile(opened)
        names = file.schema_arrow.names
        for name in (column, id_column):
            if name not in names:
                raise UserError(
                    f"expected a column {name!r} in {path!r} (--column, --id-column). "
                    f"Received: {listed(name, names)}{did_you_mean(name, names)}"
                )
        # One group after the other, so that those before a damaged one are read.
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(ROWS, [group], [id_column, column]):
                ids, values = batch[id_column].cast(pa.string()), batch[column]
                if pa.types.is_struct(values.type):
                    values = values.field("bytes")
                yield pa.table({"id": ids, "value": values})


def _rows_of_file(path, *, finished, **options):
    """Yield tables of the rows of a file; one more has the error of a damaged file."""
    pa = require("pyarrow")
    try:
        for table in _rows_of_parquet(path, **options):
            errors = pa.nulls(len(table), pa.string())
            yield _unfinished(table.append_column("error", errors), finished)
    except (OSError, pa.ArrowException, UserError) as error:
        message = f"Cannot read {path!r}: {reason(error)}"
        yield pa.table({"id": [path], "value": pa.nulls(1), "error": [message]})


def from_lines(filesystem, path, finished):
    """Return a dataset of the lines of a text file, as bytes without line feeds.

    The id of a line is its number. The file is read once to find the line offsets.
    """
    pa = require("pyarrow")
    schema = pa.schema({"number": pa.int64(), "start": pa.int64()})
    options = {"filesystem": filesystem, "path": path, "finished": finished}
    return _map_rows(list(_starts(filesystem, path)), schema, _lines, **options)


def text_digest(filesystem, path):
    """Return a dict with the size and digest of a text, whose ids are line numbers."""
    digest, size = hashlib.blake2b(digest_size=DIGEST), 0
    with filesystem.open_input_stream(path) as file:
        while chunk := file.read(files.CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"input_size": size, "input_digest": digest.hexdigest()}


def _starts(filesystem, path):
    """Yield the number and the byte offset of the first line of every chunk."""
    with _buffered(filesystem, path) as file:
        if file.peek(4).startswith(tuple(files.MARKS)):
            raise UserError(
                f"expected UTF-8 in {path!r}. Received: UTF-16 or UTF-32. Save it as "
                "UTF-8"
            )
        start = 0
        for number, line in enumerate(file):
            if number % BLOCK == 0:
                yield {"number": number + 1, "start": start}
            start += len(line)


def _lines(number, start, *, filesystem, path, finished):
    """Return a table of the lines from an offset on."""
    with _buffered(filesystem, path) as file:
        file.seek(start)
        lines = [line.rstrip(b"\r\n") for line in itertools.islice(file, BLOCK)]
    if start == 0:
        lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
    ids = list(map(str, range(number, number + len(lines))))
    return _unfinished(require("pyarrow").table({"id": ids, "value": lines}), finished)


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

    def slashes(uri):
        scheme = uri[1].lower()
        return f"{scheme}:///" if scheme == "file" else f"{scheme}://"

    return _URI.sub(slashes, str(path), count=1)


def located_all(paths):
    """Return the file system of several paths, and the paths inside it."""
    filesystems, inside = zip(*map(located, paths), strict=True)
    if any(filesystem != filesystems[0] for filesystem in filesystems):
        raise UserError(
            "expected inputs on one file system. Received: "
            f"{', '.join(map(str, paths))}"
        )
    return filesystems[0], list(inside)


def require(name):
    """Import a module of Ray or pyarrow, which are optional."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f'--engine ray needs Ray and pyarrow: pip install . "./apps[ray]" ({error})'
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
        pa, fs = require("pyarrow"), require("pyarrow.fs")
        kinds = {"id": str, **columns}
        self.schema = pa.schema({name: _type(kind) for name, kind in kinds.items()})
        self.filesystem, self.folder = located(path)
        if self.filesystem.get_file_info(self.folder).type == fs.FileType.File:
            raise UserError(
                f"--output must be a folder. Received a file: {self.name!r}"
            )

    def locked(self):
        """Lock the folder against other jobs. Only a local folder can be locked."""
        local = isinstance(self.filesystem, require("pyarrow.fs").LocalFileSystem)
        return files.locked(Path(self.folder)) if local else contextlib.nullcontext()

    def begin(self, options):
        """Create the folder, or check that its parts have these options."""
        self.filesystem.create_dir(self.folder, recursive=True)
        options, name = json.loads(json.dumps(options)), f"{self.folder}/{OPTIONS}"
        try:
            with self.filesystem.open_input_stream(name) as file:
                before = {**files.parse_json(file.read())}
        except FileNotFoundError:
            before = {}
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{name!r} is damaged ({reason(error)}): choose another output"
            ) from error
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
        self._replace(OPTIONS, files.to_json(options, indent=2).encode())

    def finished(self):
        """Return the sorted digests of the ids that have results; see `digests`.

        Rows with an error are removed, so that their inputs are retried.
        """
        arrays = [digests([])]
        for name in self._names():
            table = self._read(name)
            succeeded = table.filter(table["error"].is_null())
            if not len(succeeded):
                self.filesystem.delete_file(f"{self.folder}/{name}")
            elif len(succeeded) < len(table):
                self._replace(name, self._encode(succeeded))
            arrays.append(digests(succeeded["id"].to_pylist()))
        return np.sort(np.concatenate(arrays))

    def write(self, batch):
        """Write a part with the rows of a batch; return numbers of rows and errors."""
        pa = require("pyarrow")
        arrays = [
            # NaN becomes null, since JSON has no NaN.
            pa.array(list(batch[field.name]), field.type, from_pandas=True)
            for field in self.schema
        ]
        table = pa.table(arrays, self.schema)
        ids = hashlib.blake2b(digest_size=DIGEST)
        ids.update(digests(table["id"].to_pylist()).tobytes())
        name = f"part-{ids.hexdigest()}{self.suffix}"
        self._replace(name, self._encode(table))
        return len(table), len(table) - table["error"].null_count

    def _names(self):
        fs = require("pyarrow.fs")
        entries = self.filesystem.get_file_info(fs.FileSelector(self.folder))
        names = sorted(file.base_name for file in entries)
        return [x for x in names if x.startswith("part-") and x.endswith(self.suffix)]

    def _read(self, name):
        pa, parquet = require("pyarrow"), require("pyarrow.parquet")
        try:
            with self.filesystem.open_input_file(f"{self.folder}/{name}") as file:
                if self.suffix == ".parquet":
                    return parquet.read_table(file, columns=self.schema.names)
                lines = file.read().splitlines()
                rows = [{**files.parse_json(line)} for line in lines]
            return pa.Table.from_pylist(rows, self.schema)
        # Readers of damaged files fail with many types of exceptions.
        except Exception as error:
            raise UserError(
                f"cannot read '{self.folder}/{name}': {reason(error)}. If it is "
                "damaged, remove it"
            ) from error

    def _encode(self, table):
        if self.suffix == ".jsonl":
            lines = [f"{files.to_json(row)}\n" for row in table.to_pylist()]
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
    hashes = [hashlib.blake2b(name, digest_size=DIGEST).digest() for name in names]
    return np.array(hashes, f"S{DIGEST}")


def is_missing(ids, finished):
    """Return a boolean array: which ids are not among the finished ones."""
    wanted = digests(ids)
    if not len(finished):
        return np.ones(len(wanted), bool)
    indices = np.searchsorted(finished, wanted).clip(max=len(finished) - 1)
    return finished[indices] != wanted


def _type(kind):
    """Return the Arrow type of a column."""
    pa = require("pyarrow")
    if get_origin(kind) is list:
        return pa.list_(_type(*get_args(kind)))
    return {str: pa.string(), float: pa.float64(), bool: pa.bool_()}[kind]
