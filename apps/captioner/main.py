"""The command line: `captioner caption`, `train`, `evaluate`, and what else it says."""

import contextlib
import dataclasses
import functools
import sys
from typing import Annotated

import tyro
from keras_attention_apps.captioner.config import (
    SCENES,
    TRAINING,
    CaptionConfig,
    EvaluateConfig,
    ExportConfig,
    ScenesConfig,
    TrainConfig,
)
from keras_attention_apps.common.cli import UserError, quiet_tensorflow, run
from keras_attention_apps.common.config import (
    AverageConfig,
    check_n_best,
    parsed,
)
from keras_attention_apps.common.files import check_file, is_special, to_json

# Characters of a path that would end its column or its line.
ESCAPES = {ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}


def commands(**training):
    """All commands, as a type; `training` replaces defaults of those that train."""
    ours = tyro.conf.subcommand(
        "train", default=dataclasses.replace(TRAINING, **training)
    )
    scenes = tyro.conf.subcommand(
        "train-scenes",
        default=dataclasses.replace(SCENES, **training),
        description="Train a captioner on simple pictures, such as those of "
        "captioner scenes.\n\nAs train, but the defaults are those of a small "
        "network that learns them in minutes, from nothing.",
    )
    return (
        Annotated[CaptionConfig, tyro.conf.subcommand("caption")]
        | Annotated[TrainConfig, ours]
        | Annotated[TrainConfig, scenes]
        | Annotated[EvaluateConfig, tyro.conf.subcommand("evaluate")]
        | Annotated[AverageConfig, tyro.conf.subcommand("average")]
        | Annotated[ExportConfig, tyro.conf.subcommand("export")]
        | Annotated[ScenesConfig, tyro.conf.subcommand("scenes")]
    )


def main(argv=None):
    """Run the program with these arguments; returns the exit code."""
    return run("captioner", lambda: _dispatch(argv))


def _read_config(preset):
    quiet_tensorflow()
    from keras_attention_apps.captioner.inference import Captioner

    return Captioner.read_config(preset)


def _dispatch(argv):
    config = parsed(
        commands,
        argv,
        _read_config,
        prog="captioner",
        description="Captions photographs, and shows where it looked for every word.",
    )
    quiet_tensorflow()
    verbs = {
        CaptionConfig: _caption,
        TrainConfig: _train,
        EvaluateConfig: _evaluate,
        AverageConfig: _average,
        ExportConfig: _export,
        ScenesConfig: _scenes,
    }
    return verbs[type(config)](config)


def _caption(config):
    from keras_attention_apps.captioner.images import ImageError
    from keras_attention_apps.captioner.overlays import find_overlays, write_overlay

    if not config.photos:
        raise UserError("expected at least one photograph or folder, got none")
    check_n_best(config.n_best, config.search.beam_size)
    paths, failures = _find(config.photos)
    several = len(paths) > 1 or paths != list(config.photos)
    overlays = {}
    if config.overlay:
        overlays = find_overlays(config.overlay, config.photos, paths)
    if config.output:
        check_file(config.output)
        if is_special(config.output):
            raise UserError(
                "--output must be a file, so that an interrupted start can go on with "
                f"it. Received a pipe or a device: {str(config.output)!r}"
            )

    from keras_attention_apps.captioner.inference import Captioner
    from keras_attention_apps.captioner.records import Records, Throughput

    chosen = config.captioner
    captioner = Captioner.from_preset(
        chosen.model, jit_compile=config.jit_compile, **chosen.options
    )
    search = dataclasses.asdict(config.search)
    with contextlib.ExitStack() as stack:
        tell = functools.partial(_print, config, several)
        if config.output:
            records = stack.enter_context(Records(config.output, chosen.model))
            missing = {path for path, x in overlays.items() if not x.exists()}
            paths = [x for x in paths if x not in records or x in missing]
            progress = stack.enter_context(Throughput(len(paths), "photograph"))
            tell = functools.partial(_record, config, records, progress)
        for path, captions in captioner.caption_each(
            paths, n_best=config.n_best, **search
        ):
            try:
                if isinstance(captions, ImageError):
                    raise captions
                if config.overlay:
                    write_overlay(path, captions[0], overlays[path])
            except (ImageError, OSError) as error:
                if config.output:
                    # Behind the bar of the progress.
                    print(flush=True)
                _tell_error(error)
                failures += 1
            tell(path, captions)
    return 2 if failures else 0


def _find(photos):
    """All photographs, and how many folders have none: of several, these are told."""
    from keras_attention_apps.captioner.images import (
        ImageError,
        find_images,
        find_unreadable,
    )

    paths, failures = [], 0
    for photo in photos:
        try:
            paths += find_images([photo])
            left_out = find_unreadable(photo)
            if left_out:
                print(
                    f"captioner: warning: {len(left_out)} of the files in "
                    f"{str(photo)!r} are pictures of formats that are not read, the "
                    f"first {left_out[0].name!r}",
                    file=sys.stderr,
                )
        except ImageError as error:
            if len(photos) == 1:
                raise
            _tell_error(error)
            failures += 1
    return paths, failures


def _tell_error(error):
    print(f"captioner: error: {error}", file=sys.stderr)


def _print(config, several, path, captions):
    if isinstance(captions, UserError):
        return
    if config.json:
        described = _describe(config, captions, details=True)
        told = {"photo": str(path), **described}
        print(to_json(told), flush=True)
        return
    for caption in captions:
        columns = [caption.text]
        if config.n_best > 1:
            columns = [f"{caption.score:.4f}", *columns]
        if several or config.n_best > 1:
            columns = [str(path).translate(ESCAPES), *columns]
        print("\t".join(columns), flush=True)


def _record(config, records, progress, path, captions):
    if path not in records:
        records.add(path, _describe(config, captions, details=config.json))
    progress.add(1)


def _describe(config, captions, details):
    """What is written of a photograph, by its names."""
    if isinstance(captions, UserError):
        return {"error": str(captions)}
    told = []
    for caption in captions:
        one = {"caption": caption.text}
        if details or config.n_best > 1:
            one["score"] = round(caption.score, 4)
        if details:
            one["words"] = caption.words
            one["log_probability"] = round(caption.log_probability, 4)
            one["attention"] = caption.weights.astype(float).round(4).tolist()
        told.append(one)
    return {"captions": told} if config.n_best > 1 else told[0]


def _train(config):
    from keras_attention_apps.captioner.train import train

    train(config)


def _evaluate(config):
    from keras_attention_apps.captioner.evaluate import evaluate

    evaluate(config)


def _average(config):
    from keras_attention_apps.captioner.inference import Captioner

    Captioner.average(config)


def _export(config):
    from keras_attention_apps.captioner.export import export

    export(config)


def _scenes(config):
    from keras_attention_apps.captioner.scenes import scenes

    scenes(config)


if __name__ == "__main__":
    sys.exit(main())
