"""The inputs of a bulk inference as Ray datasets with ids.

Every function returns a `ray.data.Dataset` with the columns `id` and `value`. It is
lazy: only file names and line offsets are read before the inference starts.
"""

import codecs
import functools
import io

from keras_attention_apps.common.bulk.locations import require
from keras_attention_apps.common.bulk.parts import is_missing
from keras_attention_apps.common.cli import UserError, reason
from keras_attention_apps.common.encodings import MARKS

# Number of names in a block, and of lines that one task reads.
BLOCK = 1024
# CPUs that Ray reserves for a task that reads or writes files.
IO_CPUS = 0.1


def found_files(filesystem, folders, suffixes):
    """Return the paths of the files in folders, recursively.

    Args:
        filesystem: The `pyarrow.fs.FileSystem`.
        folders: Paths of folders or files; a file is kept, even if it is missing.
        suffixes: Set of suffixes in lower case.

    Raises:
        UserError: If a folder contains no such file.
    """
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
    """Return a dataset of values, such as names of files.

    Args:
        ids, values: Lists of strings.
        finished: Sorted digests of the ids to leave out.
    """
    pa, data = require("pyarrow"), require("ray.data")
    table = pa.table({"id": pa.array(ids), "value": pa.array(values)})
    table = table.filter(pa.array(is_missing(ids, finished)))
    blocks = [table.slice(i, BLOCK) for i in range(0, len(table), BLOCK)]
    return data.from_arrow(blocks or [table])


def from_parquet(filesystem, paths, column, id_column, finished):
    """Return a dataset of a column of Parquet files.

    Args:
        filesystem, paths: File system, and paths of the files or folders.
        column: Column of the values: strings, bytes, or structs with a field `bytes`,
            as in Hugging Face's image datasets.
        id_column: Column of the ids.
        finished: Sorted digests of the ids to leave out.

    Raises:
        UserError: If the files cannot be read, or lack a column.
    """
    columns = list(dict.fromkeys([id_column, column]))
    _check_columns(filesystem, paths, columns)
    data = require("ray.data").read_parquet(
        paths,
        filesystem=filesystem,
        columns=columns,
        num_cpus=IO_CPUS,
    )
    return data.map_batches(
        functools.partial(
            _selected, id_column=id_column, column=column, finished=_shared(finished)
        ),
        batch_format="pyarrow",
        num_cpus=IO_CPUS,
    )


def _check_columns(filesystem, paths, columns):
    """Raise a `UserError` if Parquet files cannot be read, or lack a column."""
    try:
        files = require("pyarrow.dataset").dataset(
            paths[0], filesystem=filesystem, format="parquet"
        )
        names = files.schema.names
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {paths[0]!r}: {reason(error)}") from error
    for column in columns:
        if column not in names:
            raise UserError(
                f"expected a column {column!r} in {paths[0]!r} (--column, "
                f"--id-column). Received: {', '.join(names)}"
            )


def _selected(table, *, id_column, column, finished):
    pa, compute = require("pyarrow"), require("pyarrow.compute")
    ids, values = table[id_column], table[column]
    if pa.types.is_struct(values.type):
        values = compute.struct_field(values, "bytes")
    table = pa.table({"id": ids.cast(pa.string()), "value": values})
    return _missing(table, finished)


def from_shards(filesystem, paths, suffixes, finished):
    """Return a dataset of the images in WebDataset shards (tar files).

    The id of an image is the path of its shard, a slash, and its key.

    Args:
        filesystem, paths: File system, and paths of the shards.
        suffixes: Set of image suffixes.
        finished: Sorted digests of the ids to leave out.
    """
    extensions = [suffix.removeprefix(".") for suffix in sorted(suffixes)]
    data = require("ray.data").read_webdataset(
        paths,
        filesystem=filesystem,
        decoder=None,
        suffixes=extensions,
        include_paths=True,
        num_cpus=IO_CPUS,
    )
    return data.map_batches(
        functools.partial(_samples, names=extensions, finished=_shared(finished)),
        batch_format="pyarrow",
        num_cpus=IO_CPUS,
    )


def _samples(table, *, names, finished):
    pa, compute = require("pyarrow"), require("pyarrow.compute")
    found = [table[name] for name in names if name in table.column_names]
    columns = table["path"].to_pylist(), table["__key__"].to_pylist()
    ids = [f"{shard}/{key}" for shard, key in zip(*columns, strict=True)]
    value = compute.coalesce(*found) if found else pa.nulls(len(table), pa.binary())
    return _missing(pa.table({"id": pa.array(ids), "value": value}), finished)


def from_lines(filesystem, path, finished):
    """Return a dataset of the lines of a text file, as bytes without line feeds.

    The id of a line is its number, from 1 on. The file is read once to find the line
    offsets; the tasks read the lines.
    """
    pa, data = require("pyarrow"), require("ray.data")
    starts = list(_starts(filesystem, path))
    table = pa.Table.from_pylist(
        starts, pa.schema([("number", pa.int64()), ("start", pa.int64())])
    )
    blocks = [table.slice(i, 1) for i in range(len(table))]
    return data.from_arrow(blocks or [table]).map_batches(
        functools.partial(
            _lines, filesystem=filesystem, path=path, finished=_shared(finished)
        ),
        batch_format="pyarrow",
        num_cpus=IO_CPUS,
    )


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
    return _missing(table, finished)


def _buffered(filesystem, path):
    return io.BufferedReader(filesystem.open_input_file(path), 2**20)


def _shared(finished):
    """Put the digests into the object store, once for all tasks of a node."""
    return require("ray").put(finished) if len(finished) else None


def _missing(table, finished):
    """Return the rows of a table that are not finished."""
    if finished is None:
        return table
    digests = require("ray").get(finished)
    keep = is_missing(table["id"].to_pylist(), digests)
    return table.filter(require("pyarrow").array(keep))
