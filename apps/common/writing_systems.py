"""Writing systems as character classes for Python and RE2."""

HAN = "[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
KANA = "[\u3040-\u30ff\u31f0-\u31ff]"
# Writing systems without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han.
UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
