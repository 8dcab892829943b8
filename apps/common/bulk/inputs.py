"""The inputs of a bulk inference as Ray datasets with ids.

`from_names`, `from_parquet`, `from_shards` and `from_lines` return a `ray.data.Dataset`
with the columns `id` and `value`; that of Parquet files and shards also has `error`. A
dataset is lazy: only file names and line offsets are read before the inference starts.
"""

import codecs
import contextlib
import functools
import hashlib
import io
import itertools
import posixpath
import tarfile

from keras_attention_apps.common.bulk.parts import DIGEST, is_missing, require
from keras_attention_apps.common.errors import UserError, did_you_mean, listed, reason
from keras_attention_apps.common.files import CHUNK, MARKS, ArchiveMember

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
    pa, data = require("pyarrow"), require("ray.data")
    table = pa.table({"id": pa.array(ids), "value": pa.array(values)})
    table = table.filter(pa.array(is_missing(ids, finished)))
    blocks = [table.slice(i, BLOCK) for i in range(0, len(table), BLOCK)]
    return data.from_arrow(blocks or [table])


def from_parquet(filesystem, paths, column, id_column, finished):
    """Return a dataset of a column of Parquet files.

    A file that is damaged gives a row with the path as its id, and the error.
    """
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

    The id of an image is the path of its shard, a slash, and its key. A shard that is
    damaged gives a row with its path as the id, and the error.
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
    pa, data = require("pyarrow"), require("ray.data")
    table = pa.table({"path": pa.array(paths, pa.string())})
    blocks = [table.slice(i, 1) for i in range(len(table))]
    return data.from_arrow(blocks).map_batches(
        functools.partial(_rows_of_files, read=read, finished=_stored(finished)),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=IO_CPUS,
    )


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

    The id of a line is its number, from 1 on. The file is read once to find the line
    offsets; the tasks read the lines.
    """
    pa, data = require("pyarrow"), require("ray.data")
    starts = list(_starts(filesystem, path))
    schema = pa.schema([("number", pa.int64()), ("start", pa.int64())])
    table = pa.Table.from_pylist(starts, schema)
    blocks = [table.slice(i, 1) for i in range(len(table))]
    read = functools.partial(_lines, filesystem=filesystem, path=path)
    return data.from_arrow(blocks or [table]).map_batches(
        functools.partial(read, finished=_stored(finished)),
        batch_format="pyarrow",
        num_cpus=IO_CPUS,
    )


def text_digest(filesystem, path):
    """Return a dict with the size and the digest of a text file.

    Its ids are line numbers, which do not tell whether it is the same text.
    """
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


def _stored(finished):
    """Put the digests into the object store, once for all tasks of a node."""
    return require("ray").put(finished) if len(finished) else None


def _unfinished(table, finished):
    """Return the rows of a table that are not finished."""
    if finished is None:
        return table
    digests = require("ray").get(finished)
    keep = is_missing(table["id"].to_pylist(), digests)
    return table.filter(require("pyarrow").array(keep))
