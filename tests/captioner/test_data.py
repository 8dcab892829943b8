import io
import itertools
import json
import re
import tarfile
import warnings

import numpy as np
import pytest
from keras_attention_apps.captioner.data import read_dataset, readable
from keras_attention_apps.captioner.images import ImageError, read_image
from keras_attention_apps.captioner.layouts import CaptionedImage, DataError
from keras_attention_apps.common.cli import UserError
from PIL import Image


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def write(path, content=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8", newline="")
    else:
        path.write_text(json.dumps(content), encoding="utf-8")


def photograph(folder, *names):
    for name in names:
        write(folder / name)


def names_of(images):
    return [image.path.name for image in images]


def fails(directory, split="train", *, with_message, **options):
    """Reading must end in one line that contains the given text."""
    with pytest.raises(DataError, match=re.escape(with_message)) as caught:
        read_dataset(directory, split, **options)
    assert "\n" not in str(caught.value)


def official(root, *, texts=None, photographs="Flicker8k_Dataset"):
    texts = texts or root
    write(
        texts / "Flickr8k.token.txt",
        "a.jpg#0\tA dog runs .\na.jpg#1\t A dog , running \n"
        "b.jpg#0\tZwei Hünde .\nc.jpg#0\tA cat .\nd.jpg#0\tA cow .\n",
    )
    write(texts / "Flickr_8k.trainImages.txt", "c.jpg\na.jpg\n")
    write(texts / "Flickr_8k.devImages.txt", "b.jpg\n")
    write(texts / "Flickr_8k.testImages.txt", "d.jpg\n")
    photograph(root / photographs, "a.jpg", "b.jpg", "c.jpg", "d.jpg")


def kaggle(root, rows, *, photographs="Images"):
    write(root / "captions.txt", "image,caption\n" + rows)
    names = [row.split(",")[0] for row in rows.splitlines() if row]
    photograph(root / photographs, *names)


def karpathy_image(name, split, *captions, **fields):
    sentences = [{"raw": caption} for caption in captions]
    return {"filename": name, "split": split, "sentences": sentences, **fields}


def karpathy(root, *images, name="dataset_flickr8k.json", photographs="images"):
    write(root / name, {"images": list(images)})
    photograph(root / photographs, *(image["filename"] for image in images))


def coco(root, *, texts=None, year=2017):
    texts = texts or root
    for split, first in (("train", 3), ("val", 5)):
        images = [
            {"id": first, "file_name": f"{first:012}.jpg"},
            {"id": 1, "file_name": "000000000001.jpg"},
        ]
        captions = [(1, "A bus."), (first, " A tram. "), (first, "Trams.\n")]
        annotations = [
            {"image_id": image_id, "caption": caption} for image_id, caption in captions
        ]
        write(
            texts / f"captions_{split}{year}.json",
            {"images": images, "annotations": annotations},
        )
        photograph(root / f"{split}{year}", *(image["file_name"] for image in images))


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


@pytest.mark.parametrize("split", ["dev", "val", "valid", "validation"])
def test_dev_has_synonyms(tmp_path, split):
    official(tmp_path)
    (image,) = read_dataset(tmp_path, split)
    assert image.captions == ("Zwei Hünde .",)


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
def test_official_finds_the_photographs(tmp_path, folder):
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


def test_split_file_tolerates_what_editors_leave_behind(tmp_path):
    official(tmp_path)
    write(
        tmp_path / "Flickr_8k.trainImages.txt",
        b"\xef\xbb\xbfa.jpg  \r\n\r\n c.jpg\r\na.jpg\r\n\n",
    )
    assert names_of(read_dataset(tmp_path, "train")) == ["a.jpg", "c.jpg"]


def test_token_file_tolerates_what_editors_leave_behind(tmp_path):
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


def test_a_split_without_any_caption_is_refused(tmp_path):
    official(tmp_path)
    write(tmp_path / "Flickr_8k.devImages.txt", "unknown.jpg\n")
    fails(
        tmp_path,
        "dev",
        with_message="expected captions for the split dev, but found none",
    )


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


def test_kaggle_tolerates_bom_crlf_and_lower_case_folder(tmp_path):
    photograph(tmp_path / "images", "a.jpg")
    write(tmp_path / "captions.txt", b"\xef\xbb\xbfImage, Caption\r\na.jpg,One .\r\n")
    (image,) = read_dataset(tmp_path, "train", validation_share=0)
    assert image.captions == ("One .",)


def test_kaggle_leaves_out_the_known_bad_name(tmp_path):
    kaggle(tmp_path, "a.jpg,A .\n")
    with open(tmp_path / "captions.txt", "a") as file:
        file.write("2258277193_586949ec62.jpg.1,People waiting .\n")
    with pytest.warns(UserWarning, match=r"'2258277193_586949ec62\.jpg\.1'"):
        images = read_dataset(tmp_path, "train", validation_share=0)
    assert names_of(images) == ["a.jpg"]


def kaggle_splits(root, count, **options):
    kaggle(root, "".join(f"{index}.jpg,A {index} .\n" for index in range(count)))
    return {
        split: names_of(read_dataset(root, split, **options))
        for split in ("train", "dev", "test")
    }


def test_kaggle_splits_are_disjoint_complete_and_of_the_size_asked_for(tmp_path):
    splits = kaggle_splits(tmp_path, 400, validation_share=0.2)
    everything = sorted(splits["train"] + splits["dev"] + splits["test"])
    assert everything == sorted(f"{index}.jpg" for index in range(400))
    # The mean is 80 of 400, one standard deviation is 8.
    assert 50 < len(splits["dev"]) < 110
    assert 50 < len(splits["test"]) < 110
    assert splits["dev"] == sorted(splits["dev"], key=lambda name: int(name[:-4]))


def test_kaggle_splits_stay_when_images_are_added(tmp_path):
    before = kaggle_splits(tmp_path / "before", 60, validation_share=0.2)
    after = kaggle_splits(tmp_path / "after", 90, validation_share=0.2)
    for split, names in before.items():
        assert names
        assert set(names) <= set(after[split])


def test_kaggle_never_trades_between_dev_and_test(tmp_path):
    small = kaggle_splits(tmp_path, 60, validation_share=0.2)
    large = kaggle_splits(tmp_path, 60, validation_share=0.4)
    assert set(small["dev"]) < set(large["dev"])
    assert set(small["test"]) < set(large["test"])


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
            "line 1: expected the header image,caption, but found 'file;text'",
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
    fails(tmp_path, with_message="expected captions for the split train")


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
def test_karpathy_finds_the_photographs(tmp_path, folder):
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
        "but found none",
    )


