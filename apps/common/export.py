"""What every SavedModel needs."""

import keras
from keras_attention_apps.common.cli import UserError


def require_tensorflow():
    """Raise a `UserError` on another backend, whose models cannot be exported."""
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            "export needs Keras' TensorFlow backend: set KERAS_BACKEND=tensorflow. "
            f"Received: {keras.backend.backend()}"
        )
