"""Writing SavedModels."""

import keras
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import SAVED_MODEL, atomic_folder


def require_tensorflow():
    """Raise a `UserError` on another backend, whose models cannot be exported."""
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            "export needs Keras' TensorFlow backend: set KERAS_BACKEND=tensorflow. "
            f"Received: {keras.backend.backend()}"
        )


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
            # Behind what TensorFlow calls the function that failed.
            reason = str(error).rpartition("}} ")[-1]
            raise UserError(
                f"{directory} cannot be written: {' '.join(reason.split())}"
            ) from error
