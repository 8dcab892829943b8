"""Neural machine translation after Bahdanau, after Luong, and by self-attention."""

__all__ = ["Translation", "Translator"]


def __getattr__(name):
    # The command line answers --help without waiting for TensorFlow.
    if name in __all__:
        from keras_attention_apps.nmt import inference

        return getattr(inference, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
