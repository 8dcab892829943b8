"""Base class of the tokenizers, and the ids of their special tokens."""

from pathlib import Path
from typing import Self

from keras_attention_apps.common.files import atomic_path, read_file

PAD, START, END, UNKNOWN = range(4)


class StoredTokenizer:
    """Base of the tokenizers, each stored as one file in the folder of a model.

    Subclasses set `file_name`, the `content` of the file, and the ids `banned` from
    searches; they implement `__len__`, the number of ids, and the class method
    `from_content`. Two tokenizers with the same content are the same.
    """

    file_name: str
    content: bytes
    banned: tuple[int, ...]

    def __len__(self) -> int:
        raise NotImplementedError

    @classmethod
    def from_content(cls, content: bytes) -> Self:
        raise NotImplementedError

    @classmethod
    def load(cls, folder: Path) -> Self:
        return cls.from_content(read_file(folder / cls.file_name))

    def save(self, folder: Path) -> None:
        with atomic_path(folder / self.file_name) as temporary:
            temporary.write_bytes(self.content)
