"""The command line: `captioner caption`, `train`, `evaluate`, and what else it says."""

import contextlib
import dataclasses
import functools
import json
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
from keras_attention_apps.common.cli import PICTURES, UserError, quiet_tensorflow, run
from keras_attention_apps.common.config import (
    AverageConfig,
    check_n_best,
    check_ranges,
)


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


def _dispatch(argv):
    config = _parsed(argv)
    quiet_tensorflow()
    if getattr(config, "from_preset", None):
        from keras_attention_apps.captioner.inference import read_config

        # What is not given is as the preset has it.
        config = _parsed(argv, model=read_config(config.from_preset))
    verbs = {
        CaptionConfig: _caption,
        TrainConfig: _train,
        EvaluateConfig: _evaluate,
        AverageConfig: _average,
        ExportConfig: _export,
        ScenesConfig: _scenes,
    }
    return verbs[type(config)](config)


def _parsed(argv, **training):
    """What a command line asks for; see `commands`."""
    config = tyro.cli(
        commands(**training),
        prog="captioner",
        description="Captions photographs, and shows where it looked for every word.",
        args=argv,
    )
    check_ranges(config)
    return config


def _caption(config):
    from keras_attention_apps.captioner.images import ImageError, find_images

    if not config.photos:
        raise UserError("expected at least one photograph or folder, got none")
    check_n_best(config.n_best, config.search.beam_size)
    paths = find_images(config.photos)
    several = len(paths) > 1
    _check_overlay(config.overlay, several)

    from keras_attention_apps.captioner.inference import Captioner
    from keras_attention_apps.captioner.records import Records, Throughput

    chosen = config.captioner
    captioner = Captioner.from_preset(
        chosen.model, jit_compile=config.jit_compile, **chosen.options
    )
    overlays = _overlays(config.overlay, paths)
    failures, search = 0, dataclasses.asdict(config.search)
    with contextlib.ExitStack() as stack:
        tell = functools.partial(_print, config, several)
        if config.output:
            records = stack.enter_context(Records(config.output))
            paths = [path for path in paths if str(path) not in records.photos]
            progress = stack.enter_context(Throughput(len(paths), "photograph"))
            tell = functools.partial(_record, config, records, progress)
        for path, captions in captioner.caption_each(
            paths, n_best=config.n_best, **search
        ):
            if isinstance(captions, ImageError):
                print(f"captioner: error: {captions}", file=sys.stderr)
                failures += 1
            elif config.overlay:
                _write_overlay(path, captions[0], overlays[path])
            tell(path, captions)
    return 2 if failures else 0


def _print(config, several, path, captions):
    if isinstance(captions, UserError):
        return
    if config.json:
        described = _describe(config, path, captions, details=True)
        print(json.dumps(described, ensure_ascii=False), flush=True)
        return
    for caption in captions:
        columns = [caption.text]
        if config.n_best > 1:
            columns = [f"{caption.score:.4f}", *columns]
        if several or config.n_best > 1:
            columns = [str(path), *columns]
        print("\t".join(columns), flush=True)


def _record(config, records, progress, path, captions):
    records.add(_describe(config, path, captions, details=config.json))
    progress.add(1)


def _describe(config, path, captions, details):
    """What is written of a photograph, by its names."""
    photo = {"photo": str(path)}
    if isinstance(captions, UserError):
        return {**photo, "error": str(captions)}
    told = []
    for caption in captions:
        one = {"caption": caption.text}
        if details or config.n_best > 1:
            one["score"] = round(caption.score, 4)
        if details:
            one["words"] = caption.words
            one["log_probability"] = round(caption.log_probability, 4)
            one["attention"] = caption.weights.round(4).astype(float).tolist()
        told.append(one)
    return {**photo, "captions": told} if config.n_best > 1 else {**photo, **told[0]}


def _check_overlay(overlay, several):
    if overlay is None:
        return
    if several and overlay.suffix:
        raise UserError(
            "--overlay must be a folder when there are several photographs. "
            f"Received: {str(overlay)!r}"
        )
    if not several and overlay.suffix.lower() not in PICTURES:
        raise UserError(
            "--overlay must be a .png, .jpg, .pdf or .svg file for one photograph. "
            f"Received: {str(overlay)!r}"
        )


def _overlays(overlay, paths):
    """Dict from each path to the file for its overlay, of which no two are the same."""
    if overlay is None or len(paths) == 1:
        return dict.fromkeys(paths, overlay)
    names = {}
    for path in paths:
        name, count = f"{path.stem}.png", 1
        while name in names:
            count += 1
            name = f"{path.stem}-{count}.png"
        names[name] = path
    return {path: overlay / name for name, path in names.items()}


def _write_overlay(path, caption, target):
    from keras_attention_apps.captioner.images import read_image
    from keras_attention_apps.common.files import atomic_path

    from keras_attention import attention_overlay

    image = read_image(path)
    # Panels are small: more pixels would only make the file larger.
    image.thumbnail((480, 480))
    figure = attention_overlay(
        image, caption.words, caption.weights, title=caption.text
    )
    with atomic_path(target) as temporary:
        figure.savefig(temporary, dpi=120)


def _train(config):
    from keras_attention_apps.captioner.train import train

    train(config)


def _evaluate(config):
    from keras_attention_apps.captioner.evaluate import evaluate

    evaluate(config)


def _average(config):
    from keras_attention_apps.captioner.inference import Captioner
    from keras_attention_apps.common.averaging import average

    average(config, Captioner.from_preset)


def _export(config):
    from keras_attention_apps.captioner.export import export

    export(config)


def _scenes(config):
    from keras_attention_apps.captioner.scenes import scenes

    scenes(config)


if __name__ == "__main__":
    sys.exit(main())
