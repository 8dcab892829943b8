"""Layouts of data sets: what all readers promise, each layout, and archives."""

import io
import json

import pytest
from captioner.datasets import (
    coco,
    fails,
    kaggle,
    karpathy,
    karpathy_image,
    names_of,
    official,
    photograph,
    shard,
    table,
    write,
)
from keras_attention_apps.captioner.data.dataset import read_dataset
from keras_attention_apps.captioner.data.files import DataError, get
from keras_attention_apps.captioner.data.layouts import CaptionedImage
from keras_attention_apps.captioner.images import ImageError, read_image
from keras_attention_apps.common.errors import UserError
from PIL import Image

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


def leaking_karpathy(root):
    images = [karpathy_image("a.jpg", split, "A .") for split in ("train", "val")]
    karpathy(root, *images)


def leaking_karpathy_by_folder(root):
    images = [
        karpathy_image("a.jpg", split, "A .", filepath=split)
        for split in ("train", "val")
    ]
    karpathy(root, *images)


def leaking_coco(root):
    for split in ("train", "val"):
        image = {"id": 7, "file_name": "a.jpg"}
        annotation = {"image_id": 7, "caption": "A ."}
        content = {"images": [image], "annotations": [annotation]}
        write(root / f"captions_{split}2017.json", content)
    photograph(root / "images", "a.jpg")


def leaking_flickr(root):
    official(root)
    write(root / "Flickr_8k.devImages.txt", "b.jpg\na.jpg\n")


def leaking_kaggle(root):
    kaggle(root, "a.jpg,A .\nb.jpg,B .\n")
    for split in ("train", "dev"):
        write(root / f"Flickr_8k.{split}Images.txt", "a.jpg\n")


def leaking_metadata(root):
    for split in ("train", "validation"):
        table(root / split, "a.jpg,A .\n")
        write(root / split / "a.jpg", "a copy")


def leaking_metadata_by_accents(root):
    rows = [
        {"file_name": name, "caption": "A bear", "split": split}
        for name, split in (("B\u00e4r.jpg", "train"), ("Ba\u0308r.jpg", "dev"))
    ]
    write(root / "metadata.jsonl", "\n".join(map(json.dumps, rows)))
    photograph(root, "B\u00e4r.jpg")


def leaking_webdataset(root):
    shard(root / "train-0.tar", a__jpg=b"a copy", a__txt=b"A")
    shard(root / "val-0.tar", b__jpg=b"x", b__txt=b"B", a__jpg=b"a copy", a__txt=b"A")


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize(
    "write_data",
    [
        leaking_karpathy,
        leaking_karpathy_by_folder,
        leaking_coco,
        leaking_flickr,
        leaking_kaggle,
        leaking_metadata,
        leaking_metadata_by_accents,
        leaking_webdataset,
    ],
)
def test_no_image_is_in_two_splits(tmp_path, write_data, split):
    write_data(tmp_path)
    fails(tmp_path, split, with_message="expected one split for every image, but found")


def test_other_images_of_the_same_name_may_be_in_other_splits(tmp_path):
    for split in ("train", "validation"):
        table(tmp_path / split, "a.jpg,A .\n")
        photograph(tmp_path / split, "a.jpg")

    assert names_of(read_dataset(tmp_path, "train")) == ["a.jpg"]
    assert names_of(read_dataset(tmp_path, "dev")) == ["a.jpg"]


def entries(*rows):
    return "\n".join(map(json.dumps, rows))


