"""Writing the search of a task as a LiteRT file."""

import dataclasses

import keras_attention_apps.common.presets as presets
from keras_attention_apps.common.litert.model_file import write_model_file
from keras_attention_apps.common.reading import read_file

from keras_attention import __version__, convert_to_litert

# Files of a preset that go with the model: its card, and its licence.
COMPANIONS = ("README.md", "LICENSE")


def save_litert(task, path, signatures, *, quantize, metadata, name_or_path=None):
    """Write the search of a task as a LiteRT file.

    Args:
        task: The `Task`.
        path: Name of the file.
        signatures: As of `convert_to_litert`; functions that return the dict of a
            search.
        quantize: As of `convert_to_litert`, or `"none"`.
        metadata: Further entries of the metadata.
        name_or_path: The preset or folder that it is from, if any. The file contains
            its name, model card and licence; for `"a+b"`, both names, and the card and
            licence of the first.
    """
    model = convert_to_litert(
        signatures, quantize=None if quantize == "none" else quantize
    )
    origin, companions = {}, {}
    if name_or_path is not None:
        names = presets.split_names(name_or_path)
        folders = [presets.find_preset(name, task.presets) for name in names]
        folder = folders[0]
        origin = {"name": "+".join(folder.name for folder in folders)}
        companions = {
            name: read_file(folder / name)
            for name in COMPANIONS
            if (folder / name).is_file()
        }
    write_model_file(
        path,
        model,
        kind=task.noun,
        metadata={
            **origin,
            "written_by": f"keras-attention {__version__}",
            "quantize": quantize,
            "model": dataclasses.asdict(task.config),
            **task.description,
            **metadata,
        },
        files={**task.tokenizer.files, **companions},
    )
