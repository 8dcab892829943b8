"""A translator as a LiteRT file: token ids in, translations out."""

import functools

from keras_attention_apps.common.litert.exporting import save_litert

# Lengths of sources, in subwords, that have a signature each; up to the longest source.
LENGTHS = (8, 16, 24, 32, 48, 64, 96)


def save_lite_translator(translator, path, *, search, quantize="float16", **origin):
    """Write network and beam search as a LiteRT file that `LiteTranslator` reads.

    Its signatures `length_8`, `length_16` and so on take `source`, token ids int32
    `(1, length)` padded with PAD, and return the dict of `keras_attention.beam_search`.

    Args:
        translator: The `Translator`.
        path: Name of the file.
        search: All options of the beam search.
        quantize: `"float16"`, `"int8"` or `"none"`.
        **origin: `name_or_path`, as of `save_litert`.
    """
    import tensorflow as tf

    longest = translator.max_length
    lengths = [*(length for length in LENGTHS if length < longest), longest]

    def found(source, search_model):
        return search_model({"source": source})

    save_litert(
        translator,
        path,
        {
            f"length_{length}": (
                functools.partial(
                    found,
                    search_model=translator.search_model(
                        translator.max_search_length(length, search), **search
                    ),
                ),
                {"source": tf.TensorSpec([1, length], tf.int32)},
            )
            for length in lengths
        },
        quantize=quantize,
        metadata={
            "lengths": lengths,
            "max_length": longest,
            "length_ratio": translator.length_ratio,
            "attends": translator.attends,
            "extra_ids": translator.extra_ids,
            "search": search,
        },
        **origin,
    )
