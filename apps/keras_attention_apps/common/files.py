"""Reading files up to a limit in bytes, and writing files and folders atomically."""

import codecs
import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from keras_attention_apps.common.errors import ESCAPED_IN_JSON, UserError, reason
from keras_attention_apps.common.leftovers import (
    KEPT_CHARACTERS,
    TEMPORARY,
    claimed,
    kept_pattern,
    remove_abandoned,
    restore,
)

StrPath = str | os.PathLike[str]
# An open binary file.
Stream = IO[bytes] | gzip.GzipFile
# Function from a folder to the set of the names in it that an output replaces.
OwnNames = Callable[[Path], set[str]]

# Default maximum size of a file, a line, or an expanded member of an archive, in bytes.
MAX_BYTES = 256_000_000
# Names of the standard input, and of the other open files of a process.
STANDARD_INPUT = "-"
OPEN_FILES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def is_open(path: object) -> bool:
    """Return whether a path is that of an open file, whose content differs by run."""
    return str(path) == STANDARD_INPUT or str(path).startswith(OPEN_FILES)


class OpenFile(os.PathLike[str]):
    """An open file of the process, which may be a pipe: it is read only once."""

    def __init__(self, path: os.PathLike[str]):
        self.path = path
        self._content: bytes | None = None
        # Several threads may read it at the same time.
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return str(self.path)

    __fspath__ = __str__

    def read_bytes(self) -> bytes:
        with self._lock:
            if self._content is None:
                self._content = read_file(self.path)
            return self._content


def with_open_files(paths: Iterable[os.PathLike[str]]) -> list[os.PathLike[str]]:
    """Return paths, with one `OpenFile` in place of each path of an open file."""
    open_files = {path: OpenFile(path) for path in paths if is_open(path)}
    return [open_files.get(path, path) for path in paths]


# Bytes that are read at once.
CHUNK = 2**24
_limit = MAX_BYTES
# Beginnings of addresses; a path has only one of the slashes.
_ADDRESS = re.compile(r"(https?|ftp|s3|gs|hf|file):/+", re.IGNORECASE)


class SizeLimitError(UserError):
    """A file, or a part of it, that exceeds the limit in bytes."""


@contextlib.contextmanager
def at_most(count: int) -> Iterator[None]:
    """Set the limit of the whole process, with all its threads, in the context."""
    global _limit
    before, _limit = _limit, count
    try:
        yield
    finally:
        _limit = before


def check_bytes(count: int, name: object, minimum: int = 0) -> None:
    """Raise a `SizeLimitError` if something has more bytes than the limit.

    The limit is `minimum` if nothing else was set.
    """
    limit = max(_limit, minimum) if _limit == MAX_BYTES else _limit
    if count > limit:
        raise SizeLimitError(
            f"{name} has more than {limit:,} bytes; --max-bytes sets the limit"
        )


def check_local(path: StrPath) -> None:
    """Raise a `UserError` if a path is the address of something on the network."""
    address = _ADDRESS.sub(r"\1://", str(path))
    if _ADDRESS.match(address) and not os.path.exists(path):
        raise UserError(
            "expected a path on this computer, since nothing is downloaded. Received "
            f"an address: {address!r}"
        )


def check_input(path: StrPath) -> None:
    """Raise a `UserError` unless a path is a regular file or an open one."""
    if str(path) == STANDARD_INPUT:
        check_standard_input("a regular file, or lines on the standard input")
    elif not str(path).startswith(OPEN_FILES):
        check_local(path)
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise UserError(
                "expected a regular file, or - for the standard input. Received "
                f"{'a folder' if stat.S_ISDIR(mode) else 'a pipe or a device'}: "
                f"{str(path)!r}"
            )


def check_standard_input(expected: str) -> None:
    """Raise a `UserError` if the standard input is closed."""
    # Python sets it to `None`.
    if sys.stdin is None:
        raise UserError(f"expected {expected}. Received: a closed standard input")


def check_read_once(*paths: StrPath | None) -> None:
    if [str(path) for path in paths].count(STANDARD_INPUT) > 1:
        raise UserError(
            "expected - for one input at most, since the standard input is read only "
            "once. Received: several"
        )


