"""A LiteRT model with its tokenizer and metadata, in one file.

As with TensorFlow Lite's own tools, a ZIP archive is appended to the model:
`metadata.json`, the tokenizer, the model card and the licence. LiteRT ignores the
archive, and every ZIP program opens it.
"""

import dataclasses
import io
import zipfile
import zlib
from pathlib import Path

from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import atomic_path, parse_json, to_json
from keras_attention_apps.common.reading import SizeLimitError, check_bytes, read_file
from keras_attention_apps.common.schema import Natural, from_json

# Version of the metadata; files of a later one are refused.
VERSION = 1

METADATA = "metadata.json"

# File identifier of a LiteRT model, after its first four bytes.
IDENTIFIER = b"TFL3"


@dataclasses.dataclass(frozen=True)
class Header:
    """The metadata that the files of all programs have.

    Attributes:
        version: See `VERSION`.
        kind: Kind of program that the file is for.
        model_bytes: Size of the model, which begins the file.
        model_crc32: Its checksum. The archive has those of the other contents.
    """

    version: Natural
    kind: str
    model_bytes: Natural
    model_crc32: Natural


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """A LiteRT file that was read and checked.

    Attributes:
        path: Its path.
        metadata: Dict of the metadata.
        files: Dict from the names of the other files in its archive to their bytes.
    """

    path: Path
    metadata: dict
    files: dict


def write_model_file(path, model, *, kind, metadata, files):
    """Write a LiteRT model with its metadata, atomically.

    Args:
        path: Name of the file.
        model: Bytes of the model.
        kind: Kind of program that it is for, such as `"captioner"`.
        metadata: Dict that JSON can hold.
        files: Dict from names to bytes.
    """
    header = Header(VERSION, kind, len(model), zlib.crc32(model))
    metadata = {**dataclasses.asdict(header), **metadata}
    contents = {METADATA: to_json(metadata, indent=2).encode(), **files}
    with atomic_path(path) as temporary:
        temporary.write_bytes(model)
        with zipfile.ZipFile(temporary, "a", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                # Without a date, equal models give equal files.
                archive.writestr(zipfile.ZipInfo(name), content)


def update_metadata(path, kind, entries):
    """Replace some entries of the metadata of a LiteRT file.

    Args:
        path: Name of the file.
        kind: The expected kind, such as `"captioner"`.
        entries: Dict that JSON can hold.

    Raises:
        UserError: As of `read_model_file`.
    """
    file = read_model_file(path, kind)
    write_model_file(
        path,
        read_file(path)[: file.metadata["model_bytes"]],
        kind=kind,
        metadata={**file.metadata, **entries},
        files=file.files,
    )


def read_model_file(path, kind):
    """Read the metadata of a LiteRT file, and check that the model is complete.

    Args:
        path: Name of the file.
        kind: The expected kind, such as `"captioner"`.

    Returns:
        A `ModelFile`.

    Raises:
        UserError: If it is missing, is no LiteRT model, has no metadata of this kind or
            those of a later version, or is damaged. Nothing of it is executed.
    """
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
        metadata = parse_json(files.pop(METADATA))
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
    return ModelFile(path, metadata, files)
