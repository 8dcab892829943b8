"""`nmt translate`: sentences or lines in, translations and alignments out."""

import dataclasses
import functools
import itertools
import os
import re
import sys
from pathlib import Path

from keras_attention_apps.common import files
from keras_attention_apps.common.encoding import decoded, encoded
from keras_attention_apps.common.errors import UserError, counted, printable
from keras_attention_apps.common.inference import (
    Inputs,
    LineWriter,
    Writer,
    run_command,
)
from keras_attention_apps.common.output import (
    FIGURE_SUFFIXES,
    JSON_LINES,
    TABLES,
    is_table,
    note,
    plots,
    progress_bar,
    write_figure,
)
from keras_attention_apps.common.schema import LINE, SOURCE
from keras_attention_apps.common.tables import TableWriter, check_table
from keras_attention_apps.nmt.bulk import translate_bulk
from keras_attention_apps.nmt.config import TranslateConfig
from keras_attention_apps.nmt.data.glossary import Glossary
from keras_attention_apps.nmt.markup import language_of, translate_file
from keras_attention_apps.nmt.runtimes import RUNTIMES
from keras_attention_apps.nmt.subwords import decode_line

# Characters of a file of another format that count as one line.
LINE_CHARACTERS = 60


def translate(config):
    """Translate sentences as a `TranslateConfig` describes it.

    The exit code is 2 if a line could not be read.
    """
    if config.bulk.engine == "ray":
        if config.format != "text":
            raise UserError(
                f"--engine ray takes --format text. Received: {config.format}"
            )
        return translate_bulk(config)
    if config.output and config.output.suffix.lower() == JSON_LINES:
        config = dataclasses.replace(config, json=True)
    if config.sentences and config.input is not None:
        raise UserError("expected either sentences or --input, not both")
    if config.format != "text":
        _check_language(config.language)
        config = _with_file(config)
        _check(config)
        return _translate_markup(config)
    _check_text(config)
    _check(config)
    glossary = config.glossary and Glossary.from_file(config.glossary)
    lines = Lines(config)
    if lines.are_typed:
        # A user who types a line waits for its translation. With a batch size of 1, a
        # line is translated before the next is read.
        config = dataclasses.replace(config, batch_size=1)
    translator = _load(
        config, lambda count: config.batch_size > 1 and lines.has_at_least(count)
    )
    if config.plot is not None and not translator.attends:
        raise UserError(
            "--plot shows attention, and this model has none. "
            f"Received: {config.model.name!r}"
        )
    writer: Writer = LineWriter(config, lines, functools.partial(_lines, config))
    if lines.are_for_table:
        extra = ("alignment",) * config.alignments
        writer = TableWriter(config, lines, noun="translation", extra=extra)
    return run_command(
        config,
        lines,
        translator,
        writer,
        draw=functools.partial(_plot, config, lines) if config.plot else None,
        split=config.split_sentences,
        glossary=glossary,
        target_language=config.target_language,
    )


# Formats of files by their suffixes; those of `None` are read as text alone.
_FORMATS = {
    **dict.fromkeys((".htm", ".html", ".xhtml"), "html"),
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    **dict.fromkeys((".po", ".pot"), "po"),
    **dict.fromkeys((".ass", ".ssa"), "ass"),
    ".srt": "srt",
    ".vtt": "vtt",
    **dict.fromkeys((".json", ".tex", ".xml", ".yaml", ".yml"), None),
}


_LANGUAGE = re.compile("[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*(@[A-Za-z0-9]+)?")


