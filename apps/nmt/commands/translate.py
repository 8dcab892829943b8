"""`nmt translate`: sentences or lines in, translations and alignments out."""

import collections
import contextlib
import dataclasses
import itertools
import math
import sys
from pathlib import Path

from keras_attention_apps.common.errors import UserError, printable
from keras_attention_apps.common.figures import FIGURE_SUFFIXES, plots, write_figure
from keras_attention_apps.common.files import (
    STANDARD_INPUT,
    Inputs,
    atomic_path,
    check_file,
    check_input,
    check_read_once,
    check_standard_input,
    decoded,
    opened,
    read_file,
    to_json,
    utf8_lines,
    write_or_print,
)
from keras_attention_apps.common.hypotheses import DIGITS
from keras_attention_apps.common.tables import DELIMITERS, JSON_LINES, TEXT, TableWriter
from keras_attention_apps.nmt.config import TranslateConfig
from keras_attention_apps.nmt.data.glossary import Glossary
from keras_attention_apps.nmt.markup import encoded, language_of
from keras_attention_apps.nmt.text import decode_line
from keras_attention_apps.nmt.translations import RUNTIMES


def translate(config):
    """Translate sentences as a `TranslateConfig` describes it.

    The exit code is 2 if a line could not be read.
    """
    if config.bulk.engine == "ray":
        if config.format != "text":
            raise UserError(
                f"--engine ray takes --format text. Received: {config.format}"
            )
        # A lazy import, since the local engine does not need this module.
        from keras_attention_apps.nmt.bulk import translate_bulk

        return translate_bulk(config)
    config.bulk.check_local()
    search, model_options = config.search.given, config.model.options
    sampling = config.sampling or None
    if config.output and config.output.suffix.lower() == JSON_LINES:
        config = dataclasses.replace(config, json=True)
    _check(config)
    if config.format != "text":
        return _translate_markup(config)
    glossary = config.glossary and Glossary.from_file(config.glossary)
    lines = _Lines(config)
    # A user who types a line waits for its translation.
    batch_size = 1 if lines.are_typed else config.batch_size
    keras_only = {
        "--glossary": config.glossary,
        "--sampling-temperature": sampling,
    }
    translator = RUNTIMES.load(
        config.model.name,
        config.runtime,
        # With a batch size of 1, a line is translated before the next is read.
        count=lines.count(RUNTIMES.max_litert_inputs + 1) if batch_size > 1 else 1,
        search=search,
        n_best=1 if sampling else config.n_best,
        needs_keras=next((flag for flag, given in keras_only.items() if given), None),
        **model_options,
        jit_compile=config.jit_compile,
    )
    if config.plot is not None and not translator.attends:
        raise UserError(
            "--plot shows attention, and this model has none. "
            f"Received: {config.model.name!r}"
        )
    found = translator.translate_each(
        lines,
        n_best=config.n_best,
        batch_size=batch_size,
        split=config.split_sentences,
        glossary=glossary,
        sampling=sampling,
        **search,
    )
    with _output(config) as file:
        table = _table(config, file)
        for number, translations in enumerate(found, start=1):
            _warn(f"{lines.name}, line {number}", translations[0])
            kept = _probable(config, f"{lines.name}, line {number}", translations)
            source = lines.read.popleft().rstrip("\r\n")
            if table:
                for row in _rows(number, source, kept):
                    table.write(row)
            else:
                for line in _output_lines(config, number, translations, kept):
                    print(line, file=file, flush=True)
            if config.plot and kept:
                _plot(config, number, kept[0])
    return 2 if lines.failures else 0


def _check(config):
    """Raise a `UserError` for invalid options, or combinations of them."""
    if config.sentences and config.input is not None:
        raise UserError("expected either sentences or --input, not both")
    if config.format != "text":
        config = _with_file(config)
    lines = config.input
    if lines is not None:
        check_input(lines)
    elif not config.sentences:
        check_standard_input("sentences, --input, or lines on the standard input")
        lines = STANDARD_INPUT
    check_read_once(lines, config.glossary)
    if config.output is None and config.plot is None:
        return
    inputs = [*RUNTIMES.files(config.model.name), lines, config.glossary]
    if config.output is not None:
        _check_format(config)
        check_file(config.output)
        Inputs(*inputs).check(config.output)
    if config.plot is not None:
        _check_plot(config)
        Inputs(*inputs, config.output).check(config.plot, whole=False)


