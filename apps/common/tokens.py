"""Special tokens, the same in every vocabulary, and the storage of tokenizers."""

from keras_attention_apps.common.files import write_files
from keras_attention_apps.common.reading import read_file

PAD, START, END, UNKNOWN = range(4)


class StoredTokenizer:
    """Base of the tokenizers, each stored as one file in the folder of a model.

    Subclasses set `file_name` and implement `files` and `from_files`.
    """

    file_name = None

    @classmethod
    def from_files(cls, files):
        """Return the tokenizer from a dict of names and contents of files."""
        raise NotImplementedError

    @property
    def files(self):
        """Dict from the name of the file to its content."""
        raise NotImplementedError

    @classmethod
    def load(cls, folder):
        """Read the tokenizer of a model from its folder."""
        return cls.from_files({cls.file_name: read_file(folder / cls.file_name)})

    def save(self, folder):
        """Write the tokenizer into the folder of a model."""
        write_files(folder, self.files)