A = karpathy_image("a.jpg", "train", "A .")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{\n", ": expected JSON, but found a mistake (Expecting property name"),
        ([], ": expected an object with the key 'images', but found []"),
        ({"info": 1}, ": expected the key 'images', but found only info"),
        ({"images": 3}, ": expected list as 'images', but found 3"),
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
            ": images[0]: expected str as 'filepath', but found 5",
        ),
        (
            {"images": [A | {"cocoid": None}]},
            ": images[0]: expected int | str as 'cocoid', but found None",
        ),
    ],
)
def test_karpathy_names_what_is_broken(tmp_path, content, message):
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
    # A name that both folders have is looked for in the folder of its split.
    assert [image.path.parent.name for image in images] == [f"val{year}"] * 2


def test_coco_finds_the_photographs_in_one_folder(tmp_path):
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


def test_coco_without_a_test_file_says_so(tmp_path):
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
            {"images": [], "annotations": [{"image_id": [3], "caption": "A."}]},
            ": annotations[0]: expected int | str as 'image_id', but found [3]",
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
def test_coco_names_what_is_broken(tmp_path, content, message):
    write(tmp_path / "captions_train2017.json", content)
    fails(tmp_path, with_message=f"captions_train2017.json{message}")


def test_preference_among_layouts(tmp_path):
    kaggle(tmp_path, "a.jpg,Kaggle\n")
    options = {"validation_share": 0}
    assert read_dataset(tmp_path, "train", **options)[0].captions == ("Kaggle",)

    official(tmp_path)
    assert read_dataset(tmp_path, "train")[1].captions[0] == "A dog runs ."

    coco(tmp_path)
    assert read_dataset(tmp_path, "train")[0].image_id == 3

    # Kaggle's client leaves this file; it is no Karpathy data set.
    write(tmp_path / "dataset-metadata.json", {})
    assert read_dataset(tmp_path, "train")[0].image_id == 3

    karpathy(tmp_path, karpathy_image("a.jpg", "train", "Karpathy", imgid=7))
    assert read_dataset(tmp_path, "train")[0].captions == ("Karpathy",)


def test_own_texts_come_before_those_of_the_parent(tmp_path):
    karpathy(tmp_path, karpathy_image("a.jpg", "train", "Karpathy"))
    kaggle(tmp_path / "images", "a.jpg,Kaggle\n", photographs=".")
    (image,) = read_dataset(tmp_path / "images", "train", validation_share=0)
    assert image.captions == ("Kaggle",)


def test_unknown_layout_lists_what_is_expected_and_what_is_there(tmp_path):
    photograph(tmp_path, *(f"{index}.jpg" for index in range(8)))
    with pytest.raises(DataError) as caught:
        read_dataset(tmp_path, "train")
    for expected in ("Karpathy", "COCO", "official Flickr8k", "Kaggle"):
        assert expected in str(caught.value)
    assert str(caught.value).endswith(
        "but found 0.jpg, 1.jpg, 2.jpg, 3.jpg, 4.jpg, 5.jpg and 2 more"
    )


