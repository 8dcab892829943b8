"""`nmt evaluate` and `nmt calibrate`: scores of a model, and how sure it is."""

import contextlib
import dataclasses
import functools
import sys
from typing import Any

from keras_attention_apps.common.calibrate import Program, print_figures
from keras_attention_apps.common.calibrate import calibrate as calibrate_model
from keras_attention_apps.common.comparison import LEGEND, check_plot, table, write_plot
from keras_attention_apps.common.errors import UserError, counted, printable
from keras_attention_apps.common.files import check_read_once, resolved
from keras_attention_apps.common.output import note
from keras_attention_apps.nmt import alignments, metrics
from keras_attention_apps.nmt.commands.align import aligned
from keras_attention_apps.nmt.data import dataset
from keras_attention_apps.nmt.lexicon import Lexicon, separated_words
from keras_attention_apps.nmt.runtimes import RUNTIMES


def evaluate(config):
    """Print the scores that an `EvaluateConfig` describes."""
    check_read_once(config.source, config.target, config.alignments)
    sources, references, source = dataset.read_chosen(config)
    if config.alignments is not None:
        if config.target_language is not None:
            raise UserError(
                "--target-language is for translations: with --alignments, begin each "
                f"source with >>{config.target_language}<<"
            )
        return _evaluate_alignments(config, sources, references)
    if config.reverse_model is not None or config.symmetrize is not None:
        raise UserError("--reverse-model and --symmetrize need --alignments")
    names = config.model.names
    check_plot(config.plot, names)
    results = [_translated(config, name, sources) for name in names]
    print(
        f"{', '.join(names)} on {len(sources)} sentences of {source}, "
        f"beam {results[0].search['beam_size']}, "
        f"length penalty {results[0].search['length_penalty']}"
    )
    if len(names) > 1:
        _compare(config, results, sources, references)
        return
    (result,) = results
    translations, texts = result.translations, result.texts
    scores, signatures = metrics.translation_scores(texts, references)
    for name, score in scores.items():
        print(f"{name:8} {score:6.2f}  {signatures[name]}")
    print_figures(result.confidence, translations, judge(translations, references))
    print("bleu-lc by the length of the source:")
    for label, count, score in _by_length(sources, texts, references):
        print(f"{'':8} {score:6.2f}  {counted(count, 'sentence')} of {label}")


@dataclasses.dataclass(frozen=True)
class _Result:
    """The translations of one model, with the options of its search."""

    translations: list
    search: dict
    confidence: Any

    @property
    def texts(self):
        return [translation.text for translation in self.translations]


def _translated(config, name, sources):
    """Return the `_Result` of the model of a name."""
    # Scores are those of the Keras model, unless LiteRT is requested.
    translator = RUNTIMES.load_for(config, name, auto="keras")
    search = translator.search_options(**config.search.given)
    translations = translator.translate(
        sources,
        batch_size=config.batch_size,
        split=config.split_sentences,
        target_language=config.target_language,
        **search,
    )
    cut = sum(translation.cut for translation in translations)
    if cut:
        print(
            f"nmt: warning: {cut} of {len(translations)} sentences exceeded the "
            "maximum length of the model, and were cut",
            file=sys.stderr,
        )
    return _Result(translations, search, translator.confidence)


def _by_length(sources, translations, references):
    """Yield a description of lengths of sources, their number, and their BLEU."""
    unit, _ = metrics.lengths_of(sources)
    for (shortest, longest), count, score in metrics.bleu_by_length(
        sources, translations, references
    ):
        label = counted(longest, unit)
        yield f"{shortest} to {label}" if shortest < longest else label, count, score


def _compare(config, results, sources, references):
    """Print the scores of several models as a table, and draw them."""
    names, texts = config.model.names, [result.texts for result in results]
    scores = metrics.compared_scores(texts, references)
    print(table(names, scores))
    print(LEGEND)
    lengths = [[*_by_length(sources, x, references)] for x in texts]
    print("bleu-lc by the length of the source:")
    for of_part in zip(*lengths, strict=True):
        label, count, _ = of_part[0]
        columns = " ".join(f"{score:6.2f}" for _, _, score in of_part)
        print(f"{'':8} {columns}  {counted(count, 'sentence')} of {label}")
    if config.plot is not None:
        labels = [label.rpartition(" ")[0] for label, _, _ in lengths[0]]
        values = [[score for _, _, score in of_model] for of_model in lengths]
        unit, _ = metrics.lengths_of(sources)
        curves = f"bleu-lc by {unit}s", labels, values
        write_plot(config.plot, names, scores, curves)
        note(f"nmt: wrote {printable(config.plot)}")


