"""Writing SavedModels."""

import dataclasses

import keras
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import (
    SAVED_MODEL,
    atomic_folder,
    check_file,
    check_folder,
)
from keras_attention_apps.common.inputs import Inputs
from keras_attention_apps.common.presets import is_litert


def require_tensorflow():
    """Raise a `UserError` on another backend, whose models cannot be exported."""
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            "export needs Keras' TensorFlow backend: set KERAS_BACKEND=tensorflow. "
            f"Received: {keras.backend.backend()}"
        )


def check_export(path, output_format):
    """Check the output of an export, and return whether it is a LiteRT file.

    Args:
        path: File or folder to write.
        output_format: `"litert"`, `"savedmodel"`, or `None`: as the suffix says.

    Raises:
        UserError: If it cannot be written there.
    """
    to_litert = output_format == "litert" or (output_format is None and is_litert(path))
    if to_litert:
        if not is_litert(path):
            raise UserError(
                "the name of a LiteRT file must end in .tflite. "
                f"Received: {str(path)!r}"
            )
        check_file(path)
    else:
        check_folder(path, SAVED_MODEL)
    return to_litert


def export_task(config, model, inputs, load, save_lite, save_served):
    """Write the SavedModel, or the LiteRT file, that an `ExportConfig` describes.

    Args:
        config: The `ExportConfig`.
        model: Name of the preset or folder.
        inputs: Files of the model.
        load: Function without arguments that returns the `Task`.
        save_lite, save_served: Functions that write it as a LiteRT file, or a search of
            it as a SavedModel.
    """
    require_tensorflow()
    to_litert = check_export(config.output, config.format)
    # An older LiteRT file in the folder of the model may be replaced.
    Inputs(*(path for path in inputs if not is_litert(path))).check(config.output)
    task = load()
    search = dataclasses.asdict(config.search)
    if to_litert:
        save_lite(
            task,
            config.output,
            search=search,
            quantize=config.quantize,
            name_or_path=model,
        )
    else:
        save_served(task, task.search_model(**search), config.output)
    print(f"Wrote {config.output}")


def write_archive(archive, directory, refusals):
    """Write a SavedModel as a whole; an older one is replaced.

    Args:
        archive: The `keras.export.ExportArchive`.
        directory: Folder to write.
        refusals: Exceptions that TensorFlow raises where the system refuses to write.

    Raises:
        UserError: In place of these.
    """
    with atomic_folder(directory, SAVED_MODEL) as temporary:
        try:
            archive.write_out(str(temporary), verbose=False)
        except refusals as error:
            # The reason follows the name of the failed function.
            reason = str(error).rpartition("}} ")[-1]
            raise UserError(
                f"{directory} cannot be written: {' '.join(reason.split())}"
            ) from error
