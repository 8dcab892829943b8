"""`nmt export`: a translator as a SavedModel, or for LiteRT, CTranslate2 or Argos."""

import functools

import tensorflow as tf

from keras_attention_apps.common import files
from keras_attention_apps.common.characters import REMOVALS
from keras_attention_apps.common.cli import needing
from keras_attention_apps.common.errors import UserError, counted
from keras_attention_apps.common.export import (
    companions_in,
    export_task,
    fill_chunks,
    map_chunks,
    save_litert,
    write_served,
)
from keras_attention_apps.common.models import find_preset
from keras_attention_apps.common.tokenizer import END, PAD
from keras_attention_apps.nmt.data import dataset
from keras_attention_apps.nmt.network.translation_network import word_numbers
from keras_attention_apps.nmt.runtimes import RUNTIMES
from keras_attention_apps.nmt.shortlist import learn_shortlist
from keras_attention_apps.nmt.subwords import BLANKS

# Sentences that are translated at the same time.
CHUNK = 64


# Formats of files, by the suffixes of their names.
FILE_FORMATS = {".tflite": "litert", ".argosmodel": "argos"}


def export(config):
    """Write the model that an `ExportConfig` describes."""
    suffix = config.output.suffix.lower()
    kind = config.format or FILE_FORMATS.get(suffix, "saved-model")
    if FILE_FORMATS.get(suffix, kind) != kind or (
        kind in FILE_FORMATS.values() and suffix not in FILE_FORMATS
    ):
        raise UserError(
            "the name of the output must end in .tflite for the format litert, in "
            ".argosmodel for argos, and in neither for the other formats. Received: "
            f"{str(config.output)!r} for {kind}"
        )
    if config.shortlist_data and kind != "litert":
        raise UserError(f"--shortlist-data needs the format litert. Received: {kind}")
    if config.pair is not None and kind != "argos" and not config.shortlist_data:
        raise UserError(
            "--pair needs the format argos, or --shortlist-data. "
            f"Received: {config.pair!r}"
        )
    if kind in ("ctranslate2", "argos"):
        with needing("ctranslate2"):
            _export_to_ctranslate2(config, is_package=kind == "argos")
    else:
        write_lite = functools.partial(_export_to_litert, config)
        export_task(config, RUNTIMES, write_lite, write_saved_model)


def _export_to_litert(config, translator, path, **options):
    """Write a LiteRT file, with a shortlist if there is a text for it."""
    learned = None
    if config.shortlist_data:
        names = dataset.TRAINING_NAMES
        texts = [
            dataset.read_split(files.resolved(folder), config.pair, names)
            for folder in config.shortlist_data
        ]
        pairs = dataset.joined(texts, [1] * len(texts))
        print(f"learning a shortlist from {counted(len(pairs), 'pair')} of sentences")
        learned = learn_shortlist(translator, pairs, size=config.shortlist_size)
    save_lite_translator(translator, path, shortlist=learned, **options)


def _export_to_ctranslate2(config, *, is_package):
    """Write a folder for CTranslate2, or a package of Argos Translate."""
    from keras_attention_apps.nmt import argos, ctranslate2_models

    if config.search.given:
        name, value = next(iter(config.search.given.items()))
        raise UserError(
            "the beam search of CTranslate2 and Argos Translate has its own options. "
            f"Received: {name}={value}"
        )
    name, output = config.model.name, config.output
    if is_package:
        files.check_file(output)
    else:
        files.check_folder(output, ctranslate2_models.older_names)
    files.check_distinct(RUNTIMES.files(name), output)
    translator = RUNTIMES.keras().from_preset(name, **config.model.options)
    ctranslate2_models.check_convertible(translator)
    companions = companions_in(find_preset(name, translator.presets))
    quantize = config.quantize or "none"
    if is_package:
        languages = argos.package_languages(translator, config.pair)
        argos.write_package(translator, output, languages, quantize, companions)
    else:
        ctranslate2_models.write_folder(translator, output, quantize, companions)
    print(f"Wrote {output}")


