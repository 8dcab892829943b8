"""`captioner caption`: captions as lines, as JSON, or as a file that can be resumed."""

import contextlib
import json
import math
import os
import sys

from keras_attention_apps.captioner.captions import RUNTIMES, check_inference
from keras_attention_apps.captioner.config import (
    CAPTION_NEEDS,
    METADATA_NEEDS,
    CaptionSearchOptions,
)
from keras_attention_apps.captioner.images import (
    ImageError,
    find_images,
    is_open,
    with_open_files,
)
from keras_attention_apps.common import files
from keras_attention_apps.common.errors import UserError, counted, printable
from keras_attention_apps.common.hypotheses import check_n_best, rounded_score
from keras_attention_apps.common.models import changes_in
from keras_attention_apps.common.options import check_needs
from keras_attention_apps.common.output import (
    DELIMITERS,
    JSON_LINES,
    TEXT,
    TableWriter,
    note,
    progress_bar,
)
from tqdm import tqdm

# End of the name of the file from which an interrupted run of a table resumes.
UNFINISHED = ".unfinished"
# The beginning of every line of an output.
BEGINNING = b'{"image": "'
# What errors call an empty list of options.
DEFAULT = "the default options"


def caption(config):
    """Caption images as a `CaptionConfig` describes it.

    The exit code is 2 if an image or a folder could not be read.
    """
    _check_options(config)
    if config.format == "html":
        from keras_attention_apps.captioner.pages import complete_page

        return complete_page(config)
    if config.bulk.engine == "ray":
        from keras_attention_apps.captioner.bulk import caption_bulk

        return caption_bulk(config)
    paths, failures = _find(config.images)
    beam = config.search.given
    several = len(paths) > 1 or paths != list(config.images)
    overlays, metadata = _check_outputs(config, paths)
    captioner = RUNTIMES.load_for(
        config, n_best=config.n_best, jit_compile=config.jit_compile
    )
    unreadable = 0
    with contextlib.ExitStack() as stack:
        records, everything = None, paths
        if config.output:
            search = captioner.search_options(**beam)
            check_n_best(config.n_best, search)
            options = _options(config, search)
            records = stack.enter_context(
                Records(_records(config), config.model.name, options)
            )
            missing = {path for path, x in overlays.items() if not x.exists()}
            missing |= metadata.missing if metadata else set()
            paths = [x for x in paths if x not in records or x in missing]
            bar = progress_bar(total=len(paths), unit="image")
            progress = stack.enter_context(bar)
        found = captioner.caption_each(
            # The overlay is drawn on the same bytes.
            with_open_files(paths),
            n_best=config.n_best,
            batch_size=config.batch_size,
            **beam,
        )
        for path, (image, captions) in zip(paths, found, strict=True):
            kept, errors = captions, [captions]
            unreadable += isinstance(captions, ImageError)
            if not isinstance(captions, ImageError):
                kept, target = _probable(config, path, captions), overlays.get(path)
                errors = _write_files(config, image, path, kept, target, metadata)
            for error in errors:
                _tell("error", error)
            failures += bool(errors)
            if records is None:
                _print(config, several, path, captions, kept)
                continue
            if path not in records:
                records.add(path, _entry(config, captions, kept, details=config.json))
            progress.update()
    if records:
        _finish(config, everything, len(paths), unreadable)
    if metadata:
        note(metadata.summary())
    return 2 if failures else 0


def _check_options(config):
    """Raise a `UserError` for options that do not fit together."""
    if not config.images:
        raise UserError("expected at least one image or folder. Received: none")
    check_needs(config, CAPTION_NEEDS)
    check_needs(config.metadata, METADATA_NEEDS)
    if config.model.inference:
        check_inference(config.model)
    is_local = config.bulk.engine == "local"
    if is_local and config.output and config.format != "html":
        _check_output(config)


def _finish(config, paths, tried, unreadable):
    """Write the table, if the output is one, and say how many captions it has."""
    if _is_table(config):
        _write_table(config, paths)
        _records(config).unlink()
    count, earlier = counted(tried - unreadable, "image"), len(paths) - tried
    wrote = [f"captioner: wrote captions of {count} to {printable(config.output)}"]
    if earlier:
        wrote.append(f"those of {earlier:,} were there before")
    if unreadable:
        wrote.append(f"{counted(unreadable, 'image')} could not be read")
    note("; ".join(wrote))


def _is_table(config):
    return config.output.suffix.lower() != JSON_LINES


def _records(config):
    """Return the file of JSON lines: the output, or that from which it is written."""
    if not _is_table(config):
        return config.output
    return config.output.with_name(f"{config.output.name}{UNFINISHED}")


