"""Neural machine translation after Bahdanau, after Luong, and by self-attention."""

from keras_attention_apps.common.imports import lazy_attributes

# Lazy imports: the command line and LiteRT start without TensorFlow.
__all__, __getattr__ = lazy_attributes(
    __name__,
    {
        "Glossary": "data.glossary",
        "Translation": "translations",
        "TranslateBatch": "bulk",
        "Translator": "inference",
        "LiteTranslator": "litert",
    },
)
