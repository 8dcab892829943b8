"""Show, Attend and Tell: captions images and shows where the model looked."""

import importlib

_MODULES = {
    "Caption": "captions",
    "Captioner": "inference",
    "LiteCaptioner": "litert",
}
__all__ = list(_MODULES)


def __getattr__(name):
    # Neither the command line nor LiteRT waits for TensorFlow.
    if name in _MODULES:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
