"""Show, Attend and Tell: captions images and shows where the model looked."""

from keras_attention_apps.common.imports import lazy_attributes

_MODULES = {
    "Caption": "captions",
    "CaptionBatch": "bulk",
    "Captioner": "inference",
    "LiteCaptioner": "litert",
    "Regions": "data.regions",
}
__all__ = list(_MODULES)

# Lazy imports: the command line and LiteRT start without TensorFlow.
__getattr__ = lazy_attributes(__name__, _MODULES)
