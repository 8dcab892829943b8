"""Captions of other models for the training images."""

import json
from os.path import relpath
from pathlib import Path

import numpy as np
import pytest
from keras_attention_apps.captioner.data.dataset import ArchivedFile, CaptionedImage
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.training import train
from keras_attention_apps.captioner.training.train import with_teacher_captions
from keras_attention_apps.common.errors import UserError
from programs import training

IMAGES = [
    CaptionedImage(Path("/data/a.jpg"), ("A dog runs.", "a dog in snow"), 0),
    CaptionedImage(Path("/data/1/b.jpg"), ("two men sit",), 1),
    CaptionedImage(Path("/data/2/b.jpg"), ("a red car",), 2),
]


def write(path, *entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def captions_of(photo, *texts):
    return {"image": photo, "captions": [{"caption": text} for text in texts]}


def test_the_best_captions_of_every_image_are_kept(tmp_path):
    others = ("a cat", "a dog runs in snow", "dog snow", "a dog runs", "one dog runs")
    files = [
        write(tmp_path / "first.jsonl", captions_of("elsewhere/a.jpg", *others[:3])),
        write(
            tmp_path / "second.jsonl",
            captions_of("elsewhere/a.jpg", *others[3:], others[1]),
            # Of two images with one name, the path decides.
            {"image": relpath("/data/2/b.jpg"), "caption": "a blue car", "score": -1},
            captions_of("/data/b.jpg", "nothing"),
            {"image": "c.jpg", "caption": None},
            {"image": "d.jpg", "error": "damaged"},
        ),
    ]
    files[1].write_text(files[1].read_text() + "\n")

    first, second, third = with_teacher_captions(IMAGES, files)

    # "a dog runs" is a caption of the image.
    assert first.teacher_captions == ("a dog runs in snow", "one dog runs", "dog snow")
    assert second == IMAGES[1]
    assert third.teacher_captions == ("a blue car",)
    assert third.captions == IMAGES[2].captions


def test_images_in_archives_have_teacher_captions(tmp_path):
    images = [
        CaptionedImage(ArchivedFile(tmp_path / f"{shard}.tar", name, 0, 1), ("a",), 0)
        for shard, name in (("0", "a.jpg"), ("0", "b.jpg"), ("1", "b.jpg"))
    ]
    file = write(tmp_path / "captions.jsonl", captions_of("elsewhere/a.jpg", "a dog"))

    found = with_teacher_captions(images, [file])
    assert [image.teacher_captions for image in found] == [("a dog",), (), ()]


def test_training_reads_them(squares, tmp_path, monkeypatch, capsys):
    def started(phases):
        seen.append(phases)
        raise KeyboardInterrupt

    seen = []
    monkeypatch.setattr(train.CaptionTraining, "train_decoder", started)
    files = [
        write(tmp_path / f"{name}.jsonl", captions_of(f"{name}-0.png", "a square"))
        for name in ("red", "blue")
    ]
    options = {"data": squares, "output": tmp_path / "run", "model.max-length": 5}
    options |= {"model.backbone": "SmallCNN", "backbone-weights": "none"}
    arguments = [*training(options), "--teacher-captions", *map(str, files)]
    assert main(arguments) == 130
    assert "2 teacher captions" in capsys.readouterr().out

    (phases,) = seen
    encode = phases.task.tokenizer.encode
    for image, captions in zip(phases.training, phases.token_ids, strict=True):
        is_taught = image.path.name in ("red-0.png", "blue-0.png")
        assert len(captions) == 2 + is_taught
        if is_taught:
            np.testing.assert_array_equal(captions[-1], encode("a square", 4))
    assert sum(map(len, phases.token_ids)) == 26
    # The reward compares with the captions of the data.
    assert {len(image.captions) for image in phases.training} == {2}
    assert phases.options["teacher_captions"] == ["red.jsonl", "blue.jsonl"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a man", "line 1: expected a JSON object with 'image' and 'caption'"),
        ("[1]", "line 1: expected a JSON object"),
        ('{"image": "a.jpg", "captions": 3}', "line 1: expected a JSON object"),
        ('{"image": 3, "caption": "a man"}', "line 1: expected a JSON object"),
        ('{"caption": "a man"}', "line 1: expected a JSON object"),
        ('{"image": "c.jpg", "caption": "a man"}', "has no caption of a training"),
        ('{"image": "a.jpg", "error": "x"}', "has no caption of a training image"),
        ("", "has no caption of a training image"),
    ],
)
def test_other_files_are_refused(tmp_path, line, message):
    path = tmp_path / "captions.jsonl"
    path.write_text(line)
    with pytest.raises(UserError, match=message):
        with_teacher_captions(IMAGES, [path])