@contextlib.contextmanager
def opened(path: StrPath) -> Iterator[IO[bytes]]:
    """Open a regular file, or the standard input as `-`, for reading of bytes."""
    check_input(path)
    if str(path) == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    with open(path, "rb") as file:
        yield file


def read_file(path: StrPath) -> bytes:
    """Return the bytes of a regular file, or of the standard input."""
    with opened(path) as file:
        return read_all(file, path)


def read_all(file: Stream, name: object) -> bytes:
    """Return the bytes of a binary file from here on, up to the limit."""
    content = io.BytesIO()
    while chunk := file.read(CHUNK):
        content.write(chunk)
        check_bytes(content.tell(), name)
    return content.getvalue()


def read_line(file: Stream, name: object) -> bytes:
    """Return the next line of a binary file, up to the limit."""
    line = file.readline(_limit + 1)
    check_bytes(len(line), name)
    return line


# The marks of UTF-32 begin like those of UTF-16.
MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# The first bytes of a file of gzip, and how many times a file may be compressed: some
# downloads are compressed once more on their way, but a crafted file may hold itself.
GZIP = b"\x1f\x8b"
MAX_GZIP = 2
# The first bytes of documents that are no text, and what they are.
_ZIP = b"PK\x03\x04"
_DOCUMENTS = {
    b"%PDF-": "a PDF document",
    b"{\\rtf": "an RTF document",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "a document of an old Microsoft Office",
}
# What the first names and bytes in a ZIP archive say of it.
_ARCHIVES = {
    b"application/epub+zip": "an EPUB book",
    b"application/vnd.oasis.opendocument": "an OpenDocument file",
    b"word/": "a Word document",
    b"xl/": "an Excel workbook",
    b"ppt/": "a PowerPoint presentation",
    b"[Content_Types].xml": "a document of Microsoft Office",
    b"": "a ZIP archive",
}
_ARCHIVE_BYTES = 2**16
# Maximum share of NUL bytes in a text. In Latin text in UTF-16, half of the bytes are
# NUL.
MAX_NUL_SHARE = 0.2


def as_utf8(data: bytes, name: object) -> bytes:
    """Return the bytes of a text as UTF-8 without a byte order mark.

    Gzip is expanded, also twice; UTF-16 and UTF-32 are known by their byte order mark.
    Other bytes are returned as they are, whether or not they are valid UTF-8.
    """
    times = 0
    while data.startswith(GZIP):
        times += 1
        with _expanded(io.BytesIO(data), name, times) as file:
            data = read_all(file, name)
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            try:
                return data.decode(encoding).encode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{name} begins with the byte order mark of {encoding}, but is not "
                    f"{encoding}: {error.reason} at byte {error.start}"
                ) from error
    _check_text(data, name)
    share = data.count(0) / max(len(data), 1)
    if share > MAX_NUL_SHARE:
        raise UserError(
            f"{name} is not UTF-8: {share:.0%} of its bytes are NUL, as in UTF-16 or "
            "UTF-32 without a byte order mark. Save it as UTF-8"
        )
    return data.removeprefix(codecs.BOM_UTF8)


def _check_text(data: bytes, name: object) -> None:
    """Raise a `UserError` for the beginning of a document that is no text."""
    kind = next((x for mark, x in _DOCUMENTS.items() if data.startswith(mark)), None)
    if data.startswith(_ZIP):
        head = data[:_ARCHIVE_BYTES]
        kind = next(x for mark, x in _ARCHIVES.items() if mark in head)
    if kind:
        raise UserError(f"{name} is {kind}: save it as plain text in UTF-8")


def write_or_print(path: StrPath | None, content: bytes) -> None:
    """Write bytes to a file, in one step, or to the standard output if it is `None`."""
    if path is None:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    else:
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)


