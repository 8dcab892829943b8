import gc
import io
import itertools
import weakref

import numpy as np
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
    table,
    write,
)
from keras_attention_apps.captioner.data import dataset as data
from keras_attention_apps.captioner.data.dataset import read_dataset, readable
from keras_attention_apps.captioner.data.files import DataError
from keras_attention_apps.captioner.data.layouts import CaptionedImage
from keras_attention_apps.captioner.images import ImageError, read_image
from PIL import Image

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


def test_preference_among_layouts(tmp_path):
    kaggle(tmp_path, "a.jpg,Kaggle\n")
    options = {"validation_share": 0}
    assert read_dataset(tmp_path, "train", **options)[0].captions == ("Kaggle",)

    official(tmp_path)
    assert read_dataset(tmp_path, "train")[1].captions[0] == "A dog runs ."

    coco(tmp_path)
    assert read_dataset(tmp_path, "train")[0].image_id == 3

    # Clients of Kaggle and of Hugging Face write such files; none is Karpathy's.
    for name in ("dataset-metadata", "dataset_info", "dataset_infos", "dataset_dict"):
        write(tmp_path / f"{name}.json", {})
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


@pytest.mark.parametrize("split", ["dev", "val", "valid", "validation"])
def test_dev_has_synonyms(tmp_path, split):
    official(tmp_path)
    (image,) = read_dataset(tmp_path, split)
    assert image.captions == ("Zwei Hünde .",)


def test_unknown_split(tmp_path):
    fails(
        tmp_path,
        "restval",
        with_message="split: expected one of dev, test, train, val, valid, validation, "
        "but found 'restval'",
    )


def test_a_split_without_any_caption_is_refused(tmp_path):
    official(tmp_path)
    write(tmp_path / "Flickr_8k.devImages.txt", "unknown.jpg\n")
    fails(
        tmp_path,
        "dev",
        with_message="captions with a word for the split dev, but found nothing",
    )


@pytest.mark.parametrize("share", [-0.1, 0.5, float("nan")])
def test_validation_share_leaves_training_images(tmp_path, share):
    fails(
        tmp_path,
        validation_share=share,
        with_message=f"validation_share: expected 0 or more, below 0.5, "
        f"but found {share}",
    )


def kaggle_splits(root, count, **options):
    kaggle(root, "".join(f"{index}.jpg,A {index} .\n" for index in range(count)))
    return {
        split: names_of(read_dataset(root, split, **options))
        for split in ("train", "dev", "test")
    }


def test_kaggle_splits_are_disjoint_complete_and_of_the_requested_size(tmp_path):
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


def test_kaggle_images_never_move_between_dev_and_test(tmp_path):
    small = kaggle_splits(tmp_path, 60, validation_share=0.2)
    large = kaggle_splits(tmp_path, 60, validation_share=0.4)
    assert set(small["dev"]) < set(large["dev"])
    assert set(small["test"]) < set(large["test"])


def test_hugging_face_without_splits_is_drawn_by_name(tmp_path):
    names = [f"{i}.jpg" for i in range(40)]
    table(tmp_path, "".join(f"{name},A dog\n" for name in names))
    photograph(tmp_path, *names)

    parts = [names_of(read_dataset(tmp_path, x)) for x in ("train", "dev", "test")]
    assert sorted(itertools.chain(*parts)) == sorted(names)
    assert all(parts)
    # The splits of the other images do not change when one is added.
    table(tmp_path, "".join(f"{name},A dog\n" for name in ["x.jpg", *names]))
    photograph(tmp_path, "x.jpg")
    assert set(parts[1]) <= set(names_of(read_dataset(tmp_path, "dev")))


def test_of_few_images_one_is_for_validation(tmp_path):
    for start in "abcdefgh":
        names = [f"{start}{i}.jpg" for i in range(7)]
        table(tmp_path / start, "".join(f"{name},A dog\n" for name in names))
        photograph(tmp_path / start, *names)

        train, dev = (
            names_of(read_dataset(tmp_path / start, x)) for x in ("train", "dev")
        )
        assert dev
        assert train
        assert not set(train) & set(dev)


def test_one_image_is_too_few_to_validate(tmp_path):
    table(tmp_path, "a.jpg,A dog\n")
    photograph(tmp_path, "a.jpg")

    assert names_of(read_dataset(tmp_path, "train")) == ["a.jpg"]
    message = "at least two images, of which one is for validation, but found 1"
    fails(tmp_path, "dev", with_message=message)


@pytest.mark.parametrize("count", [2, 3])
def test_of_two_or_three_images_one_is_for_training(tmp_path, count):
    for start in range(40):
        names = [f"{start}-{i}.jpg" for i in range(count)]
        table(tmp_path / str(start), "".join(f"{name},A dog\n" for name in names))
        photograph(tmp_path / str(start), *names)

        assert read_dataset(tmp_path / str(start), "train")
        assert read_dataset(tmp_path / str(start), "dev")


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


