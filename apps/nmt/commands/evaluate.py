"""`nmt evaluate` and `nmt calibrate`: scores of a model, and how sure it is."""

import functools
import sys

from keras_attention_apps.common.errors import counted
from keras_attention_apps.common.files import check_read_once
from keras_attention_apps.common.hypotheses import calibrate as calibrate_model
from keras_attention_apps.nmt import metrics
from keras_attention_apps.nmt.data import dataset
from keras_attention_apps.nmt.data.glossary import Glossary
from keras_attention_apps.nmt.translations import RUNTIMES


def evaluate(config):
    """Print the scores that an `EvaluateConfig` describes."""
    source, target = _files(config)
    check_read_once(source, target, config.glossary)
    glossary = config.glossary and Glossary.from_file(config.glossary)
    sources, references = dataset.read_parallel(source, target)
    # Scores are those of the Keras model, unless LiteRT is requested.
    translator = RUNTIMES.load_for(
        config, auto="keras", needs_keras=config.glossary and "--glossary"
    )
    search = translator.search_options(**config.search.given)
    translate = functools.partial(
        translator.translate,
        sources,
        batch_size=config.batch_size,
        split=config.split_sentences,
        **search,
    )
    found = translate(glossary=glossary)
    translations = [translation.text for translation in found]
    _warn(found)
    print(
        f"{config.model.name} on {len(sources)} sentences of {source}, "
        f"beam {search['beam_size']}, length penalty {search['length_penalty']}"
    )
    _print_scores(sources, translations, references)
    if glossary is not None:
        _print_glossary(glossary, sources, found, references, translate)


def _warn(found):
    """Print a warning if sentences were translated in part, or without some phrases."""
    cut = sum(translation.cut for translation in found)
    if cut:
        print(
            f"nmt: warning: {cut} of {len(found)} sentences exceeded the maximum "
            "length of the model, and were cut",
            file=sys.stderr,
        )
    without = sum(bool(translation.omitted) for translation in found)
    if without:
        print(
            f"nmt: warning: the glossary phrases of {without} of {len(found)} "
            "sentences did not all fit, and were left out in part",
            file=sys.stderr,
        )


def _print_scores(sources, translations, references):
    """Print BLEU and chrF2, also by length."""
    scores, signatures = metrics.translation_scores(translations, references)
    for name, score in scores.items():
        print(f"{name:8} {score:6.2f}  {signatures[name]}")
    unit, _ = metrics.lengths_of(sources)
    print("bleu-lc by the length of the source:")
    for lengths, count, score in metrics.bleu_by_length(
        sources, translations, references
    ):
        shortest, longest = lengths
        of = counted(longest, unit)
        if shortest < longest:
            of = f"{shortest} to {of}"
        print(f"{'':8} {score:6.2f}  {counted(count, 'sentence')} of {of}")


def _print_glossary(glossary, sources, found, references, translate):
    """Print how many phrases of a glossary the translations contain, and where.

    `found` are the translations with it; `translate` translates without it.
    """
    translations = [translation.text for translation in found]
    share, count = glossary.coverage(sources, translations)
    print(f"glossary {share:6.2f}  % of {count} phrases are in the translations")
    if not any(one.weights.any() for one in found):
        return
    unconstrained = translate()
    counts = glossary.replacements(sources, found, unconstrained)
    shares = 100 * counts[1:] / max(counts[0], 1)
    for share, text in zip(
        shares,
        ("once", "without the word that they replace", "once and without it"),
        strict=True,
    ):
        print(f"{'':8} {share:6.2f}  % {text}")
    plain = [translation.text for translation in unconstrained]
    scores, _ = metrics.translation_scores(plain, references)
    print(f"{'':8} {scores['bleu-lc']:6.2f}  bleu-lc without the glossary")


def _files(config):
    """Return the files of the source sentences and the references."""
    files = config.source, config.target
    dataset.check_files(files, config.data, pair=config.pair, split=config.split)
    if config.data is None:
        return files
    names = (config.split,) if config.split else dataset.VALIDATION_NAMES
    return dataset.find_files(config.data, config.pair, names)


def calibrate(config):
    """Calibrate a translator as a `CalibrateConfig` describes it."""
    names = (config.split,) if config.split else dataset.VALIDATION_NAMES

    def read(path):
        return dataset.read_pairs(*dataset.find_files(path, config.pair, names)).source

    def run(translator, sentences):
        return translator.translate(sentences, batch_size=config.batch_size)

    calibrate_model(config, RUNTIMES, read=read, run=run)