def coco_content(ids, image_ids):
    images = [{"id": x, "file_name": f"{i}.jpg"} for i, x in enumerate(ids)]
    annotations = [{"image_id": x, "caption": "A ."} for x in image_ids]
    return {"images": images, "annotations": annotations}


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "metadata.csv",
            "file_name,caption,caption\na.jpg,A,B\n",
            "line 1: expected columns of different names, but found two 'caption'",
        ),
        (
            "metadata.jsonl",
            '{"file_name": "a.jpg", "caption": "A", "caption": "B"}',
            "line 1: expected keys of different names, but found two 'caption'",
        ),
        (
            "train/metadata.jsonl",
            entries({"file_name": "a.jpg", "caption": "A", "split": "test"}),
            "line 1: expected the split of the folder, train, but found test",
        ),
        (
            "captions_train.json",
            coco_content([3], ["3"]),
            "expected image_id and id both texts, or both numbers, but found '3' as",
        ),
        (
            "captions_train.json",
            coco_content([3, 3], [3]),
            "images[1]: expected an id of its own for every image, but found 3 of "
            "train/0.jpg and of train/1.jpg",
        ),
        (
            "captions_train.json",
            coco_content([1], [True]),
            "annotations[0]: expected an integer or a string as 'image_id', "
            "but found True",
        ),
        (
            "dataset.json",
            {
                "images": [
                    karpathy_image("a.jpg", "train", "A .", imgid=number)
                    for number in range(2)
                ]
            },
            "images[1]: expected one entry for every image, but found two of a.jpg",
        ),
    ],
)
def test_ambiguous_files_are_refused(tmp_path, name, content, message):
    write(tmp_path / name, content)
    fails(tmp_path, with_message=message)


def test_samples_of_one_name_in_an_archive_are_refused(tmp_path):
    one, other = {"a__jpg": b"x", "a__txt": b"A"}, {"b__jpg": b"x", "b__txt": b"B"}
    shard(tmp_path / "0.tar", **one, **other, **{"./a.jpg": b"y", "./a.txt": b"C"})
    fails(tmp_path, with_message="expected one entry for every image, but found two of")


def test_boxes_of_a_word_come_from_all_rows(tmp_path):
    boxes = [[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]]
    rows = [{"file_name": "a.jpg", "caption": "A", "boxes": {"dog": x}} for x in boxes]
    write(tmp_path / "train/metadata.jsonl", entries(*rows, rows[0]))
    photograph(tmp_path / "train", "a.jpg")

    (image,) = read_dataset(tmp_path, "train")
    assert image.boxes == {"dog": tuple(map(tuple, boxes))}


def warned(root, capsys, split="train"):
    read_dataset(root, split)
    prefix = "captioner: warning: "
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith(prefix) for line in lines)
    return [line.removeprefix(prefix) for line in lines]


def test_captions_of_no_image_are_counted(tmp_path, capsys):
    coco(tmp_path)
    path = tmp_path / "captions_train2017.json"
    content = json.loads(path.read_text())
    content["annotations"] += coco_content([], [77, 78])["annotations"]
    write(path, content)

    assert warned(tmp_path, capsys) == [
        f"{tmp_path}: captions of images that are not listed are left out: 2, "
        "the first is 'A .'"
    ]
    assert warned(tmp_path, capsys, "dev") == []


def test_images_in_no_split_and_without_captions_are_counted(tmp_path, capsys):
    official(tmp_path)
    write(tmp_path / "Flickr_8k.trainImages.txt", "a.jpg\nnever-captioned.jpg\n")
    write(tmp_path / "Flickr_8k.testImages.txt", "")

    assert warned(tmp_path, capsys) == [
        f"{tmp_path}: images in no split are left out: 2, the first is 'c.jpg'",
        f"{tmp_path}: images without a caption are left out: 1, the first is "
        "'never-captioned.jpg'",
    ]


def test_captions_without_a_word_are_counted(tmp_path, capsys):
    karpathy(tmp_path, karpathy_image("a.jpg", "train", "A .", "...", ""))

    assert warned(tmp_path, capsys) == [
        f"{tmp_path}/dataset_flickr8k.json: captions without a word are left out: 2, "
        "the first is '...'"
    ]


