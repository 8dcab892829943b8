"""Models as LiteRT files, which run without Keras."""

import collections
import dataclasses
import functools
import io
import json
import os
import queue
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self, TypeVar

from keras_attention_apps.common.confidence import Described
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import (
    SizeLimitError,
    StrPath,
    atomic_path,
    check_bytes,
    read_file,
    to_json,
)
from keras_attention_apps.common.inference import hypotheses
from keras_attention_apps.common.models import find_litert, loading
from keras_attention_apps.common.options import Natural, Range, SearchOptions, from_json
from keras_attention_apps.common.tokenizer import StoredTokenizer

# Version of the metadata; files of a later one are refused.
VERSION = 1

METADATA = "metadata.json"

# File identifier of a LiteRT model, after its first four bytes.
IDENTIFIER = b"TFL3"


@dataclasses.dataclass(frozen=True)
class Header:
    """The metadata that the files of all programs have.

    The model, of this size and checksum, begins the file.
    """

    version: Natural
    kind: str
    model_bytes: Annotated[int, Range(0, 10**12)]
    model_crc32: Annotated[int, Range(0, 2**32 - 1)]


def write_model_file(
    path: StrPath, model: bytes, *, kind: str, metadata: dict, files: dict[str, bytes]
) -> None:
    """Write a LiteRT model with its metadata, atomically."""
    header = Header(VERSION, kind, len(model), zlib.crc32(model))
    metadata = {**dataclasses.asdict(header), **metadata}
    contents = {METADATA: to_json(metadata, indent=2).encode(), **files}
    with atomic_path(path) as temporary:
        temporary.write_bytes(model)
        with zipfile.ZipFile(temporary, "a", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                # Without a date, equal models give equal files.
                archive.writestr(zipfile.ZipInfo(name), content)


def update_metadata(
    path: StrPath,
    kind: str,
    entries: dict[str, Any],
    contents: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Replace some entries of the metadata of a LiteRT file, and some of its files.

    An entry that is `None` is removed.
    """
    metadata, files = read_model_file(path, kind)
    model = read_file(path)[: metadata["model_bytes"]]
    metadata = {k: x for k, x in (metadata | entries).items() if x is not None}
    write_model_file(
        path, model, kind=kind, metadata=metadata, files={**files, **contents}
    )


def read_model_file(path: StrPath, kind: str) -> tuple[dict, dict[str, bytes]]:
    """Return the metadata and the other files of a LiteRT file, and check its model."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no LiteRT file {str(path)!r}")
    content = read_file(path)
    if content[4:8] != IDENTIFIER:
        raise UserError(
            f"expected a LiteRT model. Received: {str(path)!r}, whose first bytes are "
            f"{content[:8]!r}"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            check_bytes(sum(x.file_size for x in archive.infolist()), path)
            files = {name: archive.read(name) for name in archive.namelist()}
        metadata = json.loads(files.pop(METADATA))
        names = [field.name for field in dataclasses.fields(Header)]
        header = from_json(Header, {name: metadata[name] for name in names})
    except SizeLimitError:
        raise
    # Damaged archives fail with nearly every type of exception.
    except Exception as error:
        raise UserError(
            f"{path} is a LiteRT model without the metadata of a {kind}: it is "
            "truncated, or was not written by the export of this program"
        ) from error
    if header.kind != kind:
        raise UserError(f"expected a {kind}. Received: {str(path)!r}, a {header.kind}")
    if header.version > VERSION:
        raise UserError(
            f"{path} has metadata of version {header.version}, and this program reads "
            f"those up to version {VERSION}: install a later one"
        )
    model = memoryview(content)[: header.model_bytes]
    if zlib.crc32(model) != header.model_crc32:
        raise UserError(f"{path} is damaged: its checksum differs")
    return metadata, files


class Runtime:
    """Interpreters of one model, each of which runs one call at a time.

    A plain call uses all threads, and waits for other plain calls. `in_parallel` runs
    calls concurrently, each with its own interpreter and one thread.
    """

    def __init__(self, path: StrPath, threads: int | None = None):
        self.path = path
        self.threads = threads or processors()
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError as error:
            raise UserError(
                "a LiteRT model needs the package ai-edge-litert: "
                f"python -m pip install ai-edge-litert ({error})"
            ) from error
        self._type = Interpreter
        self._sequential: Callable | None = None
        self._lock = threading.Lock()
        self._idle: queue.SimpleQueue = queue.SimpleQueue()

    def __call__(self, signature: str, **inputs: Any) -> dict[str, Any]:
        """Run a signature with all threads; returns a dict of arrays."""
        with self._lock:
            if self._sequential is None:
                self._sequential = self._runners(self.threads)
            # The arrays are copies, so that the next call does not change them.
            return self._sequential(signature)(**inputs)

    def in_parallel(self, signature: str, **inputs: Any) -> dict[str, Any]:
        """Run a signature with one thread, concurrently with other calls."""
        try:
            runners = self._idle.get_nowait()
        except queue.Empty:
            runners = self._runners(1)
        try:
            return runners(signature)(**inputs)
        finally:
            self._idle.put(runners)

    def _runners(self, threads):
        """Return a function from a signature to its runner in a new interpreter."""
        interpreter = self._type(model_path=str(self.path), num_threads=threads)
        return functools.cache(interpreter.get_signature_runner)


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Item = TypeVar("Item")
Result = TypeVar("Result")


class LiteTask(Described):
    """A LiteRT file with its tokenizer and its runtime.

    Subclasses set `noun` (kind of the model, for messages), `presets` (folder of the
    shipped presets), `tokenizer_type`, `search_type` and `metadata_type` (dataclasses
    of the options of the search, and of the metadata, whose fields become attributes).
    `search` and `options` are dicts of the options of the search and of the model.
    """

    noun: str
    presets: Path
    tokenizer_type: type[StoredTokenizer]
    search_type: type[SearchOptions]
    metadata_type: type
    tokenizer: StoredTokenizer
    extra_ids = 0

    def __init__(self, path: StrPath, *, threads: int | None = None):
        self.path = Path(path)
        metadata, files = read_model_file(path, self.noun)
        self.runtime = Runtime(path, threads)
        with loading(self.path, self.noun):
            tokenizer = self.tokenizer_type.file_name
            if tokenizer not in files:
                raise UserError(f"there is no {tokenizer!r}")
            self.tokenizer = self.tokenizer_type.from_content(files[tokenizer])
            names = [field.name for field in dataclasses.fields(self.metadata_type)]
            options = {name: metadata[name] for name in names if name in metadata}
            vars(self).update(vars(from_json(self.metadata_type, options)))
            self.read_description(metadata, files.get)
            if "search" not in metadata:
                raise UserError("search is missing")
            self.search = from_json(self.search_type, metadata["search"]).complete
            self.options = metadata.get("model", {})
            if not isinstance(self.options, dict):
                raise UserError(
                    f"model must be an object. Received: {self.options!r:.60}"
                )

    def _run_search(self, run, signature, n_best, **inputs):
        """Run a search on one input, and return its best hypotheses, best first."""
        (best,) = hypotheses(run(signature, **inputs), n_best)
        largest = max(hypothesis.token_ids.max() for hypothesis in best)
        if largest >= len(self.tokenizer) + self.extra_ids:
            raise UserError(f"its vocabulary has no token {largest}")
        return best

    @classmethod
    def from_preset(cls, name_or_path: StrPath, *, threads: int | None = None) -> Self:
        """Load a `.tflite` file, that of a shipped preset, or that of a folder.

        Raises:
            UserError: If there is no such file, preset or folder.
        """
        return cls(find_litert(name_or_path, cls.presets), threads=threads)

    def search_options(self, **options: Any) -> dict[str, Any]:
        """Return the options of the beam search; others than the file's are refused."""
        for name, value in options.items():
            if name not in self.search or value != self.search[name]:
                fixed = self.search.get(name)
                raise UserError(
                    f"{self.path} searches with {name}={fixed}, which is fixed in the "
                    f"file: export one with {name}={value}"
                )
        return self.search

    def in_parallel(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Yield pairs of an item and its result, in order, from several threads."""
        pending: collections.deque = collections.deque()
        pool = ThreadPoolExecutor(self.runtime.threads)
        try:
            for item in items:
                pending.append((item, pool.submit(function, item)))
                if len(pending) > 2 * self.runtime.threads:
                    item, result = pending.popleft()
                    yield item, result.result()
            for item, result in pending:
                yield item, result.result()
        finally:
            pool.shutdown(cancel_futures=True)
