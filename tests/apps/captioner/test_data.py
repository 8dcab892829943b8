import gc
import itertools
import weakref

import pytest

from attention_testing.captioner.datasets import (
    coco,
    coco_content,
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
from attention_testing.captioner.image_files import encode, noise
from keras_attention_apps.captioner.data import dataset as data
from keras_attention_apps.captioner.data.dataset import (
    CaptionedImage,
    read_dataset,
    readable,
)
from keras_attention_apps.captioner.images import ImageError, read_image
from keras_attention_apps.common.errors import UserError

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


def test_preference_among_layouts(tmp_path):
    kaggle(tmp_path, "a.jpg,Kaggle\n")
    assert read_dataset(tmp_path, "train")[0].captions == ("Kaggle",)

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


def test_unknown_layout_lists_what_is_expected_and_what_is_there(tmp_path):
    photograph(tmp_path, *(f"{index}.jpg" for index in range(8)))
    with pytest.raises(UserError) as caught:
        read_dataset(tmp_path, "train")
    for expected in ("Karpathy", "COCO", "official Flickr8k", "Kaggle"):
        assert expected in str(caught.value)
    assert str(caught.value).endswith(
        "but found 0.jpg, 1.jpg, 2.jpg, 3.jpg, 4.jpg, 5.jpg and 2 more"
    )


def test_directory_has_to_be_one(tmp_path):
    photograph(tmp_path, "file")
    fails(tmp_path / "none", "/none: expected a directory, but found nothing")
    fails(tmp_path / "file", "expected a directory, but found a file")


def test_unknown_split(tmp_path):
    splits = "dev, test, train, val, valid, validation"
    message = f"split: expected one of {splits}, but found 'restval'"
    fails(tmp_path, message, split="restval")


def captioned(root, *names):
    """Write images without splits, each with a caption."""
    table(root, "".join(f"{name},A dog\n" for name in names))
    photograph(root, *names)


def drawn(root, names, splits=("train", "dev")):
    """Write images without splits, and return the names that are drawn for each."""
    captioned(root, *names)
    return [names_of(read_dataset(root, x)) for x in splits]


def test_images_without_splits_are_drawn_by_name(tmp_path):
    names = [f"{i}.jpg" for i in range(400)]
    small = drawn(tmp_path / "a", names[:60], ("train", "dev", "test"))
    more = drawn(tmp_path / "b", names, ("train", "dev", "test"))
    assert sorted(itertools.chain(*more)) == sorted(names)
    # The mean is 40 of 400, one standard deviation is 6.
    assert all(20 < len(names) < 60 for names in more[1:])
    assert more[1] == sorted(more[1], key=lambda name: int(name[:-4]))
    # Splits stay when images are added.
    for names, more_names in zip(small, more, strict=True):
        assert names and {*names} <= {*more_names}


def test_one_image_is_too_few_to_validate(tmp_path):
    assert drawn(tmp_path, ["a.jpg"], ["train"]) == [["a.jpg"]]
    message = "at least two images, of which one is for validation, but found 1"
    fails(tmp_path, message, split="dev")


@pytest.mark.parametrize("count", [2, 3, 7])
def test_of_a_few_images_one_is_for_training_and_one_for_validation(tmp_path, count):
    for start in range(20):
        names = [f"{start}-{i}.jpg" for i in range(count)]
        train, dev = drawn(tmp_path / str(start), names)
        assert train and dev and not {*train} & {*dev}


@pytest.mark.parametrize("layout", ["metadata", "coco"])
def test_dev_is_drawn_from_train_where_only_it_is_missing(tmp_path, layout):
    names = [f"{i}.jpg" for i in range(40)]
    if layout == "metadata":
        captioned(tmp_path / "train", *names)
        captioned(tmp_path / "test", "a.jpg")
    else:
        photograph(tmp_path / "train", *names)
        write(tmp_path / "captions_train.json", coco_content(range(40), range(40)))

    train, dev = (names_of(read_dataset(tmp_path, x)) for x in ("train", "dev"))
    assert sorted(train + dev) == sorted(names)
    assert 0 < len(dev) < 12
    if layout == "metadata":
        assert names_of(read_dataset(tmp_path, "test")) == ["a.jpg"]
    else:
        fails(tmp_path, "expected images of the split test, but", split="test")


@pytest.mark.parametrize("missing", [2, 3, 4])
def test_up_to_half_of_the_images_may_be_missing(tmp_path, capsys, missing):
    names = [f"{index}.jpg" for index in range(4)]
    karpathy(tmp_path, *(karpathy_image(name, "train", "A .") for name in names))
    for name in names[:missing]:
        (tmp_path / "images" / name).unlink()
    message = (
        f"{tmp_path}: {missing} of 4 images of the split train are missing, the first "
        "is '0.jpg'; "
    )
    if missing > 2:
        looked = f"looked in {tmp_path}, {tmp_path / 'images'}"
        fails(tmp_path, f"{message}{looked}")
    else:
        assert names_of(read_dataset(tmp_path, "train")) == names[2:]
        warning = f"captioner: warning: {message}they are left out\n"
        assert capsys.readouterr().err == warning


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
    images = [karpathy_image(name, "train", "A .") for name in names]
    write(tmp_path / "dataset.json", {"images": images})
    photograph(tmp_path, *names[2:])

    assert names_of(read_dataset(tmp_path, "train")) == names[2:]
    assert "2 of 4 images of the split train are m" in capsys.readouterr().err


def broken_and_whole(folder):
    """Three photographs, one of which is truncated."""
    data = encode(noise(64, 64), "JPEG")
    for name in "abc":
        write(folder / f"{name}.jpg", data[: len(data) // 2] if name == "b" else data)
    return [CaptionedImage(folder / f"{name}.jpg", ("A",), name) for name in "abc"]


def test_broken_images_are_named_and_left_out(tmp_path, capsys):
    images = broken_and_whole(tmp_path)

    assert readable(images, 0.4) == [images[0], images[2]]
    error = capsys.readouterr().err
    assert error.count("warning") == 1
    assert "b.jpg" in error and "it is left out" in error
    message = "1 of 3 images cannot be read; at most 30.00% may be left out"
    with pytest.raises(UserError, match=message):
        readable(images, 0.3)
    with pytest.raises(UserError, match=r"1 of 1 images .*, and never all"):
        readable(images[1:2], 1)


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


def test_captions_without_a_word_are_left_out(tmp_path):
    # By the hashes of their names, b.jpg is in train, and a.jpg in dev.
    kaggle(tmp_path, "b.jpg,...\nb.jpg, A dog!\na.jpg,!!!\nc.jpg,😀\n")
    (image,) = read_dataset(tmp_path, "train")

    assert image.captions == ("A dog!",)
    kaggle(tmp_path, "b.jpg,...\nb.jpg,!!!\na.jpg,!!!\n")
    message = "captions with a word for the split train, but found '!!!', '...'"
    fails(tmp_path, message)
