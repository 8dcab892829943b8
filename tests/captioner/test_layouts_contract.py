"""Rules of all layouts: no image in two splits, a warning for all that is dropped."""

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