def no_caption(root, kind):
    """Write a data set whose second image has a caption that is null."""
    if kind == "coco":
        coco(root)
        path = root / "captions_train2017.json"
        content = json.loads(path.read_text())
        content["annotations"].append({**content["annotations"][0], "caption": None})
        write(path, content)
    elif kind == "karpathy":
        karpathy(root, karpathy_image("a.jpg", "train", "A .", None))
    elif kind == "webdataset":
        one, other = b'{"caption": "A ."}', b'{"caption": null}'
        files = {"a__jpg": b"x", "a__json": one, "b__jpg": b"y", "b__json": other}
        shard(root / "train-0.tar", **files)
        shard(root / "val-0.tar", c__jpg=b"z", c__json=one)
    else:
        rows = [{"file_name": "a.jpg", "text": "A ."}, {"file_name": "b.jpg"}]
        rows[1] |= {"text": None} if kind == "null" else {"captions": [None, "B ."]}
        write(root / "train" / "metadata.jsonl", "\n".join(map(json.dumps, rows)))
        write(root / "dev" / "metadata.jsonl", json.dumps({**rows[0], "text": "C ."}))
        photograph(root, "train/a.jpg", "train/b.jpg", "dev/a.jpg")


@pytest.mark.parametrize("kind", ["coco", "karpathy", "webdataset", "null", "list"])
def test_a_caption_that_is_null_is_counted_as_an_empty_one(tmp_path, capsys, kind):
    no_caption(tmp_path, kind)

    (warning,) = warned(tmp_path, capsys)
    assert warning.endswith("captions without a word are left out: 1, the first is ''")


@pytest.mark.parametrize(
    "mark", ["<start>", "<end>", "startseq", "endseq", "<s>", "<unk>", "&amp;", "&#39;"]
)
def test_marks_of_other_programs_are_named(tmp_path, capsys, mark):
    text = f"A {mark} dog"
    karpathy(tmp_path, karpathy_image("a.jpg", "train", "A cat & a <dog>.", text, text))

    assert warned(tmp_path, capsys) == [
        f"{tmp_path}/dataset_flickr8k.json: 2 captions of the split train contain "
        f"marks of another program, which are read as words. The first: {mark!r} in "
        f"{text!r}"
    ]


@pytest.mark.parametrize("second, count", [("A cat", 1), ("A dog", 0), ("", 0)])
def test_a_second_text_of_an_image_is_counted(tmp_path, capsys, second, count):
    table(tmp_path / "train", f"a.jpg,A dog,{second}\n", "file_name,caption,text")
    photograph(tmp_path / "train", "a.jpg")

    assert warned(tmp_path, capsys) == count * [
        f"{tmp_path}/train/metadata.csv: values of 'text' beside 'caption' are left "
        "out: 1, the first is 'A cat'"
    ]


def test_captions_that_only_json_has_are_counted(tmp_path, capsys):
    content = b'{"caption": "A cat"}'
    shard(tmp_path / "train-0.tar", a__jpg=b"x", a__txt=b"A dog\n", a__json=content)

    assert warned(tmp_path, capsys) == [
        f"{tmp_path}: captions in JSON that another file lacks are left out: 1, the "
        "first is 'A cat'"
    ]


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


def test_official_keeps_the_order_of_the_split_file(tmp_path):
    official(tmp_path)
    assert read_dataset(tmp_path, "train") == [
        CaptionedImage(tmp_path / "Flicker8k_Dataset/c.jpg", ("A cat .",), "c"),
        CaptionedImage(
            tmp_path / "Flicker8k_Dataset/a.jpg",
            ("A dog runs .", "A dog , running"),
            "a",
        ),
    ]
    assert names_of(read_dataset(str(tmp_path), "test")) == ["d.jpg"]


@pytest.mark.parametrize(
    "folder",
    [
        "Flicker8k_Dataset",
        "Flickr8k_Dataset",
        "flickr30k-images",
        "images",
        "Images",
        "Flickr8k_Dataset/Flicker8k_Dataset",
        "Images/Images",
        ".",
    ],
)
def test_official_finds_the_images(tmp_path, folder):
    official(tmp_path, photographs=folder)
    assert read_dataset(tmp_path, "dev")[0].path == tmp_path / folder / "b.jpg"


