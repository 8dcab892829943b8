"""Neural machine translation after Bahdanau, after Luong, and by self-attention."""

import importlib

_MODULES = {
    "Translation": "translations",
    "Translator": "inference",
    "LiteTranslator": "litert",
}
__all__ = list(_MODULES)


def __getattr__(name):
    # Neither the command line nor LiteRT waits for TensorFlow.
    if name in _MODULES:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