def _check_text(config):
    """Raise a `UserError` for what lines of text do not have; warn of other formats."""
    if config.language is not None:
        raise UserError(
            "--language needs --format html or po, whose files name their language. "
            f"Received: {config.language!r}"
        )
    for sentence in config.sentences:
        if os.path.isfile(sentence):
            raise UserError(
                f"{sentence!r} is a file: translate its lines by --input {sentence}. A "
                "text that is also the name of a file goes to the standard input"
            )
    suffix = "" if config.input is None else config.input.suffix.lower()
    if suffix in _FORMATS:
        kind = _FORMATS[suffix]
        advice = f"; --format {kind} keeps them" if kind else ""
        print(
            f"nmt: warning: {printable(config.input)} is read as lines of plain text, "
            f"whose marks are not kept{advice}",
            file=sys.stderr,
        )


def _check_language(language):
    """Raise a `UserError` for what is no code of a language, such as de or pt_BR."""
    if language is not None and not _LANGUAGE.fullmatch(language):
        raise UserError(
            "--language must be the code of a language, such as de or pt-BR. "
            f"Received: {language!r}"
        )


def _load(config, has_at_least):
    translator = RUNTIMES.load_for(
        config,
        has_at_least=has_at_least,
        n_best=config.n_best,
        needs_keras="--glossary" if config.glossary else None,
        jit_compile=config.jit_compile,
    )
    if config.target_language is not None:
        # Before the first sentence is read.
        translator.check_target_language(config.target_language)
    return translator


def _check(config):
    """Raise a `UserError` for invalid options, or combinations of them."""
    lines = config.input
    if lines is not None:
        files.check_input(lines)
    elif not config.sentences:
        files.check_standard_input("sentences, --input, or lines on the standard input")
        lines = files.STANDARD_INPUT
    files.check_read_once(lines, config.glossary)
    if config.output is None and config.plot is None:
        return
    inputs = [*RUNTIMES.files(config.model.name), lines, config.glossary]
    if config.output is not None:
        _check_format(config)
        files.check_file(config.output)
        files.check_distinct(inputs, config.output)
    if config.plot is not None:
        _check_plot(config)
        files.check_distinct([*inputs, config.output], config.plot, whole=False)


def _check_format(config):
    """Raise a `UserError` if the suffix of the output is that of another format."""
    output, suffix = config.output, config.output.suffix.lower()
    if is_table(output) and config.format == "text":
        check_table(config)
        return
    others = (".json", *TABLES, ".parquet", ".xlsx", ".xls", ".ods", ".docx", ".pdf")
    if suffix in others:
        raise UserError(
            "--output must end in .txt, .jsonl (JSON lines), .csv, .tsv or the code "
            f"of a language. Received: {str(output)!r}"
        )
    if config.json and suffix == ".txt":
        raise UserError(
            f"--json needs an --output that ends in .jsonl. Received: {str(output)!r}"
        )


def _check_plot(config):
    """Raise a `UserError` if the plot is not a file for one sentence, or a folder."""
    is_file = config.plot.suffix.lower() in FIGURE_SUFFIXES and not config.plot.is_dir()
    if is_file != _is_plotted_alone(config):
        raise UserError(
            "--plot must be a .png, .jpg, .pdf or .svg file or an existing folder for "
            "a single sentence argument, and a folder otherwise. Received: "
            f"{str(config.plot)!r}"
        )
    if not is_file and config.plot.is_file():
        raise UserError(
            "expected the name of a folder to write plots to. "
            f"Received a file: {str(config.plot)!r}"
        )
    files.check_file(config.plot if is_file else config.plot / "0001.png")


def _is_plotted_alone(config):
    """Return whether --plot is the file of a single plot rather than a folder."""
    return len(config.sentences) == 1 and not config.plot.is_dir()


