"""Neural machine translation after Bahdanau, after Luong, and by self-attention."""

from keras_attention_apps.common.imports import lazy_attributes

_MODULES = {
    "Glossary": "data.glossary",
    "Translation": "translations",
    "TranslateBatch": "bulk",
    "Translator": "inference",
    "LiteTranslator": "litert",
}
__all__ = list(_MODULES)

# Lazy imports: the command line and LiteRT start without TensorFlow.
__getattr__ = lazy_attributes(__name__, _MODULES)