def lose(root, *names):
    for name in names:
        (root / "images" / name).unlink()


def four_images(root):
    names = [f"{index}.jpg" for index in range(4)]
    karpathy(root, *(karpathy_image(name, "train", "A .") for name in names))


def test_up_to_half_of_the_images_may_be_missing(tmp_path, capsys):
    four_images(tmp_path)
    lose(tmp_path, "1.jpg", "2.jpg")
    images = read_dataset(tmp_path, "train")
    assert names_of(images) == ["0.jpg", "3.jpg"]
    assert capsys.readouterr().err == (
        f"captioner: warning: {tmp_path}: 2 of 4 images of the split train are "
        "missing, the first is '1.jpg'; they are left out\n"
    )


def test_accents_may_be_written_in_either_way(tmp_path):
    composed, apart = "B\u00e4r.jpg", "Ba\u0308r.jpg"
    for written, there in ((composed, apart), (apart, composed)):
        folder = tmp_path / there
        karpathy(folder, karpathy_image(written, "train", "A bear ."))
        image = next(folder.rglob(written))
        image.rename(image.with_name(there))

        assert names_of(read_dataset(folder, "train")) == [there]


def test_a_name_that_no_file_can_have_is_missing(tmp_path, capsys):
    names = ["a" * 300, "\0", "b.jpg", "c.jpg"]
    write(
        tmp_path / "dataset.json",
        {"images": [karpathy_image(name, "train", "A .") for name in names]},
    )
    photograph(tmp_path, *names[2:])

    assert names_of(read_dataset(tmp_path, "train")) == names[2:]
    assert "2 of 4 images of the split train are m" in capsys.readouterr().err


@pytest.mark.parametrize("count", [3, 4])
def test_more_than_half_may_not_be_missing(tmp_path, count):
    four_images(tmp_path)
    lose(tmp_path, *(f"{index}.jpg" for index in range(count)))
    fails(
        tmp_path,
        with_message=f"{count} of 4 images of the split train are missing, the "
        f"first is '0.jpg'; looked in {tmp_path}, {tmp_path / 'images'}",
    )


def test_images_of_other_splits_do_not_count_as_missing(tmp_path):
    official(tmp_path)
    (tmp_path / "Flicker8k_Dataset/b.jpg").unlink()
    assert len(read_dataset(tmp_path, "train")) == 2


def broken_and_whole(folder):
    """Three photographs, one of which is truncated."""
    picture = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype("uint8")
    Image.fromarray(noise).save(picture, "JPEG")
    images = []
    for name in "abc":
        data = picture.getvalue()
        write(folder / f"{name}.jpg", data[: len(data) // 2] if name == "b" else data)
        images.append(CaptionedImage(folder / f"{name}.jpg", ("A",), name))
    return images


def test_broken_images_are_named_and_left_out(tmp_path, capsys):
    images = broken_and_whole(tmp_path)

    assert readable(images, 0.4) == [images[0], images[2]]
    error = capsys.readouterr().err
    assert error.count("warning") == 1
    assert "b.jpg" in error and "it is left out" in error


def test_broken_images_do_not_stay_in_memory(tmp_path, monkeypatch):
    images, errors, alive = broken_and_whole(tmp_path), [], []

    def read(path, draft):
        try:
            return read_image(path, draft=draft)
        except ImageError as error:
            errors.append(weakref.ref(error))
            raise

    def tell(*texts, file):
        gc.collect()
        alive.append([error() is not None for error in errors])

    monkeypatch.setattr(data, "read_image", read)
    monkeypatch.setattr(data, "print", tell, raising=False)
    readable(images, 0.4)

    assert alive == [[False]]


def test_too_many_broken_images_are_an_error(tmp_path):
    message = "1 of 3 images cannot be read; at most 30.00% may be left out"
    with pytest.raises(DataError, match=message):
        readable(broken_and_whole(tmp_path), 0.3)


def test_not_all_images_may_be_left_out(tmp_path):
    _, broken, _ = broken_and_whole(tmp_path)
    with pytest.raises(DataError, match=r"1 of 1 images .*, and never all"):
        readable([broken], 1)


def test_captions_without_a_word_are_left_out(tmp_path):
    kaggle(tmp_path, "a.jpg,...\na.jpg, A dog!\nb.jpg,!!!\nc.jpg,😀\n")
    (image,) = read_dataset(tmp_path, "train", validation_share=0)

    assert image.captions == ("A dog!",)
    kaggle(tmp_path, "a.jpg,...\na.jpg,!!!\nb.jpg,!!!\n")
    message = "captions with a word for the split train, but found '!!!', '...'"
    fails(tmp_path, with_message=message, validation_share=0)
