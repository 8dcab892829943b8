"""Show, Attend and Tell: captions photographs and shows where it looked."""

__all__ = ["Caption", "Captioner"]


def __getattr__(name):
    # The command line answers --help without waiting for TensorFlow.
    if name in __all__:
        from keras_attention_apps.captioner import inference

        return getattr(inference, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
