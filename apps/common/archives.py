"""Members of tar archives."""

import tarfile


class ArchiveMember(tarfile.TarInfo):
    """A member of an archive that raises an error for a damaged header.

    `tarfile` takes such a header for the end of the archive. For example,
    `tarfile.open(path, tarinfo=ArchiveMember)`.
    """

    @classmethod
    def fromtarfile(cls, archive):
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"damaged archive: {error}") from error
