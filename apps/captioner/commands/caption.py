"""`captioner caption`: captions as lines, as JSON, or as a file that can be resumed."""

import contextlib
import math
import os
import sys

from keras_attention_apps.captioner.captions import RUNTIMES, check_inference
from keras_attention_apps.captioner.config import CaptionSearchOptions
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
from keras_attention_apps.common.output import JSON_LINES, note, progress_bar
from tqdm import tqdm

# The beginning of every line of an output.
BEGINNING = b'{"image": "'
# What errors call an empty list of options.
DEFAULT = "the default options"


def caption(config):
    """Caption images as a `CaptionConfig` describes it.

    The exit code is 2 if an image or a folder could not be read.
    """
    _check_options(config)
    if config.bulk.engine == "ray":
        from keras_attention_apps.captioner.bulk import caption_bulk

        return caption_bulk(config)
    paths, failures = _find(config.images)
    beam = config.search.given
    several = len(paths) > 1 or paths != list(config.images)
    overlays = _check_outputs(config, paths)
    captioner = RUNTIMES.load_for(
        config, n_best=config.n_best, jit_compile=config.jit_compile
    )
    unreadable = 0
    with contextlib.ExitStack() as stack:
        records = None
        if config.output:
            search = captioner.search_options(**beam)
            check_n_best(config.n_best, search)
            options = _options(config, search)
            records = stack.enter_context(
                Records(config.output, config.model.name, options)
            )
            earlier = len(paths)
            paths = [
                path
                for path in paths
                if path not in records
                or (path in overlays and not overlays[path].exists())
            ]
            earlier -= len(paths)
            progress = stack.enter_context(progress_bar(total=len(paths), unit="image"))
        found = captioner.caption_each(
            # The overlay is drawn on the same bytes.
            with_open_files(paths),
            n_best=config.n_best,
            batch_size=config.batch_size,
            **beam,
        )
        for path, (image, captions) in zip(paths, found, strict=True):
            kept, error = captions, None
            if isinstance(captions, ImageError):
                unreadable, error = unreadable + 1, captions
            else:
                kept = _probable(config, path, captions)
                if kept and path in overlays:
                    error = _draw(image, kept[0], overlays[path])
            if error:
                _tell("error", error)
                failures += 1
            if records is None:
                _print(config, several, path, captions, kept)
                continue
            if path not in records:
                records.add(path, _entry(config, captions, kept, details=config.json))
            progress.update()
    if records:
        _tell_written(config.output, len(paths) - unreadable, earlier, unreadable)
    return 2 if failures else 0


def _check_options(config):
    """Raise a `UserError` for options that do not fit together."""
    if not config.images:
        raise UserError("expected at least one image or folder. Received: none")
    check_inference(config.model)
    if config.bulk.engine == "local" and config.output:
        _check_output(config.output)


def _tell_written(output, captioned, earlier, unreadable):
    """Say how many captions of this run, and of earlier ones, an output has."""
    count = counted(captioned, "image")
    wrote = [f"captioner: wrote captions of {count} to {printable(output)}"]
    if earlier:
        wrote.append(f"those of {earlier:,} were there before")
    if unreadable:
        wrote.append(f"{counted(unreadable, 'image')} could not be read")
    note("; ".join(wrote))


def _check_output(output):
    """Raise a `UserError` if the output is no file of JSON lines."""
    files.check_file(output)
    if files.is_pipe_or_device(output):
        raise UserError(
            "--output must be a file, so that an interrupted run can continue it. "
            f"Received a pipe or a device: {str(output)!r}"
        )
    if output.suffix.lower() != JSON_LINES:
        raise UserError(
            f"--output must end in .jsonl (JSON lines). Received: {str(output)!r}"
        )


def _check_outputs(config, paths):
    """Check the files to write, and return the overlay of each image as a dict."""
    if not (config.output or config.overlay):
        return {}
    overlays = {}
    if config.overlay:
        from keras_attention_apps.captioner.overlays import find_overlays

        overlays = find_overlays(config.overlay, config.images, paths)
    inputs = [*paths, *RUNTIMES.files(config.model.name)]
    if config.output:
        files.check_distinct(inputs, config.output)
    # The output is read, too, when it is continued.
    files.check_distinct([*inputs, config.output], *overlays.values())
    return overlays


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


def _draw(image, caption, target):
    """Write the overlay of an image; return the error if that fails."""
    from keras_attention_apps.captioner.overlays import write_overlay

    try:
        write_overlay(image, caption, target)
    except (UserError, OSError) as error:
        return error
    return None


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
