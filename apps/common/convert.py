"""Conversion of models of version 0.1, whose weights are HDF5 files."""

from keras_attention_apps.common import presets
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.digests import (
    DIGEST_KEY,
    check_file_digest,
    read_sealed,
    write_sealed,
)
from keras_attention_apps.common.files import expanded
from keras_attention_apps.common.network.weights import errors_of, save_model
from keras_attention_apps.common.reading import check_bytes, check_input

# Weights of a model in version 0.1, in its folder.
OLD_WEIGHTS = "model.weights.h5"


def check_converted(folder, task):
    """Raise a `UserError` if a folder has the weights of version 0.1 alone."""
    if (folder / OLD_WEIGHTS).exists() and not (folder / presets.WEIGHTS).exists():
        raise UserError(
            f"its weights have the format of version 0.1, which "
            f"`{task.program} convert {folder}` converts"
        )


def convert(folder, task):
    """Convert the weights of a model, and the digests in its configuration.

    The numbers stay as they are. The old file is removed last, so that a conversion
    that was interrupted can be repeated.

    Args:
        folder: Folder of the model.
        task: Subclass of `Task`.

    Raises:
        UserError: If the folder has no model with the weights of version 0.1.
    """
    folder = expanded(folder)
    old = folder / OLD_WEIGHTS
    config = presets.read_folder_config(folder, kind=task.config_type, noun=task.noun)
    with presets.loading(folder, task.noun):
        content = read_sealed(folder / presets.CONFIG)
        names = (task.tokenizer_type.file_name, *task.part_files)
        for name in (*names, OLD_WEIGHTS):
            check_file_digest(content, folder / name)
        check_input(old)
        check_bytes(old.stat().st_size, old)
        tokenizer = task.tokenizer_type.load(folder)
        parts = task.read_parts(folder, config)
        network = task.build_network(config, len(tokenizer), **parts)
        with errors_of(old):
            # Keras reads HDF5.
            network.load_weights(old)
    save_model(network, folder / presets.WEIGHTS, rounded=False)
    content.pop(DIGEST_KEY, None)
    files = [name for name in names if (folder / name).exists()]
    write_sealed(folder / presets.CONFIG, content, [*files, presets.WEIGHTS])
    old.unlink()
