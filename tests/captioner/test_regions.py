"""Captioners of detected regions, which files contain."""

import dataclasses
import json
import re
import shutil

import keras
import numpy as np
import pytest
from keras import ops
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.config import ChosenModel, WebConfig
from keras_attention_apps.captioner.data.batches import TrainingBatches
from keras_attention_apps.captioner.data.boxes import coverage_of_regions, pointing
from keras_attention_apps.captioner.data.files import ArchivedFile
from keras_attention_apps.captioner.data.regions import (
    RegionFeatures,
    Regions,
    read_regions,
    regions_file,
)
from keras_attention_apps.captioner.images import ImageError
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.web.service import CaptionService
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.tokens import END, START
from programs import error_of, training

from .conftest import COLOURS, TINY, untrained
from .trainings import command

DEPTH, MAX_REGIONS = 5, 4
OPTIONS = {"region_depth": DEPTH, "max_regions": MAX_REGIONS}
KINDS = {
    "recurrent": dataclasses.replace(TINY, **OPTIONS),
    "transformer": dataclasses.replace(
        TINY, decoder="transformer", embedding_units=6, heads=2, **OPTIONS
    ),
}
BOXES = [[0.0, 0.0, 0.5, 1.0], [0.25, 0.0, 1.0, 0.5], [0.0, 0.5, 1.0, 1.0]]


@pytest.fixture(scope="module")
def detected(squares, tmp_path_factory):
    """Two or three regions for every square; the second one shows its colour."""
    folder, random = tmp_path_factory.mktemp("regions"), np.random.default_rng(1)
    for number, path in enumerate(sorted((squares / "Images").iterdir())):
        features = random.normal(0.0, 0.1, (2 + number % 2, DEPTH))
        features[1, COLOURS.index(path.stem.split("-")[0])] = 2.0
        write(folder / f"{path.stem}.npz", features, BOXES[: len(features)])
    return folder


@pytest.fixture(scope="module")
def photographs(squares):
    return sorted((squares / "Images").iterdir())[:3]


def write(path, features, boxes):
    features = np.array(features, "float32")
    np.savez(path, features=features, boxes=np.array(boxes, "float32"))
    return path


def numpy(tensors):
    return keras.tree.map_structure(ops.convert_to_numpy, tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind):
    random, network = np.random.default_rng(0), untrained(KINDS[kind]).network
    features = random.normal(size=(2, 3, DEPTH)).astype("float32")
    features[1, 2] = 0.0
    captions = np.array([[[START, 4, 5, END]], [[START, 6, 7, END]]], "int32")
    more = np.pad(features, ((0, 0), (0, 2), (0, 0)))
    few, many = ({"features": x, "captions": captions} for x in (features, more))
    expected, found = numpy(network(few)), numpy(network(many))

    np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-5)
    np.testing.assert_allclose(
        found["weights"][..., :3], expected["weights"], atol=1e-5
    )
    assert not found["weights"][..., 3:].any()
    assert not found["weights"][1, ..., 2].any()
    network.loss_options.doubly_stochastic = 0.5
    losses = [float(network.compute_loss(x, None, network(x))) for x in (few, many)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_caption_has_a_map_over_its_own_boxes(eager, detected, photographs):
    captioner = untrained(KINDS["transformer"])
    found = captioner.caption(photographs, regions=detected, beam_size=2)
    for path, caption in zip(photographs, found, strict=True):
        regions = read_regions(path, detected)
        assert caption.weights.shape == (len(caption.words), len(regions.boxes))
        np.testing.assert_allclose(caption.weights.sum(axis=-1), 1.0, rtol=1e-4)
        np.testing.assert_array_equal(caption.boxes, regions.boxes)
    assert len({caption.log_probability for caption in found}) == len(found)

    # The file itself, its name and its content are the same input.
    file = regions_file(path, detected)
    for again in captioner.caption([file, str(file), regions], beam_size=2):
        assert again.text == caption.text
        np.testing.assert_allclose(again.weights, caption.weights, atol=1e-5)


def test_no_more_regions_are_used_than_the_model_has(eager):
    captioner = untrained(KINDS["recurrent"])
    random = np.random.default_rng(2)
    features = random.normal(size=(MAX_REGIONS + 2, DEPTH)).astype("float32")
    boxes = np.tile(np.float32([0, 0, 1, 1]), (MAX_REGIONS + 2, 1))
    all_of_them, first = (
        captioner.caption(Regions(features[:n], boxes[:n]), beam_size=2)
        for n in (MAX_REGIONS + 2, MAX_REGIONS)
    )
    assert all_of_them.text == first.text
    assert len(all_of_them.boxes) == MAX_REGIONS


@pytest.mark.exhaustive
def test_a_captioner_trained_on_regions_captions_and_is_evaluated(
    eager, without_java, squares, detected, photographs, tmp_path, capsys
):
    output = tmp_path / "run"
    sizes = {
        "decoder": "transformer",
        "heads": 1,
        "max-regions": MAX_REGIONS,
        "max-length": 4,
    }
    options = {"regions": detected, "frozen-views": 1, "epochs": 1}
    arguments = command(squares, output, sizes, **options)
    assert main(arguments) == 0
    assert (
        f"At most {MAX_REGIONS} detected regions of depth {DEPTH}"
        in capsys.readouterr().out
    )
    model = output / "model"
    config = Captioner.read_config(model)
    assert (config.region_depth, config.decoder) == (DEPTH, "transformer")
    report = (output / "report.html").read_text(encoding="utf-8")
    assert "--map:url(data:image/png" in report and str(detected) not in report

    overlays = tmp_path / "overlays"
    given = ["--model", model, "--regions", detected, "--json", "--overlay", overlays]
    assert main([*map(str, ["caption", *photographs, *given])]) == 0
    for line in capsys.readouterr().out.splitlines():
        entry = json.loads(line)
        shape = len(entry["words"]), len(entry["boxes"])
        assert np.array(entry["attention"]).reshape(shape).shape == shape
    assert len([*overlays.iterdir()]) == len(photographs)

    given = ["--data", squares, "--model", model, "--regions", detected]
    assert main([*map(str, ["evaluate", *given])]) == 0
    assert re.search(r"cider +\d", capsys.readouterr().out)

    with pytest.raises(UserError, match="computes regions from images"):
        CaptionService(WebConfig(model=ChosenModel(name=str(model))))
    assert main(["export", str(tmp_path / "served"), "--model", str(model)]) == 2
    reason = "which needs files of detected regions"
    if keras.backend.backend() != "tensorflow":
        reason = "export needs Keras' TensorFlow backend"
    assert reason in capsys.readouterr().err
    assert main(["caption", str(photographs[0]), "--model", str(model)]) == 2
    error = capsys.readouterr().err
    assert "Cannot read regions" in error and photographs[0].stem in error


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"frozen-views": 2}, "frozen_views must be 1 with regions"),
        (
            {"backbone-weights": "a.npz"},
            "backbone_weights must not be set with regions",
        ),
        ({"regions": None, "model.region-depth": 3}, "regions must be given"),
        ({"regions": "nowhere"}, "Cannot read regions"),
    ],
)
def test_options_that_contradict_regions(
    squares, detected, tmp_path, capsys, changes, message
):
    options = {"regions": detected, "frozen-views": 1, **changes}
    options = {name: value for name, value in options.items() if value is not None}
    assert main(command(squares, tmp_path / "run", **options)) == 2
    assert message in capsys.readouterr().err


