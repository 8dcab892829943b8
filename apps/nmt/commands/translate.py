"""`nmt translate`: sentences or lines in, translations and alignments out."""

import contextlib
import dataclasses
import sys
from pathlib import Path

from keras_attention_apps.common import files
from keras_attention_apps.common.errors import UserError, counted, printable
from keras_attention_apps.common.hypotheses import rounded_score
from keras_attention_apps.common.output import (
    FIGURE_SUFFIXES,
    JSON_LINES,
    note,
    plots,
    write_figure,
)
from keras_attention_apps.nmt.config import TranslateConfig
from keras_attention_apps.nmt.data.glossary import Glossary
from keras_attention_apps.nmt.markup import (
    encoded,
    language_of,
    translate_html,
    translate_subtitles,
)
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
    if config.output and config.output.suffix.lower() == JSON_LINES:
        config = dataclasses.replace(config, json=True)
    if config.sentences and config.input is not None:
        raise UserError("expected either sentences or --input, not both")
    if config.format != "text":
        config = _with_file(config)
        _check(config)
        return _translate_markup(config)
    _check(config)
    glossary = config.glossary and Glossary.from_file(config.glossary)
    lines = _Lines(config)
    # A user who types a line waits for its translation. With a batch size of 1, a line
    # is translated before the next is read.
    batch_size = 1 if lines.are_typed else config.batch_size
    translator = _load(config)
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
        **config.search.given,
    )
    with contextlib.ExitStack() as stack:
        file = sys.stdout
        if config.output:
            temporary = stack.enter_context(files.atomic_path(config.output))
            file = stack.enter_context(
                open(temporary, "w", encoding="utf-8", newline="")
            )
        for number, translations in enumerate(found, start=1):
            kept = _probable(config, f"{lines.name}, line {number}", translations)
            _write(config, file, number, translations, kept)
            if config.plot and kept:
                _plot(config, number, kept[0])
    if config.output:
        note(f"nmt: wrote {printable(config.output)}")
    return 2 if lines.failures else 0


def _load(config):
    return RUNTIMES.load_for(
        config,
        n_best=config.n_best,
        needs_keras="--glossary" if config.glossary else None,
        jit_compile=config.jit_compile,
    )


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
    tables = (".csv", ".tsv", ".parquet", ".xlsx", ".xls", ".ods")
    if suffix in (".json", *tables, ".docx", ".pdf"):
        raise UserError(
            "--output must end in .txt, .jsonl (JSON lines) or the code of a language. "
            f"Received: {str(output)!r}"
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
    of_lines = ("n_best", "alignments", "plot", "json", "min_score", "split_sentences")
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
    is_html = config.format == "html"
    content = files.read_file(path)
    text, encoding = files.decoded(content, printable(path), is_html=is_html)
    translator = _load(config)
    options = {
        "batch_size": config.batch_size,
        "glossary": config.glossary and Glossary.from_file(config.glossary),
        **config.search.given,
    }
    if is_html:
        language = config.language or language_of(config.model.name)
        found = translate_html(translator, text, language=language, **options)
    else:
        found = translate_subtitles(translator, text, **options)
    files.write_or_print(config.output, encoded(found, encoding, is_html=is_html))
    if config.output:
        note(f"nmt: wrote {printable(config.output)}")
    return 0


class _Lines:
    """The sentences to translate; an undecodable one is empty, and counted."""

    def __init__(self, config):
        self._sentences, self._input = config.sentences, config.input
        self.name = "arguments"
        if not self._sentences:
            self.name = printable(self._input or "standard input")
        self.failures = 0

    @property
    def are_typed(self):
        """Whether they come from a terminal."""
        return not self._sentences and self._input is None and sys.stdin.isatty()

    def __iter__(self):
        for number, line in enumerate(self._raw(), start=1):
            try:
                sentence = decode_line(line, self.name, number)
            except UserError as error:
                self.failures += 1
                print(f"nmt: error: {error}", file=sys.stderr)
                sentence = ""
            yield sentence

    def _raw(self):
        if self._sentences:
            # The bytes of the command line, which need not be UTF-8.
            yield from (x.encode("utf-8", "surrogateescape") for x in self._sentences)
        elif self._input is None:
            yield from files.utf8_lines(sys.stdin.buffer, self.name)
        else:
            with files.opened(self._input) as file:
                yield from files.utf8_lines(file, self.name)


def _probable(config, name, translations):
    """Return the translations that are probable enough, and print warnings."""

    def warn(text):
        print(f"nmt: warning: {name}: {text}", file=sys.stderr)

    best = translations[0]
    if best.cut:
        count = len(best.source_words)
        were = "was" if count == 1 else "were"
        warn(f"too long; only {counted(count, 'word')} {were} translated")
    if best.omitted:
        count = len(best.omitted)
        are = "does not fit, and is" if count == 1 else "do not fit, and are"
        warn(f"{counted(count, 'glossary phrase')} {are} left out")
    kept, least = translations, config.min_score
    if least is not None:
        kept = [one for one in translations if rounded_score(one) >= least]
    if kept and kept[0].unsure:
        warn("unsure of the translation")
    if not kept:
        warn(
            f"no translation with a mean log-probability of at least {least}; that of "
            f"the best one is {max(map(rounded_score, translations))}"
        )
    return kept


def _write(config, file, number, translations, kept):
    """Write the translations of a sentence, as JSON or as lines."""
    several = config.n_best > 1
    if config.json:
        found = [one.details() for one in kept]
        entry = {"translations": found} if several else {"translation": None}
        if not found:
            entry["mean_log_probability"] = max(map(rounded_score, translations))
        elif not several:
            (entry,) = found
        print(files.to_json({"line": number, **entry}), file=file, flush=True)
        return
    for one in kept:
        columns = [str(number), f"{one.score:.4f}"] if several else []
        columns.append(one.text)
        if config.alignments:
            columns.append(" ".join(one.details()["alignment"]))
        print("\t".join(columns), file=file, flush=True)
    if not (kept or several):
        # As for an empty sentence.
        print("\t" if config.alignments else "", file=file, flush=True)


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