def utf8_lines(stream: Stream, name: object, times: int = 0) -> Iterator[bytes]:
    """Yield the lines of a binary stream, as UTF-8 with their line feeds.

    A buffered stream may be compressed by gzip, `times` times so far. UTF-16 and UTF-32
    are read as a whole.
    """
    if hasattr(stream, "peek") and stream.peek(len(GZIP)).startswith(GZIP):
        with _expanded(stream, name, times + 1) as file:
            yield from utf8_lines(file, name, times + 1)
        return
    first = read_line(stream, name)
    if first.startswith(tuple(MARKS)):
        # Unlike `splitlines`, this ends lines at line feeds alone.
        yield from io.BytesIO(as_utf8(first + read_all(stream, name), name))
    elif first:
        if first.startswith(_ZIP):
            # The names in it say what it is.
            first += stream.read(_ARCHIVE_BYTES)
        yield as_utf8(first, name)
        yield from iter(lambda: read_line(stream, name), b"")


@contextlib.contextmanager
def _expanded(stream: Stream, name: object, times: int) -> Iterator[gzip.GzipFile]:
    """Yield the file inside a stream that is compressed by gzip, for the nth time."""
    if times > MAX_GZIP:
        raise UserError(f"{name} is compressed by gzip more than {MAX_GZIP} times")
    try:
        # Without a mode, the type of a `GzipFile` as stream would be an error.
        with gzip.GzipFile(fileobj=stream, mode="rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{name} is damaged: {reason(error)}") from error


class ArchiveMember(tarfile.TarInfo):
    """A member of an archive that raises an error for a damaged header.

    Without `tarfile.open(path, tarinfo=ArchiveMember)`, the archive would end there.
    """

    @classmethod
    def fromtarfile(cls, archive):
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":
                raise
            raise tarfile.ReadError(f"damaged archive: {error}") from error


# A model as a LiteRT file, in the folder of a preset.
LITERT = "model.tflite"
# Error numbers of failed writes; Windows lacks some.
_WRITE_ERRORS = {
    getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS")
}


def is_litert(name_or_path: StrPath) -> bool:
    """Return whether the name of a model is the path of a LiteRT file."""
    return Path(name_or_path).suffix.lower() == Path(LITERT).suffix