def test_regions_need_an_epoch_without_fine_tuning(squares, detected, tmp_path, capsys):
    options = {"data": squares, "output": tmp_path / "run", "regions": detected}
    for name in ("train", "train-scenes"):
        changes = {"epochs": 0, "self-critical-epochs": 0, "fine-tune-epochs": 3}
        arguments = [name, *training({**options, **changes})[1:]]
        assert error_of(main, arguments, capsys).startswith(
            "captioner: error: expected an epoch of --epochs or --self-critical-epochs,"
            " since --regions skips fine-tuning. Received: 0 of both"
        )
    assert not (tmp_path / "run").exists()


def test_files_of_all_images_are_checked(squares, detected, tmp_path, capsys):
    for path in detected.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    write(tmp_path / "red-8.npz", np.ones((2, 3)), BOXES[:2])
    options = {"regions": tmp_path, "frozen-views": 1}
    assert main(command(squares, tmp_path / "run", **options)) == 2
    error = capsys.readouterr().err
    assert "1 of 16 images" in error and "must have the depth 5" in error


def test_a_training_does_not_resume_with_other_regions(
    squares, detected, tmp_path, capsys, monkeypatch
):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(keras.Model, "fit", interrupt)
    shutil.copytree(detected, tmp_path / "regions")
    options = {"regions": tmp_path / "regions", "frozen-views": 1}
    for _ in range(2):
        assert main(command(squares, tmp_path / "run", **options)) == 130
    # A file of the same size.
    file = tmp_path / "regions" / "red-8.npz"
    features, boxes = np.load(file).values()
    write(file, features + 1, boxes)

    assert main(command(squares, tmp_path / "run", **options)) == 2
    message = "region_files was '12 and 4 photographs, digest"
    assert message in capsys.readouterr().err


