"""`captioner caption`: captions as lines, JSON, a table, or a file that resumes."""

import functools
import os
from pathlib import Path

from keras_attention_apps.captioner.bulk import caption_bulk
from keras_attention_apps.captioner.captions import check_inference
from keras_attention_apps.captioner.config import CaptionSearchOptions
from keras_attention_apps.captioner.images import (
    ImageError,
    find_images,
    has_images_below,
)
from keras_attention_apps.captioner.overlays import find_overlays, write_overlay
from keras_attention_apps.captioner.runtimes import RUNTIMES
from keras_attention_apps.captioner.xmp import side_file, write_side_file
from keras_attention_apps.common import files
from keras_attention_apps.common.errors import UserError, printable
from keras_attention_apps.common.inference import (
    Inputs,
    LineWriter,
    Writer,
    check_n_best,
    run_command,
)
from keras_attention_apps.common.models import changes_in
from keras_attention_apps.common.output import is_table
from keras_attention_apps.common.records import (
    Records,
    RecordWriter,
    check_records_file,
)
from keras_attention_apps.common.schema import IMAGE
from keras_attention_apps.common.tables import TableWriter, check_table


def caption(config):
    """Caption images as a `CaptionConfig` describes it.

    The exit code is 2 if an image or a folder could not be read.
    """
    if not config.images:
        raise UserError("expected at least one image or folder. Received: none")
    check_inference(config.model)
    if config.bulk.engine == "ray":
        return caption_bulk(config)
    writes_table = config.output is not None and is_table(config.output)
    if writes_table:
        check_table(config)
    elif config.output:
        check_records_file(config.output)
    images = Images(config)
    captioner = RUNTIMES.load_for(
        config, n_best=config.n_best, jit_compile=config.jit_compile
    )
    writer: Writer = LineWriter(
        config, images, functools.partial(_text_lines, config, images)
    )
    if writes_table:
        writer = TableWriter(config, images, noun="caption", total=len(images.paths))
    elif config.output:
        search = captioner.search_options(**config.search.given)
        check_n_best(config.n_best, search)
        options = _options(config, search)
        names = {"key": IMAGE, "noun": "caption"}
        records = Records(config.output, config.model.name, options, **names)
        writer = RecordWriter(config, images, records)
    return run_command(config, images, captioner, writer, draw=images.draw)


class Images(Inputs):
    """The images of a `CaptionConfig`, with their overlays and XMP side files.

    Attributes:
        paths: Their paths.
        are_several: Whether lines of output begin with a path.
    """

    program = "captioner"
    columns = (IMAGE,)

    def __init__(self, config):
        self._recursive = config.recursive
        self.paths = self._find(config.images)
        self.are_several = len(self.paths) > 1 or self.paths != list(config.images)
        self._overlays, self._side_files = _check_outputs(config, self.paths)
        self._overwrites_xmp = config.xmp_overwrite

    def _find(self, arguments):
        """Return the paths of all images; count folders without any.

        The error of a folder is printed if it is one of several, and raised otherwise.
        """
        paths = []
        for path in arguments:
            if not os.path.isdir(path):
                paths.append(path)
                continue
            try:
                images, left_out = find_images(path, recursive=self._recursive)
            except ImageError as error:
                if len(arguments) == 1:
                    raise
                self.report("error", error)
                self.failures += 1
                continue
            paths += images
            if not self._recursive and has_images_below(path):
                self.report(
                    "warning",
                    f"the folders inside {str(path)!r}, which have images, are not "
                    "searched: --recursive searches them",
                )
            if left_out:
                self.report(
                    "warning",
                    f"{len(left_out)} of the files in {str(path)!r} are images of "
                    f"formats that cannot be read, the first {left_out[0].name!r}",
                )
        return paths

    def values(self):
        # Overlays are drawn on the same bytes.
        self._values = files.with_open_files(self.paths)
        return self._values

    def name(self, number):
        return repr(str(self.paths[number - 1]))

    def identity(self, number):
        return {IMAGE: str(self.paths[number - 1])}

    def leave_out(self, records):
        """Leave out images that need no caption, and return their number."""
        count = len(self.paths)
        self.paths = [
            path
            for path in self.paths
            if path not in records or not all(x.exists() for x in self._files_of(path))
        ]
        return count - len(self.paths)

    def _files_of(self, path):
        """Return the files to write for an image, besides its caption."""
        files_of_all = (self._overlays, self._side_files)
        return [paths[path] for paths in files_of_all if path in paths]

    def draw(self, number, caption):
        """Draw the overlay of an image, and write its side file, if it has them."""
        path = self.paths[number - 1]
        overlay, side_file = self._overlays.get(path), self._side_files.get(path)
        if overlay:
            write_overlay(self._values[number - 1], caption, overlay)
        # A description in a photo manager does not say that it is unsure.
        if side_file and caption.text and not caption.unsure:
            write_side_file(side_file, caption.text, overwrite=self._overwrites_xmp)


