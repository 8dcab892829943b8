"""Layouts of data sets: what all readers promise, each layout, and archives."""

import json

import pytest

from attention_testing.captioner.datasets import (
    coco,
    coco_content,
    entries,
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
from attention_testing.captioner.image_files import encode, noise
from keras_attention_apps.captioner.data.dataset import (
    CaptionedImage,
    check_boxes,
    read_dataset,
)
from keras_attention_apps.captioner.images import ImageError, read_image
from keras_attention_apps.common.errors import UserError

pytestmark = pytest.mark.usefixtures("warnings_are_errors")

SPLIT = "file_name,caption,split"


def karpathy_by_folder(root):
    splits = ("train", "val")
    images = (karpathy_image("a.jpg", x, "A .", filepath=x) for x in splits)
    karpathy(root, *images)


def coco_with_one_folder(root):
    for split in ("train", "val"):
        write(root / f"captions_{split}2017.json", coco_content([7], [7]))
    photograph(root / "images", "0.jpg")


def copies_in_tables(root):
    for split in ("train", "validation"):
        table(root / split, "a.jpg,A .\n")
        write(root / split / "a.jpg", "a copy")


def names_by_accents(root):
    table(root, "B\u00e4r.jpg,A,train\nBa\u0308r.jpg,A,dev\n", SPLIT)
    photograph(root, "B\u00e4r.jpg")


def copies_in_shards(root):
    shard(root / "train-0.tar", a__jpg=b"a copy", a__txt=b"A")
    shard(root / "val-0.tar", b__jpg=b"x", b__txt=b"B", a__jpg=b"a copy", a__txt=b"A")


LEAKS = [karpathy_by_folder, coco_with_one_folder, copies_in_tables, names_by_accents]


@pytest.mark.parametrize("write_leak", [*LEAKS, copies_in_shards])
def test_no_image_is_in_two_splits(tmp_path, write_leak):
    write_leak(tmp_path)
    for split in ("train", "dev"):
        fails(tmp_path, "expected one split for every image, but ", split=split)


def test_other_images_of_the_same_name_may_be_in_other_splits(tmp_path):
    for split in ("train", "validation"):
        table(tmp_path / split, "a.jpg,A .\n")
        photograph(tmp_path / split, "a.jpg")

    assert names_of(read_dataset(tmp_path, "train")) == ["a.jpg"]
    assert names_of(read_dataset(tmp_path, "dev")) == ["a.jpg"]


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


@pytest.mark.parametrize("mark", ["<start>", "endseq", "&amp;", "&#39;"])
def test_marks_of_other_programs_are_named(tmp_path, capsys, mark):
    text = f"A {mark} dog"
    karpathy(tmp_path, karpathy_image("a.jpg", "train", "A cat & a <dog>.", text, text))

    assert warned(tmp_path, capsys) == [
        f"{tmp_path}/dataset_flickr8k.json: 2 captions of the split train contain "
        f"marks of another program, which are read as words. The first: {mark!r} in "
        f"{text!r}"
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


@pytest.mark.parametrize("folder", ["val2014", "images/val2014", "Flicker8k_Dataset"])
def test_karpathy_finds_the_images(tmp_path, folder):
    image = karpathy_image("a.jpg", "train", "A .", filepath="val2014")
    karpathy(tmp_path, image, name="dataset_coco.json", photographs=folder)
    assert read_dataset(tmp_path, "train")[0].path == tmp_path / folder / "a.jpg"


@pytest.mark.parametrize(("texts", "year"), [(".", 2017), ("annotations", 2014)])
def test_coco_reads_captions_and_numbers(tmp_path, texts, year):
    coco(tmp_path, texts=tmp_path / texts, year=year)
    folder = tmp_path / f"train{year}"
    assert read_dataset(tmp_path, "train") == [
        CaptionedImage(folder / "000000000003.jpg", ("A tram.", "Trams."), 3),
        CaptionedImage(folder / "000000000001.jpg", ("A bus.",), 1),
    ]
    images = read_dataset(tmp_path, "val")
    # A name that is in both folders is found in the folder of its split.
    assert [image.path.parent.name for image in images] == [f"val{year}"] * 2


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
    fails(tmp_path, "images of the split test, but found only dev", split="test")


def test_hugging_face_json_lines_hold_splits_and_several_captions(tmp_path):
    cat = "\u732b\u304c\u5ea7\u308b"
    rows = [
        {"file_name": "in/a.jpg", "captions": ["One", "Two"], "split": "train"},
        {"file_name": "in/b.jpg", "caption": cat, "split": "val"},
    ]
    write(tmp_path / "metadata.jsonl", entries(*rows) + "\n\n")
    photograph(tmp_path / "in", "a.jpg", "b.jpg")

    (image,) = read_dataset(tmp_path, "train")
    assert image.captions == ("One", "Two")
    (image,) = read_dataset(tmp_path, "dev")
    assert image.captions == (cat,)


@pytest.mark.parametrize(
    ("key", "name"), [("file", "in/a.jpg"), ("image", "C:\\data\\in\\a.jpg")]
)
def test_names_of_the_column_of_files(tmp_path, key, name):
    photograph(tmp_path / "in", "a.jpg")
    rows = [{key: name, "text": "A dog"}, {key: name, "text": None}]
    write(tmp_path / "metadata.jsonl", entries(*rows))

    (image,) = read_dataset(tmp_path, "train")
    assert (image.path, image.image_id) == (tmp_path / "in" / "a.jpg", "a")


def test_images_of_one_name_have_numbers_of_their_own(tmp_path):
    photograph(tmp_path, "a/1.png", "b/1.png", "b/2.png", "a/3.png")
    rows = "a/1.png,A,train\nb/1.png,A,train\nb/2.png,A,train\na/3.png,A,dev\n"
    table(tmp_path, rows, SPLIT)

    image_ids = [image.image_id for image in read_dataset(tmp_path, "train")]
    assert image_ids == ["a/1.png", "b/1.png", "2"]


def test_official_keeps_the_order_of_the_split_file(tmp_path):
    official(tmp_path)
    folder = tmp_path / "Flicker8k_Dataset"
    assert read_dataset(tmp_path, "train") == [
        CaptionedImage(folder / "c.jpg", ("A cat .",), "c"),
        CaptionedImage(folder / "a.jpg", ("A dog runs .", "A dog , running"), "a"),
    ]
    assert names_of(read_dataset(str(tmp_path), "test")) == ["d.jpg"]


@pytest.mark.parametrize(
    "folder", ["flickr30k-images", "Flickr8k_Dataset/Flicker8k_Dataset", "."]
)
def test_official_finds_the_images(tmp_path, folder):
    official(tmp_path, photographs=folder)
    assert read_dataset(tmp_path, "dev")[0].path == tmp_path / folder / "b.jpg"


def test_official_ignores_lemmas_and_hidden_files(tmp_path):
    official(tmp_path)
    write(tmp_path / "Flickr8k.lemma.token.txt", "b.jpg#0\tzwei Hund .\n")
    write(tmp_path / "._Flickr8k.token.txt", b"\x00\xff")
    assert read_dataset(tmp_path, "dev")[0].captions == ("Zwei Hünde .",)


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


FLICKR30K = """image_name| comment_number| comment
a.jpg| 0| Two dogs , one | black .
a.jpg| 1| A "dog" .
b.jpg| 0   A dog runs across the grass .

"""


def test_flickr30k_of_kaggle_is_read(tmp_path):
    folder = tmp_path / "flickr30k_images"
    write(folder / "results.csv", FLICKR30K)
    photograph(folder / "flickr30k_images", "a.jpg", "b.jpg", *map(str, range(9)))
    write(tmp_path / "trainImages.txt", "b.jpg\na.jpg\n")

    second, first = read_dataset(tmp_path, "train")
    assert first.captions == ("Two dogs , one | black .", 'A "dog" .')
    assert second.captions == ("A dog runs across the grass .",)

    write(folder / "results.csv", FLICKR30K + "c.jpg, 0, A dog .\n")
    expected = "line 6: expected image_name| number| comment, but found 'c.jpg, 0"
    fails(tmp_path, f"results.csv, {expected}")


def test_results_of_other_programs_are_no_data_set(tmp_path):
    write(tmp_path / "results.csv", "epoch,loss\n1,0.5\n")
    table(tmp_path, "a.jpg,A .\n")
    photograph(tmp_path, "a.jpg")
    assert names_of(read_dataset(tmp_path, "train")) == ["a.jpg"]


def test_captions_of_kaggle_may_have_line_breaks_in_quotes(tmp_path):
    names = [f"{number}.jpg" for number in range(20)]
    kaggle(tmp_path, "".join(f'{name},"A dog\nruns, fast."\n' for name in names))

    assert read_dataset(tmp_path, "train")[0].captions == ("A dog\nruns, fast.",)


def test_two_files_for_one_purpose_are_refused(tmp_path):
    official(tmp_path)
    write(tmp_path / "results_20130124.token")
    files = "Flickr8k.token.txt, results_20130124.token"
    fails(tmp_path, f"expected one file *.token.txt or *.token, but found {files}")


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
    captions = ("A dog , wet , runs .", 'A "stop" sign .', "A cat .")
    captions = ('A sign , it says "stop" .', *captions)
    image = CaptionedImage(tmp_path / "Images/a.jpg", captions, "a")
    assert read_dataset(tmp_path, "train") == [image]


def test_kaggle_uses_split_files_where_there_are_some(tmp_path):
    kaggle(tmp_path, "a.jpg,A .\nb.jpg,B .\nc.jpg,C .\n")
    write(tmp_path / "Flickr_8k.trainImages.txt", "c.jpg\na.jpg\n")
    write(tmp_path / "Flickr_8k.testImages.txt", "b.jpg\n")
    assert names_of(read_dataset(tmp_path, "train")) == ["c.jpg", "a.jpg"]
    assert names_of(read_dataset(tmp_path, "test")) == ["b.jpg"]
    fails(tmp_path, "expected images of the split dev, but found ", split="dev")


def test_images_stay_in_the_shards_of_webdataset(tmp_path):
    shard(
        tmp_path / "train-0.tar",
        a__png=encode(noise(4, 3)),
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


def test_masks_beside_a_photograph_are_not_its_image(tmp_path):
    files = {"a__pgm": b"mask", "a__jpg": b"x", "a__ppm": b"mask", "a__txt": b"A dog"}
    shard(tmp_path / "train-0.tar", **files)
    [image] = read_dataset(tmp_path, "train")
    assert image.path.name == "a.jpg"

    shard(tmp_path / "train-0.tar", **files, a__png=b"y")
    fails(tmp_path, "one image, but found a.jpg, a.pgm, a.png, a.ppm, a.")


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
    fails(tmp_path, message)


IMAGES = [karpathy_image("a.jpg", "train", "A .", imgid=number) for number in range(2)]
A = IMAGES[0]
ROW = {"file_name": "a.jpg", "text": "A"}
# For each file, its contents, and a part of the error.
NOT_UTF8 = ", line 2: expected UTF-8, but found the byte 0xe9"
BROKEN = {
    "dataset.json": [
        (b'{\n"images": ["Caf\xe9\n\n', NOT_UTF8),
        ("{\n", ": expected JSON, but found a mistake"),
        ([], "an object with the key 'images', but found []"),
        ({"images": 3}, "a list as 'images', but found 3"),
        ({"images": [A, {}]}, "images[1]: expected the key 'filename', but"),
        ({"images": [A | {"split": "x"}]}, "expected split one of dev, restval, te"),
        ({"images": [A | {"imgid": None}]}, "an integer or a string as 'imgid'"),
        ({"images": IMAGES}, "images[1]: expected one entry for every image"),
    ],
    "captions_train.json": [
        ({"annotations": []}, "expected the key 'images', but"),
        (coco_content([3, 3], [3]), "but found 3 of train/0.jpg and of"),
        (coco_content([1], [True]), "as 'image_id', but found True"),
    ],
    "x.token.txt": [
        (b"\xef\xbb\xbfa.jpg#0\tA .\nb.jpg#0\tCaf\xe9\n\n", NOT_UTF8),
        ("a.jpg#0\tA .\nb.jpg#0 A .\n", ", line 2: expected name#number<TAB>c"),
    ],
    "captions.txt": [
        (b"image,caption\na.jpg,Caf\xe9\n\n", NOT_UTF8),
        ("file;text\na.jpg;A .\n", "line 1: expected the header image,capt"),
        ("image,caption\na.jpg,A .\n\nb.jpg\n", "line 4: expected image,caption"),
        ('image,caption\na.jpg,"Stop .\nb.jpg,B .\n', "line 2: expected image,c"),
        ('image,caption\na.jpg,"' + "long" * 40_000, "expected CSV, but found a "),
        ("image,caption\n", "captions with a word for the split train"),
    ],
    "metadata.csv": [
        ('file_name,"cap\ntion"\na.jpg,A\n', r"but found only cap\ntion, file_name"),
        ("name,caption\na.jpg,A\n", "line 2: expected the key 'file_name'"),
        (f"{SPLIT}\na.jpg,A,mine\n", "expected split one of"),
        (f"{SPLIT}\na.jpg,A,train\na.jpg,B,dev\n", "found a.jpg in train and in dev"),
        (f"{SPLIT}\na.jpg,A,train\nb.jpg,B,\n", "every image, but found none of b"),
        ('file_name,caption\na.jpg,"A\ndog"\nb.jpg\n', "line 4: expected 2 cells, b"),
    ],
    "metadata.jsonl": [
        ('{"file_name": "a.jpg"', "line 1: expected JSON"),
        ({"file_name": "a.jpg", "text": [3]}, "a string or a list of strings"),
        ({**ROW, "boxes": {"dog": [0, 0, 7, 7]}}, "line 1: expected boxes by words"),
    ],
    "train/metadata.jsonl": [
        ({**ROW, "split": "test"}, "split of the folder, train, but found t"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [(name, *case) for name, cases in BROKEN.items() for case in cases],
)
def test_broken_files_are_named(tmp_path, name, content, message):
    write(tmp_path / name, content)
    fails(tmp_path, message)


# The second header begins after 1,024 bytes, and its checksum 148 bytes later.
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda x: x[:1172] + b"????" + x[1176:], id="checksum"),
        pytest.param(lambda x: x[:1624], id="end"),
        pytest.param(lambda x: b"This is a text, not a short one. " * 20, id="text"),
    ],
)
def test_a_damaged_shard_is_named(tmp_path, damage):
    path = tmp_path / "0.tar"
    shard(path, a__jpg=b"x", a__txt=b"A dog", b__jpg=b"x", b__txt=b"A cow")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"0\.tar: expected an uncompressed tar"):
        read_dataset(tmp_path, "train")


@pytest.mark.parametrize("kind", ["coco", "karpathy", "metadata"])
def test_a_caption_that_is_null_is_counted_as_an_empty_one(tmp_path, capsys, kind):
    if kind == "coco":
        content = coco_content([1], [1, 1])
        content["annotations"][1]["caption"] = None
        write(tmp_path / "captions_train.json", content)
        photograph(tmp_path, "0.jpg")
    elif kind == "karpathy":
        karpathy(tmp_path, karpathy_image("a.jpg", "train", "A .", None))
    else:
        rows = [{"file_name": f"{x}.jpg", "captions": [x, None]} for x in "abc"]
        write(tmp_path / "train/metadata.jsonl", entries(rows[0]))
        write(tmp_path / "dev/metadata.jsonl", entries(*rows[1:]))
        photograph(tmp_path, "train/a.jpg", "dev/b.jpg", "dev/c.jpg")

    (warning,) = warned(tmp_path, capsys)
    assert warning.endswith("captions without a word are left out: 1, the first is ''")


def test_boxes_of_a_word_come_from_all_rows_and_shards(tmp_path):
    boxes = [[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]]
    rows = [{"file_name": "a.jpg", "caption": "A", "boxes": {"dog": x}} for x in boxes]
    write(tmp_path / "rows/train/metadata.jsonl", entries(*rows, rows[0]))
    photograph(tmp_path / "rows/train", "a.jpg")
    rows[0]["boxes"]["dog"] = boxes
    files = {"a__jpg": b"x", "a__json": json.dumps(rows[0]).encode()}
    shard(tmp_path / "shards/train-0.tar", **files)

    for folder in ("rows", "shards"):
        (image,) = read_dataset(tmp_path / folder, "train")
        assert image.boxes == {"dog": tuple(map(tuple, boxes))}


def test_names_of_boxes_are_spelt_as_in_captions():
    upper, left = (0, 0, 1, 0.5), (0, 0, 0.5, 1)
    boxes = {
        "Ma\u0308dchen": upper,
        "m\u00e4dchen": left,
        "Red  ball": upper,
        "\u6905": left,
    }
    checked = {"m\u00e4dchen": (upper, left), "red ball": (upper,), "\u6905": (left,)}
    assert check_boxes(boxes) == checked


@pytest.mark.parametrize(
    "box",
    [
        [0, 0, 1],
        [1, 0, 0, 1],
        [0, 0, 2, 1],
        [0, 0, 1, float("nan")],
        [0, 0, 1, 10**400],
        "dog",
    ],
)
def test_a_wrong_box_is_refused(box):
    with pytest.raises(ValueError):
        check_boxes({"dog": box})