@contextlib.contextmanager
def atomic_path(path: StrPath) -> Iterator[Path]:
    """Yield a temporary path for a file, which is renamed to `path` on success.

    After an error the temporary file is removed, and an older file at `path` is
    unchanged. The temporary file has the permissions of an older file at `path` from
    the start. Its name keeps the suffixes, since libraries choose a format by them.
    Links are followed; pipes and devices are written to directly.
    """
    check_file(path)
    if is_pipe_or_device(path):
        yield Path(path)
        return
    path, temporary = _with_temporary(path)
    try:
        with errors_naming(path, temporary):
            temporary.touch(mode=0o600 if path.exists() else 0o666)
            if path.exists():
                _copy_mode(path, temporary)
            with claimed(temporary):
                yield temporary
                os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: StrPath, own_names: OwnNames | None = None) -> Iterator[Path]:
    """Yield a new temporary folder, which is renamed to `path` on success.

    An older output, whose names `own_names(path)` returns, is replaced as a whole.
    Other files in its folder are kept, unless the new output has a file of the same
    name. Otherwise as `atomic_path`.
    """
    restore(resolved(path))
    older = check_folder(path, own_names)
    path, temporary = _with_temporary(path)
    aside = temporary.with_name(temporary.name.replace(".part", ".old", 1))
    # A killed process with the same id, as in another container, may have left one.
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with errors_naming(path, temporary):
            temporary.mkdir(mode=0o700 if path.exists() else 0o777)
            if path.exists():
                _copy_mode(path, temporary, also=stat.S_IRWXU)
            with claimed(temporary):
                yield temporary
                for name in _names(path) - older - _names(temporary):
                    copy = shutil.copytree if (path / name).is_dir() else shutil.copy2
                    copy(path / name, temporary / name)
                if path.exists():
                    path.rename(aside)
                try:
                    temporary.rename(path)
                except OSError:
                    if aside.exists():
                        aside.rename(path)
                    raise
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def errors_naming(path: StrPath, temporary: Path | None = None) -> Iterator[None]:
    """Name a file or folder in the errors of writing it, such as of a full disk.

    A temporary path, whose name nobody has given, does not occur in the errors.
    """

    def is_named(error):
        return temporary is not None and temporary.name in str(error)

    try:
        yield
    except OSError as error:
        if error.errno in _WRITE_ERRORS or (error.errno and is_named(error)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        if is_named(error):
            # Some libraries raise it with a message alone.
            raise OSError(_with_name(path, temporary, error)) from error
        raise
    except (UserError, ValueError, RuntimeError) as error:
        # Subclasses may have other arguments than a message.
        if type(error) in (UserError, ValueError, RuntimeError) and is_named(error):
            raise type(error)(_with_name(path, temporary, error)) from error
        raise


def _with_name(path, temporary, error):
    """Return the message of an error with the final path instead of a temporary one."""
    message = str(error).replace(str(temporary), str(path))
    return message.replace(temporary.name, Path(path).name)


def check_file(path: StrPath) -> None:
    """Raise a `UserError` if no file can be written there."""
    fault = None
    if is_pipe_or_device(path):
        return
    if str(path) == STANDARD_INPUT:
        fault = ""
    elif resolved(path).is_dir():
        fault = " a folder"
    elif Path(path).exists() and not os.access(path, os.W_OK):
        fault = " one that is read-only"
    elif (
        Path(path).is_symlink()
        and os.path.abspath(path).startswith(("/dev/", "/proc/"))
        and Path(path).is_file()
    ):
        # Replacing the file would break other processes that write to it.
        fault = " a link to a file of a process"
    if fault is not None:
        raise UserError(
            f"expected the name of a file to write. Received{fault}: {str(path)!r}"
        )
    _check_parents(path)


def check_folder(path: StrPath, own_names: OwnNames | None = None) -> set[str]:
    """Raise a `UserError` if a path must not be replaced by a new folder.

    An empty folder may be, and one with an older output, whose names are returned.
    """
    path = resolved(path)
    if path.exists() and not path.is_dir():
        raise UserError(
            f"expected the name of a folder to write. Received a file: {str(path)!r}"
        )
    _check_parents(path)
    older = own_names(path) if own_names else set()
    if path in (Path.cwd(), *Path.cwd().parents) or (_names(path) and not older):
        also = ", or of one that was written by the same command" if own_names else ""
        raise UserError(
            f"expected the name of a new folder{also}. Received a folder with other "
            f"contents: {str(path)!r}"
        )
    return older


def expanded(path: StrPath) -> Path:
    """Return a path with a leading `~` expanded."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            "expected a path whose ~ is the home folder of a user. "
            f"Received: {str(path)!r}"
        ) from error


def resolved(path: StrPath) -> Path:
    """Return an absolute path without links."""
    try:
        return Path(os.path.realpath(path, strict=True))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
        return Path(os.path.realpath(path))


def is_pipe_or_device(path: StrPath) -> bool:
    """Return whether a path is a pipe or a device, which is written to directly."""
    path = Path(path)
    return path.exists() and not path.is_file() and not path.is_dir()


def _check_parents(path: StrPath) -> None:
    """Raise a `UserError` if the folder of a path cannot be created or written to."""
    nearest = resolved(path).parent
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    is_folder = nearest.is_dir()
    if not is_folder or not os.access(nearest, os.W_OK):
        fault = "one that is not writable" if is_folder else "a file"
        raise UserError(
            f"expected a folder to write {Path(path).name!r} to. Received {fault}: "
            f"{str(nearest)!r}"
        )


def holds(folder: Path, names: Iterable[str]) -> bool:
    return all((folder / name).exists() for name in names)


def remove_folder(path: Path) -> None:
    """Remove a folder atomically: it is renamed first."""
    aside = path.with_name(f".old-{os.getpid()}-{path.name}")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Remove the incomplete folders of killed processes."""
    for state in ("part", "old"):
        for path in folder.glob(f".{state}-[0-9]*-{pattern}"):
            shutil.rmtree(path, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Restore a folder that a killed process was replacing; remove incomplete ones.

    The caller holds a lock, so that no other process writes the folder.
    """
    aside = path.parent.glob(f".old-[0-9]*-{kept_pattern(path)}")
    if not path.exists() and (latest := max(aside, key=os.path.getmtime, default=None)):
        latest.rename(path)
    remove_leftovers(path.parent, kept_pattern(path))


def _names(folder: Path) -> set[str]:
    """Return the names in a folder, which need not exist, without temporary ones."""
    if not folder.exists():
        return set()
    return {name for name in os.listdir(folder) if not TEMPORARY.fullmatch(name)}


def _copy_mode(path: Path, temporary: Path, also: int = 0) -> None:
    """Give a temporary file or folder the permissions of another one, and `also`."""
    # Some file systems have no permissions.
    with contextlib.suppress(OSError):
        temporary.chmod(stat.S_IMODE(path.stat().st_mode) | also)


def _with_temporary(path: StrPath) -> tuple[Path, Path]:
    """Return the resolved path and a temporary path beside it; create the folder."""
    path = resolved(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent)
    return path, path.with_name(f".part-{os.getpid()}-{path.name[-KEPT_CHARACTERS:]}")


def to_json(value: Any, **layout: Any) -> str:
    """Return a value as JSON; what UTF-8 or a terminal cannot show is escaped."""
    text = json.dumps(value, ensure_ascii=False, **layout)
    text = text.translate(ESCAPED_IN_JSON)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_json(path: StrPath, value: Any) -> None:
    """Write a value as readable JSON, atomically."""
    text = to_json(value, indent=2, default=str)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: StrPath) -> Any:
    """Read a file of JSON; see `parse_json`."""
    return parse_json(read_file(path).decode("utf-8"))


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return the value of a text in JSON, a string or bytes."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def check_distinct(
    inputs: Iterable[StrPath | None], *outputs: StrPath | None, whole: bool = True
) -> None:
    """Raise a `UserError` if an output is an input, or a file in an input folder.

    Links and other spellings of a name make no difference, and inputs need not exist.
    An output in place of a hard link leaves the other name of the file as it is. A
    terminal or another device may be input and output. With `whole`, an output is
    replaced as a whole, so that no input may be inside it.
    """
    names = ("/dev/stdin" if str(x) == STANDARD_INPUT else x for x in inputs if x)
    read = {Path(os.path.realpath(expanded(name))) for name in names}
    for output in outputs:
        if output is None or is_pipe_or_device(output):
            continue
        path = Path(os.path.realpath(output))
        if any(
            path == x
            or (path.is_relative_to(x) and path.is_file())
            or (whole and x.is_relative_to(path))
            for x in read
        ):
            raise UserError(
                "expected an output that is not an input. "
                f"Received: {str(Path(output))!r}"
            )


LOCK = ".lock"
# Error numbers of file systems without locks.
_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes, and create it if needed.

    At the end the lock is removed, and so is an empty folder. The system releases the
    lock of a killed process. On file systems without locks, nothing is locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _held(folder / LOCK, "folder", folder):
            yield
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def locked_file(path: StrPath) -> Iterator[None]:
    """Lock a file, which need not exist, by a hidden file beside it; see `locked`."""
    target = resolved(path)
    # A longer name would exceed the limit of the system.
    name = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]
    with _held(target.with_name(f".{name}{LOCK}"), "file", path):
        yield


@contextlib.contextmanager
def _held(lock: Path, kind: str, name: StrPath) -> Iterator[None]:
    """Hold the lock of an output; `kind` and `name` describe it in errors."""
    import filelock

    held = filelock.FileLock(lock)
    try:
        # The library would create a missing folder.
        lock.parent.stat()
        held.acquire(blocking=False)
    except filelock.Timeout as error:
        raise UserError(
            f"expected an output {kind} to which no other process writes. "
            f"Received: {str(name)!r}"
        ) from error
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise OSError(error.errno, error.strerror, str(name)) from error
    try:
        yield
    finally:
        # Another process that waits for this file finds that it was removed. Windows
        # removes no open file, and so none of another process.
        ends = [lock.unlink, held.release, *([lock.unlink] if os.name == "nt" else [])]
        for end in ends:
            with contextlib.suppress(OSError):
                end()
