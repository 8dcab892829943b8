"""Captions of other models for the training images."""

import json
from os.path import relpath
from pathlib import Path

import numpy as np
import pytest

from attention_testing.programs import training
from keras_attention_apps.captioner.data.dataset import ArchivedFile, CaptionedImage
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.training import train
from keras_attention_apps.captioner.training.train import with_teacher_captions
from keras_attention_apps.common.errors import UserError

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


def started_training(monkeypatch, arguments):
    """Return the phases of a training that is stopped before the first one."""

    def started(phases):
        seen.append(phases)
        raise KeyboardInterrupt

    seen = []
    monkeypatch.setattr(train.CaptionTraining, "train_decoder", started)
    assert main(arguments) == 130
    return seen[0]


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


def test_images_without_captions_receive_the_first_that_are_sure(tmp_path):
    images = [*IMAGES, CaptionedImage(Path("/new/c.jpg"), (), "c")]
    sure = [{"caption": text} for text in ("two cats", "a cat", "Two cats.", "a dog")]
    unsure = {"caption": "a boat", "unsure": True}
    file = write(tmp_path / "c.jsonl", {"image": "c.jpg", "captions": [unsure, *sure]})
    more = write(tmp_path / "d.jsonl", captions_of("c.jpg", "the cats"))

    *others, last = with_teacher_captions(images, [file, more])

    assert others == IMAGES
    assert last.captions == ()
    assert last.teacher_captions == ("Two cats.", "a cat", "a dog")


def test_captions_may_have_the_format_of_coco(tmp_path):
    content = {
        "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "z.jpg"}],
        "annotations": [{"id": 1, "image_id": 7, "caption": "a wolf"}],
    }
    path = tmp_path / "captions_teacher.json"
    path.write_text(json.dumps(content))

    first, *others = with_teacher_captions(IMAGES, [path])
    assert first.teacher_captions == ("a wolf",)
    assert others == IMAGES[1:]


def test_images_in_archives_have_teacher_captions(tmp_path):
    images = [
        CaptionedImage(ArchivedFile(tmp_path / f"{shard}.tar", name, 0, 1), ("a",), 0)
        for shard, name in (("0", "a.jpg"), ("0", "b.jpg"), ("1", "b.jpg"))
    ]
    file = write(tmp_path / "captions.jsonl", captions_of("elsewhere/a.jpg", "a dog"))

    taught = with_teacher_captions(images, [file])
    assert [image.teacher_captions for image in taught] == [("a dog",), (), ()]


def test_training_reads_them(squares, tmp_path, monkeypatch, capsys):
    files = [
        write(tmp_path / f"{name}.jsonl", captions_of(f"{name}-0.png", "a square"))
        for name in ("red", "blue")
    ]
    options = {"data": squares, "output": tmp_path / "run", "model.max-length": 5}
    options |= {"model.backbone": "SmallCNN", "backbone-weights": "none"}
    arguments = [*training(options), "--teacher-captions", *map(str, files)]
    phases = started_training(monkeypatch, arguments)
    assert "2 teacher captions" in capsys.readouterr().out

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


def test_images_without_captions_are_trained_on_alone(
    squares, photographs, tmp_path, monkeypatch, capsys
):
    unlabelled = tmp_path / "unlabelled"
    unlabelled.mkdir()
    for name in ("red-0.png", "blue-0.png"):
        (photographs / name).rename(unlabelled / f"new-{name}")
    file = write(
        tmp_path / "new.jsonl", captions_of("new-blue-0.png", "the blue square")
    )
    options = {"data": squares, "output": tmp_path / "run", "model.max-length": 5}
    options |= {"model.backbone": "SmallCNN", "backbone-weights": "none"}
    options |= {"unlabelled": unlabelled, "unlabelled-weight": 3}
    arguments = [*training(options), "--teacher-captions", str(file)]
    phases = started_training(monkeypatch, arguments)

    assert "unlabelled: 1 image with captions of a teacher" in capsys.readouterr().out
    *others, last = phases.training
    assert last.path.name == "new-blue-0.png"
    encode = phases.task.tokenizer.encode
    assert phases.token_ids[-1] == [encode("the blue square", 5)]
    # An epoch goes through it three times, but never in self-critical training.
    random = np.random.default_rng(0)
    drawn = phases.data.mixture.draw(random).tolist()
    assert len(drawn) == len(others) + 3
    assert drawn.count(len(others)) == 3
    assert sorted(phases.data.labelled.draw(random)) == [*range(len(others))]
    assert last.path not in [image.path for image in phases.validation]


@pytest.mark.parametrize("options", [[], ["--teacher-captions", "red.jsonl"]])
def test_images_without_captions_need_a_teacher(
    squares, photographs, tmp_path, monkeypatch, options, capsys
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "red.jsonl", captions_of("red-8.png", "a square"))
    (tmp_path / "new").mkdir()
    (photographs / "blue-0.png").rename(tmp_path / "new/blue.png")
    changes = {"data": squares, "output": tmp_path / "run", "unlabelled": "new"}
    changes |= {"model.backbone": "SmallCNN", "backbone-weights": "none"}
    assert main([*training(changes), *options]) == 2
    assert "unlabelled needs teacher_captions of its im" in capsys.readouterr().err


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
