"""A captioner as a LiteRT file: an image in, captions out."""

import functools

from keras_attention_apps.common.litert.exporting import save_litert


def save_lite_captioner(captioner, path, *, search, quantize="float16", **origin):
    """Write CNN, decoder and beam search as a LiteRT file that `LiteCaptioner` reads.

    Its signature `weights` takes `images`, uint8 `(1, size, size, 3)`, and returns the
    dict of `keras_attention.beam_search`. For hard and adaptive attention there is
    another one, `probabilities`, whose maps are the probabilities of the regions.

    Args:
        captioner: The `Captioner`.
        path: Name of the file.
        search: All options of the beam search.
        quantize: `"float16"`, `"int8"` or `"none"`.
        **origin: `name_or_path`, as of `save_litert`.
    """
    import tensorflow as tf

    captioner.network.backbone.freeze()
    size = captioner.image_size
    maps = ("weights",) if captioner.is_soft else ("weights", "probabilities")

    def found(images, search_model):
        return search_model({"images": images})

    save_litert(
        captioner,
        path,
        {
            name: (
                functools.partial(
                    found, search_model=captioner.search_model(**search, maps=name)
                ),
                {"images": tf.TensorSpec([1, size, size, 3], tf.uint8)},
            )
            for name in maps
        },
        quantize=quantize,
        metadata={
            "image_size": size,
            "max_length": captioner.max_length,
            "grid": captioner.grid,
            "maps": maps,
            "has_sentinel": captioner.has_sentinel,
            "search": search,
        },
        **origin,
    )