def write_saved_model(translator, search_model, directory):
    """Write a search as a SavedModel.

    Its signature takes `sentences`, strings `(B,)`, and returns a dict:

    - `"translation"`, strings `(B,)`;
    - `"score"` and `"log_probability"`, `(B,)`;
    - `"subwords"`, those of the translation, strings `(B, L)`, empty after the
      last one;
    - `"source_subwords"`, those of the sentence, strings `(B, S)`;
    - `"attention"`, `(B, L, S)`, zero after the last subwords of both; all are zero for
      a model without attention;
    - `"cut"`, booleans `(B,)`: whether a sentence was too long, and is translated in
      part;
    - `"error"`, strings `(B,)`: the reason why a sentence cannot be read, otherwise
      empty.

    An empty batch gives an empty batch, and an empty sentence an empty translation; so
    does one that is not UTF-8, with an error, and the others are translated. Batches of
    any size are translated in chunks of `CHUNK` sentences. Programs that load the
    SavedModel must import tensorflow-text.
    """
    import tensorflow_text as tf_text

    tokenizer = tf_text.SentencepieceTokenizer(model=translator.tokenizer.content)
    pieces = tf.constant(translator.tokenizer.pieces)

    def spelled(token_ids, valid):
        return tf.where(valid, tf.gather(pieces, token_ids), "")

    def serve(sentences):
        count = tf.size(sentences)
        sentences, chunks = fill_chunks(sentences, CHUNK)
        are_valid = is_utf8(sentences)
        source, is_cut = encoded(
            tf.where(are_valid, sentences, ""), tokenizer, translator.max_length
        )
        is_source = tf.logical_and(source != PAD, source != END)
        has_text = is_source[:, 0]
        hypotheses = best_hypotheses(search_model, source, chunks)
        token_ids, weights = hypotheses["token_ids"], hypotheses["weights"]
        valid = tf.math.cumprod(tf.cast(token_ids != END, "int32"), axis=1) > 0
        valid = tf.logical_and(valid, has_text[:, None])
        if translator.copying:
            token_ids, valid, weights = expanded(
                token_ids, valid, weights, source, translator.copying.kinds
            )
        are_attended = tf.logical_and(valid[..., None], is_source[:, None])
        if not translator.attends:
            weights = tf.zeros_like(are_attended, tf.float32)
        text = tokenizer.detokenize(tf.ragged.boolean_mask(token_ids, valid))
        served = {
            "translation": cleaned(text),
            "score": tf.where(has_text, hypotheses["scores"], 0.0),
            "log_probability": tf.where(has_text, hypotheses["log_probs"], 0.0),
            "subwords": spelled(token_ids, valid),
            "source_subwords": spelled(source, is_source),
            "attention": tf.where(are_attended, weights, 0.0),
            "cut": is_cut,
            "error": tf.where(are_valid, "", "expected UTF-8, got other bytes"),
        }
        return {name: x[:count] for name, x in served.items()}

    spec = tf.TensorSpec([None], tf.string, "sentences")
    write_served(serve, spec, [search_model, tokenizer], directory)


def encoded(sentences, tokenizer, max_length):
    """Return the token ids of sentences `(B, S)`, and which of them are cut, `(B,)`."""
    token_ids = tokenizer.tokenize(cleaned(sentences))
    is_cut = token_ids.row_lengths() > max_length - 1
    ends = tf.fill([tf.size(sentences), 1], END)
    token_ids = tf.concat([token_ids[:, : max_length - 1], ends], axis=1)
    return token_ids.to_tensor(PAD), is_cut


def best_hypotheses(search_model, source, chunks):
    """Return the best hypothesis of each sentence, as a dict of tensors `(B, ...)`.

    The chunks are searched one after the other.
    """
    signature = {
        "token_ids": tf.TensorSpec([None, None], tf.int32),
        "weights": tf.TensorSpec([None, None, None], tf.float32),
        "scores": tf.TensorSpec([None], tf.float32),
        "log_probs": tf.TensorSpec([None], tf.float32),
    }

    def best(source):
        hypotheses = search_model({"source": source})
        return {
            name: tf.cast(hypotheses[name][:, 0], spec.dtype)
            for name, spec in signature.items()
        }

    return map_chunks(best, source, chunks, signature)