def test_empty_directory(tmp_path):
    fails(tmp_path, with_message="*.tar (WebDataset), but found nothing")


def test_directory_has_to_be_one(tmp_path):
    photograph(tmp_path, "file")
    fails(
        tmp_path / "none",
        with_message=f"{tmp_path / 'none'}: expected a directory, but found nothing",
    )
    fails(tmp_path / "file", with_message="expected a directory, but found a file")


def test_home_directory_may_be_abbreviated(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    official(tmp_path / "flickr8k")
    assert names_of(read_dataset("~/flickr8k", "dev")) == ["b.jpg"]


def test_unknown_split(tmp_path):
    fails(
        tmp_path,
        "restval",
        with_message="split: expected one of dev, test, train, val, valid, validation, "
        "but found 'restval'",
    )


@pytest.mark.parametrize("share", [-0.1, 0.5, float("nan")])
def test_validation_share_leaves_something_to_train_on(tmp_path, share):
    fails(
        tmp_path,
        validation_share=share,
        with_message=f"validation_share: expected 0 or more, below 0.5, "
        f"but found {share}",
    )


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("Flickr8k.token.txt", b"\xef\xbb\xbfa.jpg#0\tA .\nb.jpg#0\t"),
        ("captions.txt", b"image,caption\na.jpg,"),
        ("dataset_flickr8k.json", b'{\n"images": ["'),
        ("captions_train2017.json", b'{\n"images": ["'),
    ],
)
def test_text_has_to_be_utf8(tmp_path, name, before):
    write(tmp_path / name, before + "Café".encode("latin-1") + b"\n\n")
    fails(
        tmp_path,
        with_message=f"{name}, line 2: expected UTF-8, but found the byte 0xe9",
    )


def test_json_may_begin_with_a_byte_order_mark(tmp_path):
    image = karpathy_image("a.jpg", "train", "A .")
    karpathy(tmp_path, image)
    content = json.dumps({"images": [image]}).encode("utf-8-sig")
    write(tmp_path / "dataset_flickr8k.json", content)
    assert names_of(read_dataset(tmp_path, "train")) == ["a.jpg"]


def lose(root, *names):
    for name in names:
        (root / "images" / name).unlink()


def four_images(root):
    names = [f"{index}.jpg" for index in range(4)]
    karpathy(root, *(karpathy_image(name, "train", "A .") for name in names))


def test_up_to_half_of_the_photographs_may_be_missing(tmp_path):
    four_images(tmp_path)
    lose(tmp_path, "1.jpg", "2.jpg")
    message = (
        f"{tmp_path}: 2 of 4 photographs of the split train are missing, "
        "the first is '1.jpg'; they are left out"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$") as caught:
        images = read_dataset(tmp_path, "train")
    assert names_of(images) == ["0.jpg", "3.jpg"]
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("count", [3, 4])
def test_more_than_half_may_not_be_missing(tmp_path, count):
    four_images(tmp_path)
    lose(tmp_path, *(f"{index}.jpg" for index in range(count)))
    fails(
        tmp_path,
        with_message=f"{count} of 4 photographs of the split train are missing, the "
        f"first is '0.jpg'; looked in {tmp_path}, {tmp_path / 'images'}",
    )


def test_photographs_of_other_splits_do_not_count_as_missing(tmp_path):
    official(tmp_path)
    (tmp_path / "Flicker8k_Dataset/b.jpg").unlink()
    assert len(read_dataset(tmp_path, "train")) == 2


def table(folder, rows, header="file_name,caption"):
    write(folder / "metadata.csv", f"{header}\n{rows}")


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


def test_hugging_face_without_splits_is_drawn_by_name(tmp_path):
    names = [f"{i}.jpg" for i in range(40)]
    table(tmp_path, "".join(f"{name},A dog\n" for name in names))
    photograph(tmp_path, *names)

    parts = [names_of(read_dataset(tmp_path, x)) for x in ("train", "dev", "test")]
    assert sorted(itertools.chain(*parts)) == sorted(names)
    assert all(parts)
    # The others stay where they are when one comes.
    table(tmp_path, "".join(f"{name},A dog\n" for name in ["x.jpg", *names]))
    photograph(tmp_path, "x.jpg")
    assert set(parts[1]) <= set(names_of(read_dataset(tmp_path, "dev")))


def test_dev_is_drawn_from_train_where_only_it_is_missing(tmp_path):
    names = [f"{i}.jpg" for i in range(40)]
    table(tmp_path / "train", "".join(f"{name},A dog\n" for name in names))
    table(tmp_path / "test", "a.jpg,A dog\n")
    photograph(tmp_path / "train", *names)
    photograph(tmp_path / "test", "a.jpg")

    train, dev = (names_of(read_dataset(tmp_path, x)) for x in ("train", "dev"))
    assert sorted(train + dev) == sorted(names)
    assert 0 < len(dev) < 12
    assert names_of(read_dataset(tmp_path, "test")) == ["a.jpg"]


def test_dev_is_drawn_where_coco_has_none(tmp_path):
    images = [{"id": i, "file_name": f"{i}.jpg"} for i in range(40)]
    annotations = [{"image_id": i, "caption": "A bus"} for i in range(40)]
    content = {"images": images, "annotations": annotations}
    write(tmp_path / "captions_train.json", content)
    photograph(tmp_path / "train", *(image["file_name"] for image in images))

    train, dev = (names_of(read_dataset(tmp_path, x)) for x in ("train", "dev"))
    assert sorted(train + dev) == sorted(image["file_name"] for image in images)
    assert 0 < len(dev) < 12
    fails(tmp_path, "test", with_message="a file captions_*test*.json")


@pytest.mark.parametrize(
    "content, message",
    [
        ("file_name,label\na.jpg,3\n", "line 2: expected one of the keys"),
        ("file_name,caption\na.jpg\n", "line 2: expected 2 cells, but found 1"),
        ("name,caption\na.jpg,A\n", "line 2: expected the key 'file_name'"),
        ("file_name,caption,split\na.jpg,A,mine\n", "expected split one of"),
    ],
)
def test_broken_tables_are_named(tmp_path, content, message):
    write(tmp_path / "metadata.csv", content)
    fails(tmp_path, with_message=message)


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"file_name": "a.jpg"', "line 1: expected JSON"),
        ('{"file_name": "a.jpg", "captions": [3]}', "a text or a list of texts"),
        ('["a.jpg"]', "line 1: expected an object"),
    ],
)
def test_broken_json_lines_are_named(tmp_path, line, message):
    write(tmp_path / "metadata.jsonl", line)
    fails(tmp_path, with_message=message)


