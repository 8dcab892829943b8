"""Captions in JSON: Karpathy's files, and COCO."""

import json

import pytest
from captioner.datasets import (
    coco,
    fails,
    karpathy,
    karpathy_image,
    names_of,
    photograph,
    write,
)
from keras_attention_apps.captioner.data.dataset import read_dataset
from keras_attention_apps.captioner.data.files import DataError, get
from keras_attention_apps.captioner.data.layouts import CaptionedImage

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


def test_karpathy_reads_splits_captions_and_numbers(tmp_path):
    karpathy(
        tmp_path,
        karpathy_image("c.jpg", "restval", "C .", imgid=7, cocoid=11),
        karpathy_image("a.jpg", "train", " A . ", "", "AA .", imgid=5),
        karpathy_image("b.jpg", "val", "B ."),
        karpathy_image("d.jpg", "test", "D ."),
        karpathy_image("e.jpg", "train", imgid=13),
    )
    assert read_dataset(tmp_path, "train") == [
        CaptionedImage(tmp_path / "images/c.jpg", ("C .",), 11),
        CaptionedImage(tmp_path / "images/a.jpg", ("A .", "AA ."), 5),
    ]
    (image,) = read_dataset(tmp_path, "dev")
    assert image.image_id == "b"
    assert names_of(read_dataset(tmp_path, "test")) == ["d.jpg"]


@pytest.mark.parametrize(
    "folder", ["val2014", "images/val2014", "Flicker8k_Dataset", "."]
)
def test_karpathy_finds_the_images(tmp_path, folder):
    image = karpathy_image("a.jpg", "train", "A .", filepath="val2014")
    karpathy(tmp_path, image, name="dataset_coco.json", photographs=folder)
    assert read_dataset(tmp_path, "train")[0].path == tmp_path / folder / "a.jpg"


def test_karpathy_prefers_the_folder_that_the_file_names(tmp_path):
    image = karpathy_image("a.jpg", "train", "A .", filepath="val2014")
    karpathy(tmp_path, image)
    photograph(tmp_path / "val2014", "a.jpg")
    assert read_dataset(tmp_path, "train")[0].path == tmp_path / "val2014/a.jpg"


def test_karpathy_names_a_split_that_is_not_there(tmp_path):
    karpathy(tmp_path, karpathy_image("a.jpg", "train", "A ."))
    fails(
        tmp_path,
        "val",
        with_message="dataset_flickr8k.json: expected images of the split dev, "
        "but found only train",
    )


A = karpathy_image("a.jpg", "train", "A .")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{\n", ": expected JSON, but found a mistake (Expecting property name"),
        ([], ": expected an object with the key 'images', but found []"),
        ({"info": 1}, ": expected the key 'images', but found only info"),
        ({"images": 3}, ": expected a list as 'images', but found 3"),
        (
            {"images": [A, {"split": "train", "sentences": []}]},
            ": images[1]: expected the key 'filename', but found only sentences, split",
        ),
        (
            {"images": [{"filename": "a.jpg", "sentences": []}]},
            ": images[0]: expected the key 'split', but found only filename, sentences",
        ),
        (
            {"images": [{"filename": "a.jpg", "split": "train"}]},
            ": images[0]: expected the key 'sentences', but found only filename, split",
        ),
        (
            {"images": [A | {"sentences": [{"tokens": ["a"]}]}]},
            ": images[0]: expected the key 'raw', but found only tokens",
        ),
        (
            {"images": [A | {"split": "training"}]},
            ": images[0]: expected split one of dev, restval, test, train, val, valid "
            "and 1 more, but found 'training'",
        ),
        (
            {"images": [A | {"filepath": 5}]},
            ": images[0]: expected a string as 'filepath', but found 5",
        ),
        (
            {"images": [A | {"cocoid": None}]},
            ": images[0]: expected an integer or a string as 'cocoid', but found None",
        ),
    ],
)
def test_karpathy_reports_broken_files(tmp_path, content, message):
    write(tmp_path / "dataset_flickr8k.json", content)
    fails(tmp_path, with_message=f"dataset_flickr8k.json{message}")


@pytest.mark.parametrize("texts", [".", "annotations"])
@pytest.mark.parametrize("year", [2014, 2017])
def test_coco_reads_captions_and_numbers(tmp_path, texts, year):
    coco(tmp_path, texts=tmp_path / texts, year=year)
    assert read_dataset(tmp_path, "train") == [
        CaptionedImage(
            tmp_path / f"train{year}/000000000003.jpg", ("A tram.", "Trams."), 3
        ),
        CaptionedImage(tmp_path / f"train{year}/000000000001.jpg", ("A bus.",), 1),
    ]
    images = read_dataset(tmp_path, "val")
    # A name that is in both folders is found in the folder of its split.
    assert [image.path.parent.name for image in images] == [f"val{year}"] * 2


def test_coco_finds_the_images_in_one_folder(tmp_path):
    coco(tmp_path)
    (tmp_path / "val2017").rename(tmp_path / "images")
    (image, _) = read_dataset(tmp_path, "dev")
    assert image.path == tmp_path / "images/000000000005.jpg"


def test_coco_drops_images_without_caption(tmp_path):
    coco(tmp_path)
    content = json.loads((tmp_path / "captions_val2017.json").read_text())
    content["images"].append({"id": 99, "file_name": "99.jpg"})
    write(tmp_path / "captions_val2017.json", content)
    assert [image.image_id for image in read_dataset(tmp_path, "dev")] == [5, 1]


def test_coco_without_a_test_file_is_an_error(tmp_path):
    coco(tmp_path)
    fails(
        tmp_path,
        "test",
        with_message="expected a file captions_*test*.json for the split test, but "
        "found captions_train2017.json, captions_val2017.json, train2017, val2017",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ": expected JSON, but found a mistake (Expecting value"),
        ({"images": []}, ": expected the key 'annotations', but found only images"),
        ({"annotations": []}, ": expected the key 'images', but found only annota"),
        (
            {"images": [], "annotations": [{"caption": "A."}]},
            ": annotations[0]: expected the key 'image_id', but found only caption",
        ),
        (
            {"images": [], "annotations": [{"image_id": 3}]},
            ": annotations[0]: expected the key 'caption', but found only image_id",
        ),
        (
            {"images": [], "annotations": [{"image_id": {}, "caption": "A."}]},
            ": annotations[0]: expected an integer or a string as 'image_id', "
            "but found {}",
        ),
        (
            {"images": [{"file_name": "a.jpg"}], "annotations": []},
            ": images[0]: expected the key 'id', but found only file_name",
        ),
        (
            {"images": [{"id": 3}], "annotations": []},
            ": images[0]: expected the key 'file_name', but found only id",
        ),
    ],
)
def test_coco_reports_broken_files(tmp_path, content, message):
    write(tmp_path / "captions_train2017.json", content)
    fails(tmp_path, with_message=f"captions_train2017.json{message}")


def test_json_may_begin_with_a_byte_order_mark(tmp_path):
    image = karpathy_image("a.jpg", "train", "A .")
    karpathy(tmp_path, image)
    content = json.dumps({"images": [image]}).encode("utf-8-sig")
    write(tmp_path / "dataset_flickr8k.json", content)
    assert names_of(read_dataset(tmp_path, "train")) == ["a.jpg"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(str, "a string"), (int, "an integer"), (list, "a list")],
)
def test_every_type_of_json_has_a_name_in_errors(kind, expected):
    with pytest.raises(DataError, match=rf"a\.json: expected {expected} as 'key', but"):
        get({"key": None}, "key", kind, "a.json")