@pytest.mark.parametrize("given", [".", "Flickr8k_text", "Flicker8k_Dataset"])
def test_official_finds_texts_in_a_folder_of_their_own(tmp_path, given):
    official(tmp_path, texts=tmp_path / "Flickr8k_text")
    (image,) = read_dataset(tmp_path / given, "dev")
    assert image.path == tmp_path / "Flicker8k_Dataset/b.jpg"


def test_official_reads_the_files_of_flickr30k(tmp_path):
    write(tmp_path / "results_20130124.token", "1.jpg#0\tOne .\n")
    write(tmp_path / "flickr30k_trainImages.txt", "1.jpg\n")
    photograph(tmp_path / "flickr30k-images", "1.jpg")
    assert read_dataset(tmp_path, "train")[0].captions == ("One .",)


def test_official_ignores_lemmas_and_hidden_files(tmp_path):
    official(tmp_path)
    write(tmp_path / "Flickr8k.lemma.token.txt", "b.jpg#0\tzwei Hund .\n")
    write(tmp_path / "._Flickr8k.token.txt", b"\x00\xff")
    assert read_dataset(tmp_path, "dev")[0].captions == ("Zwei Hünde .",)


def test_split_file_may_have_a_byte_order_mark_and_blank_lines(tmp_path):
    official(tmp_path)
    write(
        tmp_path / "Flickr_8k.trainImages.txt",
        b"\xef\xbb\xbfa.jpg  \r\n\r\n c.jpg\r\na.jpg\r\n\n",
    )
    assert names_of(read_dataset(tmp_path, "train")) == ["a.jpg", "c.jpg"]


def test_token_file_may_have_a_byte_order_mark_and_blank_lines(tmp_path):
    official(tmp_path)
    write(
        tmp_path / "Flickr8k.token.txt",
        b"\xef\xbb\xbfb.jpg#0\tOne.\r\n\r\nb.jpg#1\tTwo\xe2\x80\xa8parts.\r\n",
    )
    (image,) = read_dataset(tmp_path, "dev")
    assert image.captions == ("One.", "Two\u2028parts.")


def test_known_bad_line_of_flickr8k_changes_nothing(tmp_path):
    official(tmp_path)
    with open(tmp_path / "Flickr8k.token.txt", "a") as file:
        file.write("2258277193_586949ec62.jpg.1#0\tPeople waiting .\n")
    assert names_of(read_dataset(tmp_path, "train")) == ["c.jpg", "a.jpg"]


def test_images_and_captions_without_text_are_dropped(tmp_path):
    official(tmp_path)
    write(tmp_path / "Flickr8k.token.txt", "a.jpg#0\t  \na.jpg#1\tA .\nc.jpg#0\t\n")
    write(tmp_path / "Flickr_8k.trainImages.txt", "a.jpg\nc.jpg\nnever-captioned.jpg\n")
    (image,) = read_dataset(tmp_path, "train")
    assert (image.path.name, image.captions) == ("a.jpg", ("A .",))


@pytest.mark.parametrize("line", ["b.jpg A dog .", "b.jpg#0 A dog .", "b.jpg\tA dog ."])
def test_official_names_a_broken_line(tmp_path, line):
    official(tmp_path)
    write(tmp_path / "Flickr8k.token.txt", f"a.jpg#0\tA .\n{line}\n")
    fails(
        tmp_path,
        with_message="Flickr8k.token.txt, line 2: expected name#number<TAB>caption, "
        f"but found {line + chr(10)!r}",
    )


def test_official_names_the_missing_split_file(tmp_path):
    official(tmp_path)
    (tmp_path / "Flickr_8k.testImages.txt").unlink()
    fails(
        tmp_path,
        "test",
        with_message="expected a file *testImages.txt for the split test, but found "
        "Flicker8k_Dataset, Flickr8k.token.txt, Flickr_8k.devImages.txt, ",
    )