def _check_format(config):
    """Raise a `UserError` if the suffix of the output is that of another format."""
    output, suffix = config.output, config.output.suffix.lower()
    if suffix in (".json", ".parquet", ".xlsx", ".xls", ".ods", ".docx", ".pdf"):
        raise UserError(
            "--output must end in .csv, .tsv, .txt, .jsonl (JSON lines) or the code of "
            f"a language. Received: {str(output)!r}"
        )
    if config.json and suffix in (*DELIMITERS, TEXT):
        raise UserError(
            f"--json needs an --output that ends in .jsonl. Received: {str(output)!r}"
        )


def _table(config, file):
    """Return the writer of a table; `None` if the output has no columns."""
    suffix = config.output.suffix.lower() if config.output else ""
    if suffix not in DELIMITERS:
        return None
    columns = ["line", "source", "translation", "mean_log_probability", "unsure"]
    if config.n_best > 1:
        columns.insert(2, "score")
    if config.alignments:
        columns.append("alignment")
    return TableWriter(file, suffix, columns, text="translation")


def _rows(number, source, kept):
    """Return the rows of a sentence, as dicts; one is empty without a translation."""
    rows = [
        {**one.details(), "alignment": " ".join(one.details()["alignment"])}
        for one in kept
    ]
    return [{**row, "line": number, "source": source} for row in rows or [{}]]


def _check_plot(config):
    is_file = config.plot.suffix.lower() in FIGURE_SUFFIXES and not config.plot.is_dir()
    if is_file != _is_plotted_alone(config):
        raise UserError(
            "--plot must be a .png, .jpg, .pdf or .svg file or an existing folder for "
            "a single sentence argument, and a folder otherwise. Received: "
            f"{str(config.plot)!r}"
        )
    if is_file:
        check_file(config.plot)
    elif config.plot.is_file():
        raise UserError(
            "expected the name of a folder to write plots to. "
            f"Received a file: {str(config.plot)!r}"
        )
    else:
        check_file(config.plot / "0001.png")


def _is_plotted_alone(config):
    """Return whether --plot is the file of a single plot rather than a folder."""
    return len(config.sentences) == 1 and not config.plot.is_dir()


def _with_file(config):
    """Return a configuration whose input is the file of `--format`."""
    of_lines = ("n_best", "alignments", "plot", "json", "min_score", "sampling")
    for name in (*of_lines, "split_sentences"):
        if getattr(config, name) != getattr(TranslateConfig(), name):
            option = name.removesuffix("s_sentences").replace("_", "-")
            raise UserError(
                f"--format {config.format} writes the translated file, without the "
                f"options of lines. Received: --{option}"
            )
    if len(config.sentences) > 1:
        raise UserError(
            f"--format {config.format} takes one file. Received: "
            f"{len(config.sentences)}"
        )
    file = Path(config.sentences[0]) if config.sentences else config.input
    return dataclasses.replace(config, sentences=(), input=file)


def _translate_markup(config):
    """Translate the file of `--format`, and return the exit code."""
    path = _with_file(config).input or STANDARD_INPUT
    is_html = config.format == "html"
    text, encoding = decoded(read_file(path), printable(path), is_html=is_html)
    translator = RUNTIMES.load(
        config.model.name,
        config.runtime,
        count=text.count("\n") + 1,
        search=config.search.given,
        needs_keras=config.glossary and "--glossary",
        **config.model.options,
        jit_compile=config.jit_compile,
    )
    options = {
        "batch_size": config.batch_size,
        "glossary": config.glossary and Glossary.from_file(config.glossary),
        **config.search.given,
    }
    if is_html:
        language = config.language or language_of(config.model.name)
        found = translator.translate_html(text, language=language, **options)
    else:
        found = translator.translate_subtitles(text, **options)
    content = encoded(found, encoding, is_html=is_html)
    write_or_print(config.output, content)
    return 0