def test_a_model_of_a_grid_takes_no_regions(squares, model_folder, detected, capsys):
    photograph = next((squares / "Images").iterdir())
    options = ["--model", model_folder, "--regions", detected]
    assert main([*map(str, ["caption", photograph, *options])]) == 2
    assert "regions must not be given" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"features": np.ones((2, 3))}, "expected arrays 'features' and 'boxes'"),
        (
            {"features": np.ones(3), "boxes": np.ones((3, 4))},
            r"must be floats \(R, D\)",
        ),
        (
            {"features": np.ones((0, 3)), "boxes": np.ones((0, 4))},
            "at least one region",
        ),
        ({"features": np.ones((2, 3)), "boxes": np.ones((3, 4))}, r"\(2, 4\), one box"),
        ({"features": np.full((1, 3), np.nan), "boxes": [[0, 0, 1, 1]]}, "finite"),
        ({"features": np.ones((1, 3)), "boxes": [[0, 0, 640, 480]]}, "from 0 to 1"),
        (
            {"features": np.ones((1, 3)), "boxes": [[0.5, 0, 0.1, 1]]},
            "left, top, right",
        ),
        ({"features": np.array([[{}]]), "boxes": [[0, 0, 1, 1]]}, "pickle"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, message):
    path = tmp_path / "dog.npz"
    np.savez(path, **arrays)
    with pytest.raises(ImageError, match=message):
        read_regions(path)


@pytest.mark.parametrize("failures, succeeds", [(4, True), (5, False)])
def test_a_failure_of_another_thread_is_tried_again(
    tmp_path, monkeypatch, failures, succeeds
):
    path, load, calls = write(tmp_path / "dog.npz", np.ones((3, 5)), BOXES), np.load, []

    def failing(*arguments, **options):
        calls.append(arguments)
        if len(calls) <= failures:
            raise SystemError("AST constructor recursion depth mismatch")
        return load(*arguments, **options)

    monkeypatch.setattr(np, "load", failing)
    if succeeds:
        assert read_regions(path).features.shape == (3, 5)
    else:
        with pytest.raises(ImageError, match="recursion depth mismatch"):
            read_regions(path)


def test_missing_and_invalid_files_of_regions(tmp_path):
    (tmp_path / "dog.npz").write_text("no archive")
    for name, message in (("dog.jpg", "zip"), ("cat.jpg", "No such file")):
        with pytest.raises(ImageError, match=rf"Cannot read regions .*{message}"):
            read_regions(tmp_path / name)
    with pytest.raises(ImageError, match=r"needs the path of an image .* ndarray"):
        read_regions(np.zeros((4, 4, 3), "uint8"))


@pytest.mark.parametrize("folder", [None, "regions"])
def test_an_image_in_an_archive_has_a_file_of_regions(tmp_path, folder):
    folder = folder and tmp_path / folder
    where = folder or tmp_path
    where.mkdir(exist_ok=True)
    write(where / "dog.npz", np.ones((3, DEPTH)), BOXES)
    image = ArchivedFile(tmp_path / "train-0.tar", "animals/dog.jpg", 0, 1)

    assert read_regions(image, folder).features.shape == (3, DEPTH)


def test_coverage_of_regions_by_a_box():
    # Half of the first box lies in the object; the second and the object are disjoint.
    regions = [[0.0, 0.0, 0.5, 1.0], [0.5, 0.5, 1.0, 1.0], [0.1, 0.1, 0.2, 0.2]]
    covered = coverage_of_regions([[0.0, 0.0, 0.5, 0.5]], regions)
    np.testing.assert_allclose(covered, [0.5, 0.0, 1.0], atol=1e-6)


@pytest.mark.parametrize(
    "box, hits", [([0.0, 0.0, 0.5, 0.5], 1), ([0.8, 0, 1, 0.2], 0)]
)
def test_pointing_at_detected_regions(box, hits):
    # The first region, which has the largest weight, covers the first object.
    boxes = np.array([[0.0, 0.0, 0.4, 0.4], [0.5, 0.5, 0.7, 0.7]])
    caption = Caption(
        "dog", ["dog"], 0.0, 0.0, 0.0, [1.0], np.array([[0.6, 0.4]]), boxes
    )
    assert pointing([caption], [{"dog": [box]}]) == (hits, 1)


def test_supervision_of_detected_regions(detected):
    features = RegionFeatures(["red-0.png", "red-8.png"], detected, MAX_REGIONS, DEPTH)
    batches = TrainingBatches(
        [[[START, 4, END]], [[START, 5, END]]],
        features=[features],
        views=[[((0.0, 0.0, 1.0, 1.0), False)] * 2],
        boxes=[{4: [(0.0, 0.5, 1.0, 1.0)]}, {}],
        batch_images=2,
        captions_per_image=1,
        seed=0,
    )
    [batch] = batches[0]
    row = int(batch["captions"][1, 0, 1] == 4)
    count = len(features.boxes(0))
    expected = np.pad([0.5, 0.0, 1.0][:count], (0, MAX_REGIONS - count))
    np.testing.assert_allclose(batch["coverage"][row, 0, 0], expected, atol=1e-6)
    assert batch["coverage"].sum() == pytest.approx(expected.sum())
    np.testing.assert_array_equal(batch["features"][row], features[0])
    assert features[0:2].shape == (2, MAX_REGIONS, DEPTH)
    found, boxes = features.with_boxes(slice(1, 2))
    np.testing.assert_array_equal(found, features[1:2])
    np.testing.assert_array_equal(boxes, [features.boxes(1)])