def test_official_files_without_splits_get_those_of_kaggle(tmp_path):
    names = [f"{number}.jpg" for number in range(20)]
    captions = "".join(f"{name}#{n}\tA dog .\n" for name in names for n in range(2))
    write(tmp_path / "official/results_20130124.token", captions)
    photograph(tmp_path / "official/flickr30k-images", *names)
    kaggle(tmp_path / "kaggle", "".join(f"{name},A dog .\n" for name in names))

    for split in ("train", "dev", "test"):
        images = read_dataset(tmp_path / "official", split)
        assert {image.captions for image in images} == {("A dog .", "A dog .")}
        assert names_of(images) == names_of(read_dataset(tmp_path / "kaggle", split))


def test_two_files_for_one_purpose_are_refused(tmp_path):
    official(tmp_path)
    write(tmp_path / "results_20130124.token")
    fails(
        tmp_path,
        with_message="expected one file *.token.txt or *.token, but found "
        "Flickr8k.token.txt, results_20130124.token",
    )


def test_kaggle_reads_commas_and_quotes(tmp_path):
    kaggle(
        tmp_path,
        'a.jpg,"A sign , it says ""stop"" ."\n'
        "a.jpg,A dog , wet , runs .\n"
        'a.jpg,A "stop" sign .\n'
        "\n"
        "a.jpg,\n"
        "a.jpg, A cat .\n",
    )
    images = read_dataset(tmp_path, "train", validation_share=0)
    assert images == [
        CaptionedImage(
            tmp_path / "Images/a.jpg",
            (
                'A sign , it says "stop" .',
                "A dog , wet , runs .",
                'A "stop" sign .',
                "A cat .",
            ),
            "a",
        )
    ]


@pytest.mark.parametrize("name", ["results.csv", "captions.txt"])
def test_kaggle_reads_the_table_of_flickr30k(tmp_path, name):
    photograph(tmp_path / "flickr30k_images" / "flickr30k_images", "1.jpg", "2.jpg")
    write(
        tmp_path / name,
        "image_name| comment_number| comment\n"
        '1.jpg| 0| A "stop" sign , red .\n'
        "1.jpg| 1|  A sign | a post .\n"
        "\n"
        # As in the data set.
        "2.jpg| 4   A dog runs across the grass .\n",
    )
    found = read_dataset(tmp_path, "train", validation_share=0)
    assert [image.captions for image in found] == [
        ('A "stop" sign , red .', "A sign | a post ."),
        ("A dog runs across the grass .",),
    ]
    write(tmp_path / name, "image_name|comment_number|comment\n1.jpg|A sign\n")
    fails(tmp_path, with_message="line 2: expected image_name|comment_number|comment")


def test_kaggle_reads_the_columns_of_flickr30k(tmp_path):
    photograph(tmp_path / "Images", "1.jpg")
    content = (
        'image_name,comment_number,comment\n1.jpg,0,"One, two ."\n1.jpg,1,A, b .\n'
    )
    write(tmp_path / "captions.txt", content)
    (image,) = read_dataset(tmp_path, "train", validation_share=0)
    assert image.captions == ("One, two .", "A, b .")


def test_another_table_of_results_is_no_data_set(tmp_path):
    kaggle(tmp_path, "a.jpg,A .\n")
    (tmp_path / "captions.txt").rename(tmp_path / "metadata.csv")
    write(tmp_path / "results.csv", "epoch,loss\n1,2\n")
    content = "file_name,text\nImages/a.jpg,A dog\n"
    write(tmp_path / "metadata.csv", content)
    (image,) = read_dataset(tmp_path, "train", validation_share=0)
    assert image.captions == ("A dog",)


def test_kaggle_tolerates_bom_crlf_and_lower_case_folder(tmp_path):
    photograph(tmp_path / "images", "a.jpg")
    write(tmp_path / "captions.txt", b"\xef\xbb\xbfImage, Caption\r\na.jpg,One .\r\n")
    (image,) = read_dataset(tmp_path, "train", validation_share=0)
    assert image.captions == ("One .",)


