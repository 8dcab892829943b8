import io
import json

import pytest
from captioner.datasets import fails, shard, write
from keras_attention_apps.captioner.data.dataset import read_dataset
from keras_attention_apps.captioner.images import ImageError, read_image
from keras_attention_apps.common.cli import UserError
from PIL import Image

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


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