def shard(path, **files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_photographs_stay_in_the_shards_of_webdataset(tmp_path):
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


def test_shards_without_splits_are_drawn_by_name(tmp_path):
    for number in range(2):
        files = {}
        for i in range(20):
            files |= {f"{number}-{i}__jpg": b"x", f"{number}-{i}__txt": b"A dog"}
        shard(tmp_path / f"{number:03}.tar", **files)

    parts = [read_dataset(tmp_path, split) for split in ("train", "dev", "test")]
    assert sum(map(len, parts)) == 40
    assert all(parts)


@pytest.mark.parametrize(
    "files, message",
    [
        ({"a__jpg": b"x", "a__png": b"x", "a__txt": b"A"}, "a: expected one picture"),
        ({"a__txt": b"A dog"}, "a: expected one picture, but found a.txt"),
        ({"a__jpg": b"x", "a__json": b"{}"}, "a.json: expected one of the keys"),
        ({"a__jpg": b"x", "a__txt": b"\xff"}, "a.txt, line 1: expected UTF-8"),
    ],
)
def test_broken_shards_are_named(tmp_path, files, message):
    shard(tmp_path / "0.tar", **files)
    fails(tmp_path, with_message=message)


def test_a_shard_that_is_no_archive_is_named(tmp_path):
    write(tmp_path / "0.tar", "This is a text, and not a short one at that. " * 20)
    with pytest.raises(UserError, match=r"0\.tar: expected an uncompressed tar"):
        read_dataset(tmp_path, "train")


def broken_and_whole(folder):
    """Three photographs, one of which is cut off."""
    picture = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype("uint8")
    Image.fromarray(noise).save(picture, "JPEG")
    images = []
    for name in "abc":
        data = picture.getvalue()
        write(folder / f"{name}.jpg", data[: len(data) // 2] if name == "b" else data)
        images.append(CaptionedImage(folder / f"{name}.jpg", ("A",), name))
    return images


def test_broken_photographs_are_named_and_left_out(tmp_path, capsys):
    images = broken_and_whole(tmp_path)

    assert readable(images, 0.4) == [images[0], images[2]]
    error = capsys.readouterr().err
    assert error.count("warning") == 1
    assert "b.jpg" in error and "it is left out" in error


def test_too_many_broken_photographs_are_an_error(tmp_path):
    message = "1 of 3 photographs cannot be read, and at most 30.00% may"
    with pytest.raises(DataError, match=message):
        readable(broken_and_whole(tmp_path), 0.3)


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


def test_boxes_are_in_shards_too(tmp_path):
    entry = {"caption": "A dog", "boxes": {"dog": [0, 0, 1, 1]}}
    shard(tmp_path / "train-0.tar", a__jpg=b"x", a__json=json.dumps(entry).encode())

    (image,) = read_dataset(tmp_path, "train")
    assert image.boxes == {"dog": ((0, 0, 1, 1),)}