def test_kaggle_leaves_out_the_known_bad_name(tmp_path, capsys):
    kaggle(tmp_path, "a.jpg,A .\n")
    with open(tmp_path / "captions.txt", "a") as file:
        file.write("2258277193_586949ec62.jpg.1,People waiting .\n")
    images = read_dataset(tmp_path, "train", validation_share=0)
    assert names_of(images) == ["a.jpg"]
    assert "'2258277193_586949ec62.jpg.1'" in capsys.readouterr().err


def test_kaggle_uses_split_files_where_there_are_some(tmp_path):
    kaggle(tmp_path, "a.jpg,A .\nb.jpg,B .\nc.jpg,C .\n")
    write(tmp_path / "Flickr_8k.trainImages.txt", "c.jpg\na.jpg\n")
    write(tmp_path / "Flickr_8k.testImages.txt", "b.jpg\n")
    assert names_of(read_dataset(tmp_path, "train")) == ["c.jpg", "a.jpg"]
    assert names_of(read_dataset(tmp_path, "test")) == ["b.jpg"]
    fails(tmp_path, "dev", with_message="expected a file *devImages.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "file;text\na.jpg;A .\n",
            "line 1: expected the header image,caption or image_name|comment_number|"
            "comment, but found 'file;text'",
        ),
        (
            "image,caption\na.jpg,A .\n\nb.jpg\n",
            "line 4: expected image,caption on one line, but found 'b.jpg'",
        ),
        (
            'image,caption\na.jpg,"Stop .\nb.jpg,B .\n',
            "line 2: expected image,caption on one line, but found 'a.jpg,Stop .",
        ),
        (
            'image,caption\na.jpg,A .\nb.jpg,"' + "long" * 40_000,
            "line 3: expected CSV, but found a mistake (field larger than",
        ),
    ],
    ids=["header", "column", "quote", "field"],
)
def test_kaggle_names_a_broken_line(tmp_path, content, message):
    write(tmp_path / "captions.txt", content)
    fails(tmp_path, with_message=f"captions.txt, {message}")


def test_kaggle_with_nothing_but_a_header_is_refused(tmp_path):
    kaggle(tmp_path, "")
    fails(tmp_path, with_message="captions with a word for the split train")


def test_images_stay_in_the_shards_of_webdataset(tmp_path):
    picture = io.BytesIO()
    Image.new("RGB", (4, 3), "red").save(picture, "PNG")
    shard(
        tmp_path / "train-0.tar",
        a__png=picture.getvalue(),
        a__txt=b"Ein Hund\nA dog\n",
        b__json=b'{"captions": ["A cat"]}',
        b__jpg=b"no picture",
    )
    shard(tmp_path / "val-0.tar", c__jpg=b"x", c__json=b'{"text": "A cow"}')

    first, second = read_dataset(tmp_path, "train")
    assert first.captions == ("Ein Hund", "A dog")
    assert second.captions == ("A cat",)
    assert (first.image_id, second.image_id) == ("a", "b")
    assert read_image(first.path).size == (4, 3)
    with pytest.raises(ImageError, match=r"train-0.tar/b.jpg'.*begin with b'no pict"):
        read_image(second.path)
    (image,) = read_dataset(tmp_path, "dev")
    assert (image.path.read_bytes(), image.captions) == (b"x", ("A cow",))


@pytest.mark.parametrize("suffix", ["jfif", "jp2", "TIF"])
def test_shards_have_images_of_every_format_that_can_be_read(tmp_path, suffix):
    files = {f"a__{suffix}": b"x", "a__txt": b"A dog"}
    shard(tmp_path / "train-0.tar", **files)

    [image] = read_dataset(tmp_path, "train")
    assert image.path.name == f"a.{suffix}"


