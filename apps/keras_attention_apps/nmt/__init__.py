"""Neural machine translation after Bahdanau, after Luong, and by self-attention."""

import importlib

# Lazy imports: the command line and LiteRT start without TensorFlow.
_MODULES = {
    "Glossary": "data.glossary",
    "Translation": "translations",
    "TranslateBatch": "bulk",
    "Translator": "inference",
    "LiteTranslator": "translations",
}
__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
