"""Files that stay inside an archive, read from where they lie."""

import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from keras_attention_apps.common.cli import UserError


@dataclass(frozen=True)
class ArchivedFile:
    """A file of a `.tar` archive: as much of a path as readers need.

    Attributes:
        archive: Path of the archive.
        inside: Its name in there.
        offset, size: Where its contents are, in bytes.
    """

    archive: Path
    inside: str
    offset: int
    size: int

    @property
    def name(self):
        """The file's own name."""
        return PurePosixPath(self.inside).name

    @property
    def stem(self):
        """Its name up to the first dot, by which the files of a sample belong together.

        As WebDataset has it: a second dot belongs to what kind of file it is.
        """
        return self.name.partition(".")[0]

    @property
    def suffix(self):
        """The last dot of its name and what is behind it, in lower case."""
        return PurePosixPath(self.inside).suffix.lower()

    def __str__(self):
        return f"{self.archive}/{self.inside}"

    def read_bytes(self):
        with open(self.archive, "rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def archived_samples(archive):
    """The samples of an archive: files that lie together and share all but the suffix.

    Args:
        archive: Path of an uncompressed `.tar` file.

    Yields:
        Pairs of the name that they share and the list of `ArchivedFile`s.

    Raises:
        UserError: If it is no such archive.
    """
    key, files = None, []
    try:
        with tarfile.open(archive, "r:") as archived:
            for member in archived:
                file = ArchivedFile(
                    archive, member.name, member.offset_data, member.size
                )
                # Archives made on a Mac bring a hidden `._name` beside every file.
                if not member.isfile() or file.name.startswith("."):
                    continue
                its_key = str(PurePosixPath(member.name).with_name(file.stem))
                if key not in (None, its_key):
                    yield key, files
                    files = []
                key = its_key
                files.append(file)
    except (tarfile.TarError, OSError) as error:
        raise UserError(
            f"{archive}: expected an uncompressed tar archive, but found {error}"
        ) from error
    if files:
        yield key, files