def expanded(token_ids, valid, weights, source, kinds):
    """Replace extended ids by the subwords of their words: see `Copying.expand`.

    The ids and booleans `valid` `(B, L)`, and the attention `(B, L, S)`, become those
    of the subwords, of which there may be more than L. `kinds` are those of all
    subwords, `(N,)`.
    """
    numbers, _ = word_numbers(source, kinds)
    copied = token_ids - len(kinds)
    is_copied = (copied >= 0)[..., None]
    # The candidates of a token are itself and all subwords of the source; `spell` marks
    # those that spell the token.
    shape = tf.concat([tf.shape(token_ids), tf.shape(source)[1:]], axis=0)
    subwords = tf.broadcast_to(source[:, None], shape)
    subwords = tf.concat([token_ids[..., None], subwords], axis=-1)
    spell = is_copied & (copied[..., None] == numbers[:, None])
    spell = valid[..., None] & tf.concat([~is_copied, spell], axis=-1)
    origins = tf.range(tf.shape(token_ids)[1])[None, :, None] * tf.ones_like(subwords)
    spell, subwords, origins = (
        tf.reshape(x, [tf.shape(x)[0], -1]) for x in (spell, subwords, origins)
    )
    token_ids = tf.ragged.boolean_mask(subwords, spell).to_tensor(END)
    origins = tf.ragged.boolean_mask(origins, spell).to_tensor(0)
    count = tf.reduce_sum(tf.cast(spell, "int32"), axis=1, keepdims=True)
    valid = tf.range(tf.shape(token_ids)[1])[None] < count
    return token_ids, valid, tf.gather(weights, origins, batch_dims=1)


def cleaned(sentences):
    """Normalise sentences, strings `(B,)`: the graph version of `clean`.

    The order of operations and the patterns are the same. Normal form C is that of
    ICU's version of Unicode here, and of Python's there.
    """
    import tensorflow_text as tf_text

    text = tf.strings.unicode_transcode(sentences, "UTF-8", "UTF-8")
    for pattern, replacement in REMOVALS:
        text = tf.strings.regex_replace(text, pattern, replacement)
    text = tf_text.normalize_utf8(text, "NFC")
    return tf.strings.strip(tf.strings.regex_replace(text, BLANKS, " "))


def is_utf8(sentences):
    """Return which of the strings `(B,)` are UTF-8, `(B,)`."""
    text = tf.strings.unicode_transcode(sentences, "UTF-8", "UTF-8", errors="ignore")
    return text == sentences


# Maximum numbers of tokens of translations for which a LiteRT file has a signature, in
# addition to that of the longest sources. A sentence is padded to the next length, so
# that further lengths save time. Each adds 120 kB to a file.
TARGET_LENGTHS = (16, 20, 24, 28, 32, 40, 48, 80)
# Models with more weights have that of the longest sources alone: the conversion copies
# the weights for each signature, several times.
MAX_WEIGHTS = 30_000_000
# These lengths are multiples of this. Each step of a search copies the caches, which
# have a slot for each token, so that a short maximum saves time.
TARGET_STEP = 4


def save_lite_translator(
    translator, path, *, search, quantize="int8", shortlist=None, **origin
):
    """Write network and beam search as a LiteRT file that `LiteTranslator` reads.

    With a `Shortlist`, the search chooses among its candidates for each sentence.

    Its signatures, such as `length_13`, take `source`, token ids int32 `(1, length)`
    padded with PAD, and return the dict of `keras_attention.beam_search`.
    """
    longest = translator.max_length
    max_lengths = {
        length: translator.max_search_length(length, search, step=TARGET_STEP)
        for length in range(1, longest + 1)
    }
    # The longest source for each maximum length of a translation.
    sources = {target: length for length, target in max_lengths.items()}
    chosen = {sources[target] for target in TARGET_LENGTHS if target in sources}
    if translator.network.count_params() > MAX_WEIGHTS:
        chosen = set()
    lengths = sorted({*chosen, longest})

    save_litert(
        translator,
        path,
        {
            f"length_{length}": (
                translator.search_model(
                    max_lengths[length], shortlist=shortlist, **search
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
            "shortlist_size": shortlist and shortlist.size,
        },
        **origin,
    )
