"""Show, Attend and Tell: captions images and shows where the model looked."""

from keras_attention_apps.common.imports import lazy_attributes

# Lazy imports: the command line and LiteRT start without TensorFlow.
__all__, __getattr__ = lazy_attributes(
    __name__,
    {
        "Caption": "captions",
        "CaptionBatch": "bulk",
        "Captioner": "inference",
        "LiteCaptioner": "litert",
    },
)