def _check_outputs(config, paths):
    """Check the files to write; return two dicts from images to further files.

    They are the overlays, and the XMP side files.
    """
    overlays: dict[Path, Path] = {}
    side_files: dict[Path, Path] = {}
    if not (config.output or config.overlay or config.xmp):
        return overlays, side_files
    if config.xmp:
        side_files = _find_side_files(config, paths)
    if config.overlay:
        _check_outside(config)
        overlays = find_overlays(config.overlay, config.images, paths)
    inputs = [*paths, *RUNTIMES.files(config.model.name)]
    if config.output:
        files.check_distinct(inputs, config.output)
    # The output is read, too, when it is continued.
    files.check_distinct([*inputs, config.output], *overlays.values())
    files.check_distinct([*inputs, config.output], *side_files.values())
    return overlays, side_files


def _check_outside(config):
    """Raise a `UserError` if the next run would find the overlays as images."""
    overlay = files.resolved(config.overlay)
    folders = [x for x in config.images if config.recursive and os.path.isdir(x)]
    if any(overlay.is_relative_to(files.resolved(x)) for x in folders):
        raise UserError(
            "--overlay must be outside of the folders that --recursive searches. "
            f"Received: {str(config.overlay)!r}"
        )


def _find_side_files(config, paths):
    """Return the XMP side file of each image, a dict; each is that of one image."""
    side_files: dict[Path, Path] = {}
    owners: dict[Path, Path] = {}
    for path in paths:
        if str(path) == files.STANDARD_INPUT or files.is_pipe_or_device(path):
            raise UserError(
                f"--xmp needs images that are files. Received: {str(path)!r}"
            )
        side = side_file(Path(path), replace_suffix=config.xmp_replace_suffix)
        other = owners.setdefault(side, path)
        if other != path:
            raise UserError(
                f"{str(other)!r} and {str(path)!r} have the same XMP side file, "
                f"{side.name!r}: leave out --xmp-replace-suffix"
            )
        files.check_file(side)
        side_files[path] = side
    return side_files


def _options(config, search):
    """Return the options on which captions depend, as on the command line.

    Those with their defaults are left out. Those of the search may differ from the
    defaults although none was given: a LiteRT file has its own.
    """
    defaults = CaptionSearchOptions.defaults()
    changed = {name: x for name, x in search.items() if x != defaults[name]}
    changed |= changes_in(config.model.options)
    if config.n_best > 1:
        changed["n_best"] = config.n_best
    if config.min_score is not None:
        changed["min_score"] = config.min_score
    options = [f"--{name.replace('_', '-')} {x}" for name, x in changed.items()]
    return " ".join(sorted(options + ["--json"] * config.json))


def _text_lines(config, images, number, captions):
    """Return a line for each caption of an image."""
    lines = []
    for result in captions:
        columns = [printable(result.text)]
        if config.n_best > 1:
            columns = [f"{result.score:.4f}", *columns]
        if images.are_several or config.n_best > 1:
            columns = [printable(images.paths[number - 1]), *columns]
        lines.append("\t".join(columns))
    return lines
