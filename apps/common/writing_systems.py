"""Writing systems as character classes for Python and RE2."""

import re

HAN = "[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
KANA = "[\u3040-\u30ff\u31f0-\u31ff]"
# Writing systems without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han.
UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_UNSPACED = re.compile(UNSPACED)


def has_unspaced(text):
    """Return whether a text has characters of a writing system without spaces."""
    return _UNSPACED.search(text) is not None


def begins_unspaced(text):
    """Return whether the first character is of a writing system without spaces."""
    return _UNSPACED.match(text) is not None