def test_masks_beside_a_photograph_are_not_its_image(tmp_path):
    files = {"a__pgm": b"mask", "a__jpg": b"x", "a__ppm": b"mask", "a__txt": b"A dog"}
    shard(tmp_path / "train-0.tar", **files)
    [image] = read_dataset(tmp_path, "train")
    assert image.path.name == "a.jpg"

    shard(tmp_path / "train-0.tar", **files, a__png=b"y")
    fails(tmp_path, with_message="one image, but found a.jpg, a.pgm, a.png, a.ppm, a.")


def test_shards_without_splits_are_drawn_by_name(tmp_path):
    for number in range(2):
        files = {}
        for i in range(20):
            files |= {f"{number}-{i}__jpg": b"x", f"{number}-{i}__txt": b"A dog"}
        shard(tmp_path / f"{number:03}.tar", **files)

    parts = [read_dataset(tmp_path, split) for split in ("train", "dev", "test")]
    assert sum(map(len, parts)) == 40
    assert all(parts)


def test_the_draw_does_not_depend_on_where_a_folder_lies(tmp_path):
    files = {}
    for i in range(40):
        files |= {f"{i}__jpg": b"x", f"{i}__txt": b"A dog"}
    drawn = []
    for place in ("here", "there"):
        shard(tmp_path / place / "0.tar", **files)
        drawn.append([x.image_id for x in read_dataset(tmp_path / place, "dev")])

    assert drawn[0] == drawn[1] != []


def test_files_that_macos_and_img2dataset_add_are_ignored(tmp_path):
    files = {"a__jpg": b"x", "a__txt": b"A dog\x0con \xe2\x80\xa8 grass"}
    shard(
        tmp_path / "train-0.tar",
        **{".DS_Store": b"x", "._a__jpg": b"x", ".": b"x"},
        **files,
        a__json=b'{"caption": "A dog", "width": 3, "boxes": {"dog": []}}',
    )

    (image,) = read_dataset(tmp_path, "train")
    assert image.captions == ("A dog\x0con \u2028 grass",)
    assert image.boxes == {}


def test_boxes_are_in_shards_too(tmp_path):
    entry = {"caption": "A dog", "boxes": {"dog": [0, 0, 1, 1]}}
    shard(tmp_path / "train-0.tar", a__jpg=b"x", a__json=json.dumps(entry).encode())

    (image,) = read_dataset(tmp_path, "train")
    assert image.boxes == {"dog": ((0, 0, 1, 1),)}


@pytest.mark.parametrize(
    "files, message",
    [
        ({"a__jpg": b"x", "a__png": b"x", "a__txt": b"A"}, "a: expected one image"),
        ({"a__txt": b"A dog"}, "a: expected one image, but found a.txt"),
        ({"a__jpg": b"x", "a__json": b"{}"}, "a.json: expected one of the keys"),
        ({"a__jpg": b"x", "a__json": b"5"}, "a.json: expected an object, but found 5"),
        ({"a__jpg": b"x", "a__txt": b"\xff"}, "a.txt, line 1: expected UTF-8"),
    ],
)
def test_broken_shards_are_named(tmp_path, files, message):
    shard(tmp_path / "0.tar", **files)
    fails(tmp_path, with_message=message)


# The second header begins after 1,024 bytes, and its checksum 148 bytes later.
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda x: x[:1172] + b"????" + x[1176:], id="checksum"),
        pytest.param(lambda x: x[:1624], id="end"),
    ],
)
def test_a_damaged_shard_is_named(tmp_path, damage):
    path = tmp_path / "0.tar"
    shard(path, a__jpg=b"x", a__txt=b"A dog", b__jpg=b"x", b__txt=b"A cow")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"0\.tar: expected an uncompressed tar"):
        read_dataset(tmp_path, "train")


def test_a_shard_that_is_no_archive_is_named(tmp_path):
    write(tmp_path / "0.tar", "This is a text, and not a short one at that. " * 20)
    with pytest.raises(UserError, match=r"0\.tar: expected an uncompressed tar"):
        read_dataset(tmp_path, "train")
