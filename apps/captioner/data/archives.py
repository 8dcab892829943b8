"""Files inside a tar archive, read without unpacking it."""

import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from keras_attention_apps.common.archives import ArchiveMember
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.reading import check_bytes, opened, read_file


@dataclass(frozen=True)
class ArchivedFile:
    """A file in a `.tar` archive, with the attributes of `Path` that readers need.

    Attributes:
        archive: Path of the archive.
        inside: Name of the file in the archive.
        offset, size: Position and size of its contents in the archive, in bytes.
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
        """The name up to the first dot, which all files of a sample share.

        This is WebDataset's convention: everything after the first dot is the suffix.
        """
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
    """Yield the samples of an archive: successive files with the same stem.

    Args:
        archive: Path of an uncompressed `.tar` file.

    Yields:
        Pairs of the name that they share and the list of `ArchivedFile`s.

    Raises:
        UserError: If the archive cannot be read.
    """
    key, files = None, []
    try:
        with (
            opened(archive) as tar,
            tarfile.open(fileobj=tar, mode="r:", tarinfo=ArchiveMember) as archived,
        ):
            for member in archived:
                file = ArchivedFile(
                    archive, member.name, member.offset_data, member.size
                )
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
