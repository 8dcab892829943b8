"""A model as a callable that processes batches of columns."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from keras_attention_apps.common.errors import UserError, reason
from keras_attention_apps.common.files import MAX_BYTES, at_most, read_all
from keras_attention_apps.common.hypotheses import check_batch_size
from keras_attention_apps.common.options import RuntimeConfig

# Number of threads that read remote files.
READERS = 16


@dataclasses.dataclass(frozen=True)
class Failure:
    """An input that cannot be read."""

    reason: str


class ModelBatch:
    """A model as a callable for `ray.data.Dataset.map_batches`.

    An actor loads the model once, and then processes one batch after another. It needs
    no Ray: a batch is a dict of columns.

    Subclasses set the attributes and implement `rows`.

    Attributes:
        runtimes: The `Runtimes` of the program.
        fields: Dict from the columns of the result to their types: `str`, `float`,
            `bool`, or a list with the type of its items.
        map_fields: As `fields`, for the attention maps.

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
            self.model = self.runtimes.load(
                # With `count=1`, "auto" prefers LiteRT, the runtime for actors on CPUs.
                model,
                config,
                count=1,
                search=self.search,
                **options or {},
            )

    @classmethod
    def columns_of(cls, maps):
        """Return the columns of the result and their types, with those of the maps."""
        return {**cls.fields, **(cls.map_fields if maps else {}), "error": str}

    def __call__(self, batch):
        """Process a batch.

        Args:
            batch: Dict of columns, arrays or lists of equal length.

        Returns:
            Dict of the columns of the batch and those of the result. The column of the
            inputs is left out if it contains bytes. Where an input cannot be read,
            `error` has the reason, and the other columns of the result are empty;
            elsewhere it is `None`. A row of the batch that has an `error`, a string
            that is not empty, keeps it.

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
        """Return inputs with the bytes of each remote file in place of its path.

        A file that cannot be read is a `Failure`.
        """
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
            return Failure(f"Cannot read {value!r}: {reason(error)}")


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
