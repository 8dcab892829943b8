import random

import numpy as np
import pytest

from attention_testing.captioner.trainings import SIZES
from attention_testing.programs import training
from keras_attention_apps.captioner.commands import scenes
from keras_attention_apps.captioner.commands.scenes import COLOURS, scene
from keras_attention_apps.captioner.data.dataset import read_dataset
from keras_attention_apps.captioner.main import main


def drawn(count=60):
    generator = random.Random(5)
    return [scene(generator, 64) for _ in range(count)]


def test_objects_of_a_caption_are_in_their_boxes():
    for image, entry in drawn():
        pixels = np.asarray(image).astype(int)
        for caption in entry["captions"]:
            words = caption.split()
            for column, shape in enumerate(words):
                if shape not in entry["boxes"]:
                    continue
                ((left, top, right, bottom),) = entry["boxes"][shape]
                across, down = (left + right) / 2, (top + bottom) / 2
                middle = pixels[int(down * 64), int(across * 64)]
                assert np.abs(middle - COLOURS[words[column - 1]]).max() < 10
                assert (words[column - 2] == "large") == (right - left > 0.3)


def test_relations_are_true():
    seen = set()
    for _, entry in drawn():
        for caption in entry["captions"]:
            words = caption.split()
            shapes = [word for word in words if word in entry["boxes"]]
            assert len(shapes) == len(entry["boxes"]) == (len(words) + 3) // 5
            if len(shapes) == 1:
                continue
            # The middles of the boxes.
            boxes = (np.reshape(entry["boxes"][x][0], (2, 2)) for x in shapes)
            first, second = (box.mean(axis=0) for box in boxes)
            relation = words[4]
            axis = 0 if relation in ("left", "right") else 1
            assert (first[axis] < second[axis]) == (relation in ("left", "above"))
            seen.add(relation)
    assert seen == {"left", "right", "above", "below"}


def test_a_folder_of_scenes_is_a_data_set(tmp_path, capsys):
    folder = tmp_path / "scenes"
    assert main(["scenes", str(folder), "--count", "40", "--seed", "3"]) == 0
    assert "Wrote 40 scenes" in capsys.readouterr().out

    parts = [read_dataset(folder, split) for split in ("train", "dev", "test")]
    assert sum(map(len, parts)) == 40
    assert all(image.boxes for image in parts[0])
    again = tmp_path / "again"
    assert main(["scenes", str(again), "--count", "40", "--seed", "3"]) == 0
    names = [image.path.relative_to(folder) for image in parts[0]]
    for name in names:
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_files_in_the_output_folder_are_kept(tmp_path, capsys):
    (tmp_path / "precious.jpg").write_text("mine")

    assert main(["scenes", str(tmp_path), "--count", "1"]) == 2
    assert "expected the name of a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious.jpg"]
    assert main(["scenes", str(tmp_path / "new"), "--count", "0"]) == 2
    assert (
        "--count must be between 1 and 1000000000. Received: 0"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("attention", ["hard", "soft"])
@pytest.mark.exhaustive
def test_a_captioner_learns_from_scenes(
    eager, attention, tmp_path, capsys, monkeypatch
):
    # METEOR needs Java, which is hidden here.
    monkeypatch.setenv("PATH", str(tmp_path))
    folder, output = tmp_path / "scenes", tmp_path / "run"
    assert main(["scenes", str(folder), "--count", "20", "--image-size", "32"]) == 0
    options = {"data": folder, "output": output, "attention": attention}
    options |= {"supervision": 0.5, "epochs": 0, "fine-tune-epochs": 1}
    sizes = {**SIZES, "image-size": 32}
    options |= {f"model.{name}": value for name, value in sizes.items()}
    _, *arguments = training(options, **{"batch-images": 16})
    assert main(["train-scenes", *arguments]) == 0
    model = str(output / "model")
    assert main(["evaluate", "--data", str(folder), "--model", model]) == 0
    reported = capsys.readouterr().out
    assert "changes" in reported and "entropy" in reported
    assert "needs Java, which was not found" in reported


@pytest.mark.parametrize(
    ("centres", "expected"),
    [
        (((2, 5), (8, 9)), ["a left of b", "b right of a"]),
        (((8, 9), (2, 5)), ["b left of a", "a right of b"]),
        (((5, 2), (9, 8)), ["a above b", "b below a"]),
        (((9, 8), (5, 2)), ["b above a", "a below b"]),
    ],
)
def test_a_relation_is_that_of_the_larger_distance(centres, expected):
    assert scenes._captions(["a", "b"], centres) == expected