def _evaluate_alignments(config, sources, targets):
    """Print the alignment error rate of the pairs."""
    references = alignments.read_references(config.alignments)
    if len(references) != len(sources):
        raise UserError(
            f"expected {counted(len(sources), 'line')} of alignments. Received: "
            f"{len(references)} in {config.alignments}"
        )
    pairs = list(zip(sources, targets, strict=True))
    for name in config.model.names:
        links = [links for links, _ in aligned(config, pairs, name)]
        rate = alignments.alignment_error_rate(links, references)
        reverse = config.reverse_model
        names = name if reverse is None else f"{name} and {reverse}"
        print(f"{names} on {counted(len(pairs), 'pair')} of sentences")
        print(f"AER      {100 * rate:6.2f}")


# Sentence chrF (lower-cased) from which a translation is usable, and below which it is
# not. Between them, a single reference does not tell: it may be worded otherwise.
USABLE, UNUSABLE = 60, 40
# A translator is unsure below this probability of being usable. With it, both default
# translators mark at least 70 % of the unusable and at most 15 % of the usable
# translations of `benchmarks/confidence.py`.
THRESHOLD = 0.59
# The length of a source tells data sets apart rather than good translations from bad.
# Models that were calibrated by older versions need it.
IGNORED = ("log_source_length",)


def judge(translations, references):
    """Return whether each translation is usable; `None` where that is not clear."""
    from sacrebleu.metrics import CHRF

    metric = CHRF(lowercase=True)
    usable: list[bool | None] = []
    for translation, reference in zip(translations, references, strict=True):
        score = metric.sentence_score(translation.text, [reference]).score
        is_clear = score >= USABLE or score < UNUSABLE
        usable.append(score >= USABLE if is_clear else None)
    return usable


def _training_files(config):
    """Return the source and target files from which a lexicon is learned."""
    if config.lexicon_data:
        folders = map(resolved, config.lexicon_data)
        return [
            dataset.find_files(folder, config.pair, dataset.TRAINING_NAMES)
            for folder in folders
        ]
    file_pairs = []
    for folder in map(resolved, config.data):
        with contextlib.suppress(UserError):
            names = dataset.TRAINING_NAMES
            file_pairs.append(dataset.find_files(folder, config.pair, names))
    return file_pairs


def calibrate(config):
    """Calibrate a translator as a `CalibrateConfig` describes it."""
    names = (config.split,) if config.split else dataset.VALIDATION_NAMES

    files = config.source, config.target
    if any(files):
        # The data of --out-of-domain may need them.
        unused = ("pair", "split", "columns") if not config.out_of_domain else ()
        options = {name: getattr(config, name) or None for name in unused}
        dataset.check_files(files, config.data or None, **options)
        check_read_once(*files)
        config = dataclasses.replace(config, data=(config.source or config.target,))

    def read(path):
        if any(files):
            pairs = dataset.read_pairs(*files)
        else:
            pairs = dataset.read_split(path, config.pair, names, config.columns)
        return pairs.source, pairs.target

    def read_others(path):
        return dataset.read_split(path, config.pair, names, config.columns).source

    def run(translator, sentences):
        return translator.translate(
            sentences,
            batch_size=config.batch_size,
            split=False,
            target_language=config.target_language,
        )

    def learn_lexicon(translator):
        texts = [dataset.read_pairs(*files) for files in _training_files(config)]
        translator.lexicon = None
        if texts:
            pairs = dataset.joined(texts, [1] * len(texts))
            print(f"learning a lexicon from {counted(len(pairs), 'pair')} of sentences")
            words_of = functools.partial(separated_words, translator.tokenizer)
            translator.lexicon = Lexicon.learn(pairs.source, pairs.target, words_of)

    program = Program(
        read,
        read_others,
        run,
        judge,
        learn_lexicon,
        ignored=IGNORED,
        threshold=THRESHOLD,
    )
    calibrate_model(config, RUNTIMES, program)
