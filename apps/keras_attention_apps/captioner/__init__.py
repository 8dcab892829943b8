"""Show, Attend and Tell: captions images and shows where the model looked."""

import importlib

# Lazy imports: the command line and LiteRT start without TensorFlow.
_MODULES = {
    "Caption": "captions",
    "CaptionBatch": "bulk",
    "Captioner": "inference",
    "LiteCaptioner": "captions",
}
__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
