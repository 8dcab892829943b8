"""Captions in a table or in JSON lines beside the photographs: Hugging Face."""

import json

import pytest
from captioner.datasets import fails, photograph, table, write
from keras_attention_apps.captioner.data.dataset import read_dataset

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


def test_hugging_face_csv_has_a_row_for_every_caption(tmp_path):
    table(tmp_path / "train", 'b.png,"A dog, running"\na.png,Ein Hund\nb.png,A dog\n')
    table(tmp_path / "validation", "a.png,A cat\n", header="file_name,text")
    photograph(tmp_path / "train", "a.png", "b.png")
    photograph(tmp_path / "validation", "a.png")

    first, second = read_dataset(tmp_path, "train")
    assert first.path == tmp_path / "train" / "b.png"
    assert first.captions == ("A dog, running", "A dog")
    assert second.captions == ("Ein Hund",)
    (image,) = read_dataset(tmp_path, "dev")
    assert image.path == tmp_path / "validation" / "a.png"
    fails(tmp_path, "test", with_message="images of the split test, but found only dev")


def test_hugging_face_json_lines_hold_splits_and_several_captions(tmp_path):
    rows = [
        {"file_name": "in/a.jpg", "captions": ["One", "Two"], "split": "train"},
        {
            "file_name": "in/b.jpg",
            "caption": "\u732b\u304c\u5ea7\u308b",
            "split": "val",
        },
    ]
    write(tmp_path / "metadata.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    photograph(tmp_path / "in", "a.jpg", "b.jpg")

    (image,) = read_dataset(tmp_path, "train")
    assert image.captions == ("One", "Two")
    (image,) = read_dataset(tmp_path, "dev")
    assert image.captions == ("\u732b\u304c\u5ea7\u308b",)


@pytest.mark.parametrize("key", ["file_name", "filename", "file", "image"])
@pytest.mark.parametrize("name", ["in/a.jpg", "in\\a.jpg", "C:\\data\\in\\a.jpg"])
def test_names_of_the_column_of_files(tmp_path, key, name):
    photograph(tmp_path / "in", "a.jpg")
    rows = [{key: name, "text": "A dog"}, {key: name, "text": None}]
    write(tmp_path / "metadata.jsonl", "\n".join(map(json.dumps, rows)))

    (image,) = read_dataset(tmp_path, "train", validation_share=0)
    assert (image.path, image.image_id) == (tmp_path / "in" / "a.jpg", "a")


def test_a_file_may_have_a_backslash_in_its_name(tmp_path):
    # Some programs unpack archives of Windows in this way.
    photograph(tmp_path, "in\\a.jpg")
    row = {"file_name": "in/a.jpg", "text": "A dog"}
    write(tmp_path / "metadata.jsonl", json.dumps(row))

    (image,) = read_dataset(tmp_path, "train", validation_share=0)
    assert image.path == tmp_path / "in\\a.jpg"


def test_images_of_one_name_have_numbers_of_their_own(tmp_path):
    names = ("a/1.png", "b/1.png", "b/2.png")
    photograph(tmp_path, *names, "a/3.png")
    rows = [{"file_name": name, "text": "A dog", "split": "train"} for name in names]
    rows.append({"file_name": "a/3.png", "text": "A dog", "split": "dev"})
    write(tmp_path / "metadata.jsonl", "\n".join(map(json.dumps, rows)))

    found = [image.image_id for image in read_dataset(tmp_path, "train")]
    assert found == ["a/1.png", "b/1.png", "2"]


def test_boxes_come_with_the_captions(tmp_path):
    box = [0.25, 0.5, 0.75, 1]
    row = {"file_name": "a.jpg", "captions": ["A dog"], "boxes": {"dog": [box]}}
    write(tmp_path / "train" / "metadata.jsonl", row)
    photograph(tmp_path / "train", "a.jpg")

    (image,) = read_dataset(tmp_path, "train")
    assert image.boxes == {"dog": (tuple(box),)}
    row["boxes"]["dog"] = [[0, 0, 7, 7]]
    write(tmp_path / "train" / "metadata.jsonl", row)
    fails(tmp_path, with_message="line 1: expected boxes by words")


def test_blank_lines_and_columns_of_boxes_are_ignored(tmp_path):
    table(
        tmp_path / "train",
        "\na.png,A dog,none\n\nb.png,A cat,\n\n",
        header="file_name,text,boxes",
    )
    photograph(tmp_path / "train", "a.png", "b.png")
    table(tmp_path / "dev", "c.png,A cow\n")
    photograph(tmp_path / "dev", "c.png")

    first, second = read_dataset(tmp_path, "train")
    assert (first.captions, second.captions) == (("A dog",), ("A cat",))
    assert first.boxes == second.boxes == {}


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "metadata.csv",
            "file_name,label\na.jpg,3\n",
            "line 2: expected one of the keys",
        ),
        (
            "metadata.csv",
            "file_name,caption\na.jpg\n",
            "line 2: expected 2 cells, but found 1",
        ),
        (
            "metadata.csv",
            "name,caption\na.jpg,A\n",
            "line 2: expected the key 'file_name'",
        ),
        (
            "metadata.csv",
            "file_name,caption,split\na.jpg,A,mine\n",
            "expected split one of",
        ),
        (
            "metadata.csv",
            'file_name,caption,split\na.jpg,A,"my\nown"\n',
            r"but found 'my\nown'",
        ),
        (
            "metadata.csv",
            'file_name,"cap\ntion"\na.jpg,A\n',
            r"but found only cap\ntion, file_name",
        ),
        (
            "metadata.csv",
            "file_name,caption,split\na.jpg,A,train\na.jpg,B,dev\n",
            "line 3: expected one split for every image, but found a.jpg in train and "
            "in dev",
        ),
        (
            "metadata.csv",
            "file_name,caption,split\na.jpg,A,train\nb.jpg,B,\n",
            "a split for every image, but found none of b.jpg",
        ),
        (
            "metadata.csv",
            'file_name,caption\na.jpg,"A\ndog"\nb.jpg\n',
            "line 4: expected 2 cells, but found 1",
        ),
        ("metadata.jsonl", '{"file_name": "a.jpg"', "line 1: expected JSON"),
        (
            "metadata.jsonl",
            '{"file_name": "a.jpg", "captions": [3]}',
            "a string or a list of strings",
        ),
        ("metadata.jsonl", '["a.jpg"]', "line 1: expected an object"),
    ],
)
def test_broken_metadata_is_named(tmp_path, name, content, message):
    write(tmp_path / name, content)
    fails(tmp_path, with_message=message)
