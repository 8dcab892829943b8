"""A captioner as a TensorFlow SavedModel or a LiteRT file: images in, captions out."""

import functools

import keras
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.runtimes import RUNTIMES, check_inference
from keras_attention_apps.captioner.text import JOINTS
from keras_attention_apps.common.export import (
    export_task,
    fill_chunks,
    map_chunks,
    write_archive,
)
from keras_attention_apps.common.litert.exporting import save_litert

# Images that are captioned at the same time.
CHUNK = 32


def export(config):
    """Write the SavedModel, or the LiteRT file, that an `ExportConfig` describes."""
    chosen = config.model

    def load():
        check_inference(chosen)
        return Captioner.from_preset(chosen.name, **chosen.options)

    export_task(
        config,
        chosen.name,
        RUNTIMES.files(chosen.name),
        load,
        save_lite_captioner,
        write_saved_model,
    )


def write_saved_model(captioner, search_model, directory):
    """Write a search as a SavedModel.

    Its signature takes `encoded`, strings `(B,)` with the bytes of JPEG, PNG, GIF, BMP
    or WebP files, and returns a dict:

    - `"caption"`, strings `(B,)`;
    - `"words"`, strings `(B, L)`, empty after the last word;
    - `"log_probability"`, `(B,)`;
    - `"attention"`, `(B, L, rows, columns)`, zero after the last word;
    - `"sentinel"`, `(B, L)`, for adaptive attention only: the weight of the sentinel;
    - `"error"`, strings `(B,)`: the reason why an image cannot be read, otherwise
      empty. Such an image has an empty caption, and the others are captioned.

    Batches of any size, also empty ones, are captioned in chunks of `CHUNK` images. The
    limits of images are those of `limits`.

    Args:
        captioner: The `Captioner`.
        search_model: The `SearchModel` to run.
        directory: Folder to write; an older SavedModel there is replaced as a whole.
    """
    import tensorflow as tf
    from keras_attention_apps.captioner.commands.graph_images import decode_images
    from keras_attention_apps.common.tokens import END

    words = tf.constant(captioner.tokenizer.words)
    rows, columns = captioner.grid
    length = search_model.max_length - 1
    signature = {
        "caption": tf.TensorSpec([None], tf.string),
        "words": tf.TensorSpec([None, length], tf.string),
        "log_probability": tf.TensorSpec([None], tf.float32),
        "attention": tf.TensorSpec([None, length, rows, columns], tf.float32),
        "error": tf.TensorSpec([None], tf.string),
    }
    if captioner.has_sentinel:
        signature["sentinel"] = tf.TensorSpec([None, length], tf.float32)

    def caption(encoded):
        images, problems = decode_images(encoded, captioner.config.image_size)
        found = search_model({"images": images})
        token_ids = found["token_ids"][:, 0, :-1]
        is_read = problems == ""
        is_word = tf.math.cumprod(tf.cast(token_ids != END, "int32"), axis=1) > 0
        is_word = tf.logical_and(is_word, is_read[:, None])
        chosen = tf.where(is_word, tf.gather(words, token_ids), "")
        attention = tf.where(is_word[..., None], found["weights"][:, 0, :-1], 0.0)
        sentinel = {}
        if captioner.has_sentinel:
            sentinel["sentinel"] = attention[..., -1]
            attention = attention[..., :-1]
        return {
            "caption": joined(chosen),
            "words": chosen,
            "log_probability": tf.where(is_read, found["log_probs"][:, 0], 0.0),
            "attention": tf.reshape(attention, (-1, length, rows, columns)),
            "error": problems,
            **sentinel,
        }

    def serve(encoded):
        filled, chunks = fill_chunks(encoded, CHUNK)
        found = map_chunks(caption, filled, chunks, signature)
        return {name: x[: tf.size(encoded)] for name, x in found.items()}

    archive = keras.export.ExportArchive()
    archive.track(search_model)
    archive.add_endpoint(
        "serve", serve, input_signature=[tf.TensorSpec([None], tf.string, "encoded")]
    )
    write_archive(archive, directory, tf.errors.OpError)


def joined(words):
    """Join words `(B, T)`, empty after the last, to captions `(B,)`.

    The graph version of `detokenize`.
    """
    import tensorflow as tf

    text = tf.strings.strip(tf.strings.reduce_join(words, -1, separator=" "))
    for pattern, replacement in JOINTS:
        text = tf.strings.regex_replace(text, pattern, replacement)
    return text


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
