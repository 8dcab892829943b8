"""`nmt import`: a published translator as a model of this program."""

import dataclasses

from keras_attention_apps.common import files, models
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt import marian
from keras_attention_apps.nmt.data import dataset
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.network import build_network
from keras_attention_apps.nmt.network.alignment_head import best_head
from keras_attention_apps.nmt.translations import languages_of

# Maximum number of pairs from which the head that aligns words is chosen.
ALIGNED_PAIRS = 1000


def import_model(config):
    """Write the model that an `ImportConfig` describes."""
    folder = files.expanded(config.folder)
    texts = [config.source, config.target]
    if (config.source is None) != (config.target is None):
        raise UserError(
            "expected both --source and --target, or neither. Received: "
            f"source={config.source}, target={config.target}"
        )
    files.check_distinct([folder, *filter(None, texts)], config.output)
    # An older model there may be replaced.
    files.check_folder(config.output, models.model_names)
    pairs = None if config.source is None else dataset.read_pairs(*texts)
    translator = read_translator(folder, config.pair, config.max_length)
    if pairs is not None:
        translator = with_best_head(translator, pairs)
    translator.save(config.output, half=False, imported_from=folder.name)
    print(f"Wrote {config.output}")
    languages = marian.languages_in(translator.tokenizer)
    if languages:
        listed = ", ".join(languages[:8]) + (", ..." if len(languages) > 8 else "")
        print(
            f"Its target languages: {listed}. A text begins with one of them: "
            f">>{languages[0]}<<"
        )


def read_translator(folder, pair=None, max_length=None):
    """Return the `Translator` of a published model in a folder."""
    published = marian.read_published(folder)
    if max_length is not None:
        # The positions are computed, so that any maximum fits.
        published.config = dataclasses.replace(published.config, max_length=max_length)
    tokenizer = marian.subwords_of(published)
    network = build_network(published.config, len(tokenizer))
    marian.assign_weights(network, published)
    translator = Translator(published.config, tokenizer, network)
    translator.languages = languages_of(pair or folder.name)
    return translator


def with_best_head(translator, pairs):
    """Return a translator whose alignments are those of the best head on some pairs."""
    subwords, longest = translator.tokenizer, translator.max_length
    encoded = zip(
        subwords.encode_all(pairs.source[:ALIGNED_PAIRS]),
        subwords.target.encode_all(pairs.target[:ALIGNED_PAIRS]),
        strict=True,
    )
    usable = [pair for pair in encoded if 1 < min(map(len, pair)) <= longest]
    usable = [pair for pair in usable if max(map(len, pair)) <= longest]
    if not usable:
        raise UserError("no pair of --source and --target has a length that fits")
    layer, head, score = best_head(translator.network, *zip(*usable, strict=True))
    print(
        f"Head {head} of decoder layer {layer} aligns best: {score:.0%} of its "
        f"attention is where IBM Model 1 aligns {len(usable):,} pairs"
    )
    config = dataclasses.replace(
        translator.config, alignment_layer=layer, alignment_head=head
    )
    network = build_network(config, len(subwords))
    network.set_weights(translator.network.get_weights())
    aligned = Translator(config, subwords, network)
    aligned.languages = translator.languages
    return aligned