def _check_output(config):
    """Raise a `UserError` if the output is no file of a known format that fits."""
    output, suffix = config.output, config.output.suffix.lower()
    files.check_file(output)
    if files.is_pipe_or_device(output):
        raise UserError(
            "--output must be a file, so that an interrupted run can continue it. "
            f"Received a pipe or a device: {str(output)!r}"
        )
    if suffix not in (*DELIMITERS, TEXT, JSON_LINES):
        raise UserError(
            "--output must end in .csv, .tsv, .txt or .jsonl (JSON lines). "
            f"Received: {str(output)!r}"
        )
    if config.json and suffix != JSON_LINES:
        raise UserError(
            f"--json needs an --output that ends in .jsonl. Received: {str(output)!r}"
        )
    if config.n_best > 1 and suffix == TEXT:
        raise UserError(
            "a text file has one caption on each line; --n-best needs an --output that "
            f"ends in .csv, .tsv or .jsonl. Received: {str(output)!r}"
        )
    if _is_table(config) and output.exists() and not _records(config).exists():
        raise UserError(
            "expected the name of a new file, since captions in it may have been "
            f"corrected. Received: {str(output)!r}, which exists"
        )


def _write_table(config, paths):
    """Write the captions of all images, in their order."""
    found = {}
    with open(_records(config), encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            found[_key(entry["image"])] = entry
    columns = ["image", "caption", "mean_log_probability", "unsure", "error"]
    if config.n_best > 1:
        columns.insert(1, "score")
    with (
        files.atomic_path(config.output) as temporary,
        open(
            temporary, "w", encoding="utf-8", errors="surrogateescape", newline=""
        ) as file,
    ):
        suffix = config.output.suffix.lower()
        writer = TableWriter(file, suffix, columns, text="caption")
        for path in paths:
            entry = found[_key(path)]
            for caption in entry.get("captions") or [{}]:
                writer.write({**entry, **caption, "image": str(path)})


def _key(path):
    return str(path) if is_open(path) else os.path.abspath(path)


def _check_outputs(config, paths):
    """Check and return the files to write: overlays by images, and metadata."""
    if not (config.output or config.overlay or config.metadata.writes):
        return {}, None
    overlays, metadata = {}, None
    if config.overlay:
        from keras_attention_apps.captioner.overlays import find_overlays

        overlays = find_overlays(config.overlay, config.images, paths)
    if config.metadata.writes:
        from keras_attention_apps.captioner.image_metadata import MetadataWriter

        metadata = MetadataWriter(config.metadata, config.images, paths)
    inputs = [*paths, *RUNTIMES.files(config.model.name)]
    if config.output:
        files.check_distinct(inputs, config.output, _records(config))
    # The output is read, too, when it is continued.
    files.check_distinct([*inputs, config.output], *overlays.values())
    if metadata and config.metadata.write_metadata:
        outputs = (*inputs, config.output, *overlays.values())
        files.check_distinct(outputs, *metadata.targets.values())
    return overlays, metadata


def _options(config, search):
    """Return the options on which captions depend, as on the command line.

    Those with their defaults are left out. Those of the search may differ from the
    defaults although none was given: a LiteRT file has its own.
    """
    defaults = CaptionSearchOptions.defaults
    given = {name: x for name, x in search.items() if x != defaults[name]}
    given |= changes_in(config.model.options)
    if config.n_best > 1:
        given["n_best"] = config.n_best
    if config.min_score is not None:
        given["min_score"] = config.min_score
    options = [f"--{name.replace('_', '-')} {x}" for name, x in given.items()]
    return " ".join(sorted(options + ["--json"] * config.json))


def _find(given):
    """Return the paths of all images, and the number of folders without any.

    An error of a folder is printed if it is one of several, and raised otherwise.
    """
    paths, failures = [], 0
    for path in given:
        if not os.path.isdir(path):
            paths.append(path)
            continue
        try:
            found, left_out = find_images(path)
            paths += found
            if left_out:
                _tell(
                    "warning",
                    f"{len(left_out)} of the files in {str(path)!r} are images of "
                    f"formats that cannot be read, the first {left_out[0].name!r}",
                )
        except ImageError as error:
            if len(given) == 1:
                raise
            _tell("error", error)
            failures += 1
    return paths, failures


def _write_files(config, image, path, captions, target, metadata):
    """Write the overlay of an image to its `target`, and its metadata.

    Returns the list of the errors.
    """
    calls: list[tuple] = []
    errors = []
    if captions and target:
        from keras_attention_apps.captioner.overlays import write_overlay

        calls.append((write_overlay, image, captions[0], target, config.overlay_words))
    if metadata:
        calls.append((metadata.write, path, captions))
    for write, *arguments in calls:
        try:
            write(*arguments)
        except (UserError, OSError) as error:
            errors.append(error)
    return errors


def _probable(config, path, captions):
    """Return the captions that are probable enough; warn of none, or an unsure one."""
    least = -math.inf if config.min_score is None else config.min_score
    kept = [one for one in captions if rounded_score(one) >= least]
    if kept and kept[0].unsure:
        _tell("warning", f"{str(path)!r}: unsure of the caption {kept[0].text!r}")
    if not kept:
        _tell(
            "warning",
            f"{str(path)!r} has no caption with a mean log-probability of at least "
            f"{least}; that of the best one is {max(map(rounded_score, captions))}",
        )
    return kept


def _tell(kind, message):
    # `print` would break the progress bar.
    tqdm.write(f"captioner: {kind}: {printable(message)}", file=sys.stderr)


def _print(config, several, path, captions, kept):
    """Print the captions of an image as lines with columns, or as JSON."""
    if isinstance(captions, ImageError):
        return
    if config.json:
        described = _entry(config, captions, kept, details=True)
        print(files.to_json({"image": str(path), **described}), flush=True)
        return
    for one in kept:
        columns = [printable(one.text)]
        if config.n_best > 1:
            columns = [f"{one.score:.4f}", *columns]
        if several or config.n_best > 1:
            columns = [printable(path), *columns]
        print("\t".join(columns), flush=True)


def _entry(config, captions, kept, details):
    """Return the JSON object of an image, without its path.

    Without a probable caption, it has the mean log-probability of the best one.
    """
    if isinstance(captions, ImageError):
        return {"error": str(captions)}
    if not kept:
        empty: dict = {"captions": []} if config.n_best > 1 else {"caption": None}
        return {**empty, "mean_log_probability": max(map(rounded_score, captions))}
    entries = []
    for one in kept:
        entry = {"caption": one.text, "mean_log_probability": rounded_score(one)}
        if one.unsure is not None:
            entry["unsure"] = one.unsure
        if details:
            entry = one.details()
        elif config.n_best > 1:
            entry["score"] = round(one.score, 4)
        entries.append(entry)
    return {"captions": entries} if config.n_best > 1 else entries[0]


class Records:
    """A file of JSON lines that a later run resumes, as a context manager.

    Every line has the model, and the options on which the captions depend. A run
    removes an incomplete last line and the lines with an error, and captions these
    images again.
    """

    def __init__(self, path, model, options=""):
        self.path = path
        # Shell completion appends a slash to the name of a folder.
        self.model = model.rstrip("/" + os.sep)
        self.options = options
        self._captioned = set()

    def __contains__(self, path):
        """Return whether an image has a line that stays.

        An open file, such as the standard input, may be another image in every run.
        """
        return not is_open(path) and os.path.abspath(path) in self._captioned

    def __enter__(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(files.locked_file(self.path))
            if self.path.exists():
                self._resume()
            self._file = stack.enter_context(open(self.path, "ab"))
            self._stack = stack.pop_all()
        return self

    def _resume(self):
        """Replace the file of an earlier run by one with the lines that stay."""
        with (
            files.atomic_path(self.path) as temporary,
            open(self.path, "rb") as file,
            open(temporary, "wb") as new,
        ):
            for number, line in enumerate(file, 1):
                ours = BEGINNING.startswith(line[: len(BEGINNING)])
                if ours and not line.endswith(b"\n"):
                    break
                entry = self._parse(line, f"{self.path}, line {number}: expected")
                if "error" not in entry:
                    self._mark_captioned(entry["image"])
                    new.write(line)

    def _parse(self, line, where):
        """Return the dict of a line, or raise a `UserError` if it is of another run."""
        try:
            entry = files.parse_json(line)
            image, model, found = (entry[x] for x in ("image", "model", "options"))
            if not isinstance(image, str) or not line.endswith(b"\n"):
                raise TypeError("expected a whole line, and a name")
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{where} a JSON object with the key 'image', as written by an "
                f"earlier run. Received: {line[:60]!r}"
            ) from error
        if model != self.model:
            raise UserError(
                f"{where} captions of {self.model!r}. Received: those of {model!r}. "
                "Choose another output"
            )
        if found != self.options:
            raise UserError(
                f"{where} captions with {self.options or DEFAULT}. Received: those "
                f"with {found or DEFAULT}. Choose another output"
            )
        return entry

    def add(self, path, described):
        """Write the line of an image."""
        if "error" not in described:
            self._mark_captioned(path)
        own = {"image": str(path), "model": self.model, "options": self.options}
        with files.errors_naming(self.path):
            self._file.write(f"{files.to_json({**own, **described})}\n".encode())
            self._file.flush()

    def _mark_captioned(self, path):
        if not is_open(path):
            self._captioned.add(os.path.abspath(path))

    def __exit__(self, *error):
        with files.errors_naming(self.path):
            self._stack.close()
