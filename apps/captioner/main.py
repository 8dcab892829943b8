"""The command line: `captioner caption`, `train`, `evaluate` and `export`."""

import dataclasses
import json
import sys
from typing import Annotated

import tyro
from keras_attention_apps.captioner.config import (
    CaptionConfig,
    EvaluateConfig,
    ExportConfig,
    TrainConfig,
)
from keras_attention_apps.common.cli import PICTURES, UserError, quiet_tensorflow, run

Command = (
    Annotated[CaptionConfig, tyro.conf.subcommand("caption")]
    | Annotated[TrainConfig, tyro.conf.subcommand("train")]
    | Annotated[EvaluateConfig, tyro.conf.subcommand("evaluate")]
    | Annotated[ExportConfig, tyro.conf.subcommand("export")]
)


def main(argv=None):
    """Run the program with these arguments; returns the exit code."""
    return run("captioner", lambda: _dispatch(argv))


def _dispatch(argv):
    config = tyro.cli(
        Command,
        prog="captioner",
        description="Captions photographs, and shows where it looked for every word.",
        args=argv,
    )
    if not isinstance(config, TrainConfig):
        config.search.check()
    quiet_tensorflow()
    verbs = {
        CaptionConfig: _caption,
        TrainConfig: _train,
        EvaluateConfig: _evaluate,
        ExportConfig: _export,
    }
    return verbs[type(config)](config)


def _caption(config):
    from keras_attention_apps.captioner.images import ImageError, find_images

    if not config.photos:
        raise UserError("expected at least one photograph or folder, got none")
    paths = find_images(config.photos)
    several = len(paths) > 1
    _check_overlay(config.overlay, several)

    from keras_attention_apps.captioner.inference import Captioner

    captioner = Captioner.from_preset(config.model)
    failures, names = 0, set()
    search = dataclasses.asdict(config.search)
    for path, caption in captioner.caption_each(paths, **search):
        if isinstance(caption, ImageError):
            failures += 1
            print(f"captioner: error: {caption}", file=sys.stderr)
            continue
        if config.json:
            print(json.dumps(_as_json(path, caption), ensure_ascii=False), flush=True)
        else:
            print(f"{path}\t{caption.text}" if several else caption.text, flush=True)
        if config.overlay:
            target = config.overlay
            if several:
                target = target / _free_name(path.stem, names)
            _write_overlay(path, caption, target)
    return 2 if failures else 0


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


def _free_name(stem, names):
    """A name for the overlay of a photograph that no other photograph has."""
    name, count = f"{stem}.png", 1
    while name in names:
        count += 1
        name = f"{stem}-{count}.png"
    names.add(name)
    return name


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


def _as_json(path, caption):
    return {
        "photo": str(path),
        "caption": caption.text,
        "words": caption.words,
        "log_probability": round(caption.log_probability, 4),
        "attention": caption.weights.round(4).astype(float).tolist(),
    }


def _train(config):
    from keras_attention_apps.captioner.train import train

    train(config)


def _evaluate(config):
    from keras_attention_apps.captioner.evaluate import evaluate

    evaluate(config)


def _export(config):
    from keras_attention_apps.captioner.export import export

    export(config)


if __name__ == "__main__":
    sys.exit(main())
