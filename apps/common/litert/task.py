"""Base class of the models that run on LiteRT."""

import collections
import dataclasses
from concurrent.futures import ThreadPoolExecutor

from keras_attention_apps.common.calibration import Described
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.hypotheses import hypotheses
from keras_attention_apps.common.litert.model_file import read_model_file
from keras_attention_apps.common.litert.runtime import Runtime
from keras_attention_apps.common.presets import find_litert, loading
from keras_attention_apps.common.schema import from_json


class LiteTask(Described):
    """A LiteRT file with its tokenizer and its runtime.

    Subclasses set `noun` (kind of the model, for messages), `presets` (folder of the
    shipped presets), `tokenizer_type` (class of the tokenizer, with `from_files`),
    `search_type` (dataclass of the options of the search) and `metadata_type`
    (dataclass of the metadata, whose fields become attributes).

    Args:
        path: Name of a file that the export of the program has written.
        threads: Number of threads; by default one per processor.

    Attributes:
        tokenizer: The tokenizer.
        extra_ids: Number of ids beyond the vocabulary.
        search: Dict of the options of the beam search.
        options: Dict of the options of the model, as in its configuration.

    Raises:
        UserError: If the file cannot be read, or the package of LiteRT is missing.
    """

    metadata_type = None
    extra_ids = 0

    def __init__(self, path, *, threads=None):
        file = read_model_file(path, self.noun)
        self.path = file.path
        with loading(self.path, self.noun):
            tokenizer = self.tokenizer_type.file_name
            if tokenizer not in file.files:
                raise UserError(f"there is no {tokenizer!r}")
            self.tokenizer = self.tokenizer_type.from_files(file.files)
            self._read_metadata(file.metadata)
        self.runtime = Runtime(path, threads)

    def _read_metadata(self, metadata):
        names = [field.name for field in dataclasses.fields(self.metadata_type)]
        options = {name: metadata[name] for name in names if name in metadata}
        vars(self).update(vars(from_json(self.metadata_type, options)))
        self.read_description(metadata)
        if "search" not in metadata:
            raise UserError("search is missing")
        search = from_json(self.search_type, metadata["search"])
        self.search = dataclasses.asdict(search)
        self.options = metadata.get("model", {})
        if not isinstance(self.options, dict):
            raise UserError(f"model must be an object. Received: {self.options!r:.60}")

    def _run_search(self, run, signature, n_best, **inputs):
        """Run a search on one input, and return its best hypotheses, best first.

        Args:
            run: The runtime, or its `in_parallel`.
            signature: Name of the signature.
            n_best: Maximum number of hypotheses.
            **inputs: Arrays of one row.

        Raises:
            UserError: If the vocabulary does not fit the model.
        """
        (best,) = hypotheses(run(signature, **inputs), n_best)
        largest = max(hypothesis.token_ids.max() for hypothesis in best)
        if largest >= len(self.tokenizer) + self.extra_ids:
            raise UserError(f"its vocabulary has no token {largest}")
        return best

    @classmethod
    def from_preset(cls, name_or_path, *, threads=None):
        """Load a `.tflite` file, that of a shipped preset, or that of a folder.

        Raises:
            UserError: If there is no such file, preset or folder.
        """
        return cls(find_litert(name_or_path, cls.presets), threads=threads)

    def search_options(self, **given):
        """Return the options of the beam search, which are fixed in the file.

        Raises:
            UserError: If one that was given differs.
        """
        for name, value in given.items():
            if name not in self.search or value != self.search[name]:
                fixed = self.search.get(name)
                raise UserError(
                    f"{self.path} searches with {name}={fixed}, which is fixed in the "
                    f"file: export one with {name}={value}"
                )
        return self.search

    def in_parallel(self, function, items):
        """Yield pairs of an item and its result, in order, from several threads.

        A few items are read ahead.
        """
        pending = collections.deque()
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
