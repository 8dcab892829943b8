"""A captioner as a TensorFlow SavedModel: encoded images in, captions out."""

import keras
from keras_attention_apps.captioner.commands.export_litert import save_lite_captioner
from keras_attention_apps.captioner.data.text import JOINTS
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.runtimes import RUNTIMES
from keras_attention_apps.common.export import export_task, write_archive


def export(config):
    """Write the SavedModel, or the LiteRT file, that an `ExportConfig` describes."""
    chosen = config.captioner
    export_task(
        config,
        chosen.model,
        RUNTIMES.files(chosen.model),
        lambda: Captioner.from_preset(chosen.model, **chosen.options),
        save_lite_captioner,
        save_served,
    )


def save_served(captioner, search_model, directory):
    """Write a search as a SavedModel.

    Its signature takes `encoded`, strings `(B,)` with the bytes of JPEG, PNG, GIF, BMP
    or WebP files, and returns a dict:

    - `"caption"`, strings `(B,)`;
    - `"words"`, strings `(B, L)`, empty after the last word;
    - `"log_probability"`, `(B,)`;
    - `"attention"`, `(B, L, rows, columns)`, zero after the last word.

    Args:
        captioner: The `Captioner`.
        search_model: The `SearchModel` to run.
        directory: Folder to write; an older SavedModel there is replaced as a whole.
    """
    import tensorflow as tf
    from keras_attention_apps.captioner.images.graph_decoding import decode_images
    from keras_attention_apps.common.tokens import END

    words = tf.constant(captioner.tokenizer.words)
    backbone = captioner.network.backbone

    def serve(encoded):
        images = decode_images(encoded, captioner.config.image_size)
        # TensorFlow's convolutions reject an empty batch.
        missing = tf.maximum(0, 1 - tf.shape(images)[0])
        images = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])
        found = search_model({"images": images})
        found = tf.nest.map_structure(lambda x: x[: tf.size(encoded)], found)
        token_ids = found["token_ids"][:, 0, :-1]
        is_word = tf.math.cumprod(tf.cast(token_ids != END, "int32"), axis=1) > 0
        chosen = tf.where(is_word, tf.gather(words, token_ids), "")
        attention = tf.where(is_word[..., None], found["weights"][:, 0, :-1], 0.0)
        grid = (-1, token_ids.shape[1], backbone.rows, backbone.columns)
        return {
            "caption": joined(chosen),
            "words": chosen,
            "log_probability": found["log_probs"][:, 0],
            "attention": tf.reshape(attention, grid),
        }

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