def _with_file(config):
    """Return a configuration whose input is the file of `--format`."""
    of_lines = ("n_best", "alignments", "plot", "json", "split_sentences")
    for name in of_lines:
        if getattr(config, name) != getattr(TranslateConfig(), name):
            option = name.replace("split", "no-split").replace("_", "-")
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
    path = config.input or files.STANDARD_INPUT
    text, encoding = decoded(files.read_file(path), printable(path))
    translator = _load(config, lambda count: len(text) >= LINE_CHARACTERS * count)
    with progress_bar(desc="sentences") as bar:

        def report(count, total):
            bar.total, bar.n = total, count
            bar.refresh()

        translated = translate_file(
            translator,
            text,
            config.format,
            language=config.language or language_of(config.model.name),
            marks_unsure=True,
            min_score=config.min_score,
            report=report,
            batch_size=config.batch_size,
            glossary=config.glossary and Glossary.from_file(config.glossary),
            target_language=config.target_language,
            **config.search.given,
        )
    content = encoded(translated.text, encoding, references=config.format == "html")
    files.write_or_print(config.output, content)
    for doubt in translated.doubts:
        print(
            f"nmt: warning: {printable(path)}, {doubt.place}: {doubt.reason}: "
            f"{printable(doubt.text)}",
            file=sys.stderr,
        )
    if translated.doubts:
        count = f"{len(translated.doubts)} of {counted(translated.runs, 'text')}"
        print(f"nmt: warning: {count} are unsure", file=sys.stderr)
    if config.output:
        note(f"nmt: wrote {printable(config.output)}")
    return 0


class Lines(Inputs):
    """The sentences of a `TranslateConfig`; one that is not UTF-8 is empty.

    Attributes:
        are_for_table: Whether their translations become rows of a table.
    """

    program = "nmt"
    columns = (LINE, SOURCE)

    def __init__(self, config):
        self._sentences, self._input = config.sentences, config.input
        self.are_for_table = config.output is not None and is_table(config.output)
        # The sentences that have no row of the table yet, by number.
        self._sources: dict[int, str] = {}
        self._source = "arguments"
        if not self._sentences:
            self._source = printable(self._input or "standard input")
        self._lines = self._raw()

    def has_at_least(self, count):
        """Return whether there are at least `count` lines; read these ahead."""
        ahead = list(itertools.islice(self._lines, count))
        self._lines = itertools.chain(ahead, self._lines)
        return len(ahead) == count

    @property
    def are_typed(self):
        """Whether they come from a terminal."""
        return not self._sentences and self._input is None and sys.stdin.isatty()

    def name(self, number):
        return f"{self._source}, line {number}"

    def identity(self, number):
        return {LINE: number}

    def row(self, number):
        return {LINE: number, SOURCE: self._sources.pop(number)}

    def values(self):
        for number, line in enumerate(self._lines, start=1):
            try:
                sentence = decode_line(line, self._source, number)
            except UserError as error:
                self.failures += 1
                self.report("error", error)
                sentence = ""
            if self.are_for_table:
                self._sources[number] = sentence.rstrip("\r\n")
            yield sentence

    def _raw(self):
        if self._sentences:
            # The bytes of the command line, which need not be UTF-8.
            yield from (x.encode("utf-8", "surrogateescape") for x in self._sentences)
        elif self._input is None:
            yield from files.utf8_lines(sys.stdin.buffer, self._source)
        else:
            with files.opened(self._input) as file:
                yield from files.utf8_lines(file, self._source)


def _lines(config, number, translations):
    """Return a line for each translation of a sentence."""
    has_ranks = config.n_best > 1
    lines = []
    for translation in translations:
        columns = [str(number), f"{translation.score:.4f}"] if has_ranks else []
        columns.append(translation.text)
        if config.alignments:
            columns.append(" ".join(translation.details(["alignment"])["alignment"]))
        lines.append("\t".join(columns))
    if not (lines or has_ranks):
        # As for an empty sentence.
        lines = ["\t" if config.alignments else ""]
    return lines


def _plot(config, lines, number, translation):
    if not translation.weights.any():
        lines.report("warning", f"line {number} has nothing to plot")
        return
    alone = _is_plotted_alone(config)
    write_figure(
        config.plot if alone else config.plot / f"{number:04}.png",
        lambda: plots().attention_heatmap(
            translation.weights, translation.source_words, translation.words
        ),
        dpi=150,
    )