class _Lines:
    """The sentences to translate; an undecodable one is empty, and counted."""

    def __init__(self, config):
        self._sentences = config.sentences
        self._input = config.input
        self.name = "arguments"
        if not self._sentences:
            self.name = printable(self._input or "standard input")
        self.failures = 0
        # The sentences that are not written yet.
        self.read = collections.deque()
        self._lines = self._raw()
        self._counted = []

    @property
    def are_typed(self):
        """Whether they come from a terminal."""
        return not self._sentences and self._input is None and sys.stdin.isatty()

    def count(self, most):
        """Count the sentences, up to `most`; those that are counted are read."""
        self._counted += itertools.islice(self._lines, most)
        return len(self._counted)

    def __iter__(self):
        lines = itertools.chain(self._counted, self._lines)
        for number, line in enumerate(lines, start=1):
            try:
                sentence = decode_line(line, self.name, number)
            except UserError as error:
                self.failures += 1
                print(f"nmt: error: {error}", file=sys.stderr)
                sentence = ""
            self.read.append(sentence)
            yield sentence

    def _raw(self):
        if self._sentences:
            # The bytes of the command line, which need not be UTF-8.
            for sentence in self._sentences:
                yield sentence.encode("utf-8", "surrogateescape")
        elif self._input is None:
            yield from utf8_lines(sys.stdin.buffer, self.name)
        else:
            with opened(self._input) as file:
                yield from utf8_lines(file, self.name)


@contextlib.contextmanager
def _output(config):
    """Yield the output file."""
    if config.output is None:
        yield sys.stdout
        return
    with (
        atomic_path(config.output) as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as file,
    ):
        yield file


def _warn(name, translation):
    """Print a warning if a sentence is translated in part, or without some phrases."""
    if translation.cut:
        count = len(translation.source_words)
        words = "word was" if count == 1 else f"{count} words were"
        print(
            f"nmt: warning: {name}: too long; only {words} translated",
            file=sys.stderr,
        )
    if translation.omitted:
        count = len(translation.omitted)
        omitted = (
            "1 glossary phrase does not fit, and is"
            if count == 1
            else f"{count} glossary phrases do not fit, and are"
        )
        print(f"nmt: warning: {name}: {omitted} left out", file=sys.stderr)


def _probable(config, name, translations):
    """Return the translations that are probable enough; warn of none or unsure ones."""
    least = -math.inf if config.min_score is None else config.min_score
    kept = [one for one in translations if _score(one) >= least]
    if kept and kept[0].unsure:
        print(f"nmt: warning: {name}: unsure of the translation", file=sys.stderr)
    if not kept:
        print(
            f"nmt: warning: {name}: no translation with a mean log-probability of at "
            f"least {config.min_score}; that of the best one is {_best(translations)}",
            file=sys.stderr,
        )
    return kept


def _score(one):
    """Return the mean log-probability of a translation, as in the output."""
    return round(one.mean_log_probability, DIGITS)


def _best(translations):
    """Return the highest mean log-probability of some translations."""
    return max(map(_score, translations))


def _output_lines(config, number, translations, kept):
    """Return the lines of output of a sentence."""
    if config.json:
        return [to_json({"line": number, **_entry(config, translations, kept)})]
    if kept:
        return [_line(config, number, one) for one in kept]
    if config.n_best > 1:
        return []
    # As for an empty sentence.
    return ["\t" if config.alignments else ""]


def _entry(config, translations, kept):
    """Return the JSON object of a sentence, without its number."""
    if not kept:
        empty = {"translations": []} if config.n_best > 1 else {"translation": None}
        return {**empty, "mean_log_probability": _best(translations)}
    entries = [one.details() for one in kept]
    return {"translations": entries} if config.n_best > 1 else entries[0]


def _line(config, number, translation):
    """Format a translation as a line of output."""
    columns = [translation.text]
    if config.n_best > 1:
        columns = [str(number), f"{translation.score:.4f}", *columns]
    if config.alignments:
        columns.append(" ".join(translation.details()["alignment"]))
    return "\t".join(columns)


def _plot(config, number, translation):
    if not translation.weights.any():
        print(f"nmt: warning: line {number} has nothing to plot", file=sys.stderr)
        return
    alone = _is_plotted_alone(config)
    write_figure(
        config.plot if alone else config.plot / f"{number:04}.png",
        lambda: plots().attention_heatmap(
            translation.weights, translation.source_words, translation.words
        ),
        dpi=150,
    )
