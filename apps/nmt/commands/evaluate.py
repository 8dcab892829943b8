"""`nmt evaluate` and `nmt calibrate`: scores of a model, and how sure it is."""

import sys

from keras_attention_apps.common.errors import counted
from keras_attention_apps.common.files import check_read_once
from keras_attention_apps.common.hypotheses import calibrate as calibrate_model
from keras_attention_apps.nmt import metrics
from keras_attention_apps.nmt.data import dataset
from keras_attention_apps.nmt.translations import RUNTIMES


def evaluate(config):
    """Print the scores that an `EvaluateConfig` describes."""
    source, target = _files(config)
    check_read_once(source, target)
    sources, references = dataset.read_parallel(source, target)
    # Scores are those of the Keras model, unless LiteRT is requested.
    translator = RUNTIMES.load_for(config, auto="keras")
    search = translator.search_options(**config.search.given)
    found = translator.translate(
        sources,
        batch_size=config.batch_size,
        split=config.split_sentences,
        **search,
    )
    cut = sum(translation.cut for translation in found)
    if cut:
        print(
            f"nmt: warning: {cut} of {len(found)} sentences exceeded the maximum "
            "length of the model, and were cut",
            file=sys.stderr,
        )
    print(
        f"{config.model.name} on {len(sources)} sentences of {source}, "
        f"beam {search['beam_size']}, length penalty {search['length_penalty']}"
    )
    translations = [translation.text for translation in found]
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
