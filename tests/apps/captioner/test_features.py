import errno
import os

import numpy as np
import pytest
from PIL import Image

from keras_attention_apps.captioner.data import batches
from keras_attention_apps.captioner.data.batches import _reserve, cached_features
from keras_attention_apps.captioner.images import ImageError, image_to_array, read_image
from keras_attention_apps.captioner.network.backbone import Backbone
from keras_attention_apps.common.network.decoder_network import computing_in

from .conftest import write_square


@pytest.fixture(scope="module")
def backbone():
    return Backbone("SmallCNN", 64)


@pytest.fixture
def paths(tmp_path):
    names = [tmp_path / f"{i}.png" for i in range(3)]
    for path, colour in zip(names, ("red", "green", "blue"), strict=True):
        write_square(path, colour, 8)
    return names


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_features_are_those_of_the_backbone_in_order(backbone, paths, cache):
    features = cached_features(backbone, paths, cache, name="train")

    images = np.stack([image_to_array(read_image(path), 64) for path in paths])
    expected = np.asarray(backbone(images))
    np.testing.assert_allclose(features, expected, rtol=1e-2, atol=1e-3)


def test_a_view_has_features_of_its_own(backbone, paths, cache):
    halves = np.zeros((64, 64, 3), "uint8")
    halves[:, :32] = 255
    Image.fromarray(halves).save(paths[1])
    whole = np.array(cached_features(backbone, paths, cache, name="train"))
    views = [((0, 0, 1, 1), mirrored) for mirrored in (False, True, False)]
    viewed = cached_features(backbone, paths, cache, name="train", views=views)

    np.testing.assert_array_equal(viewed[::2], whole[::2])
    expected = np.asarray(backbone(halves[None, :, ::-1]))
    np.testing.assert_allclose(viewed[1:2], expected, rtol=1e-2, atol=1e-3)
    assert np.abs(viewed[1] - whole[1]).max() > 1e-3


def test_the_second_time_nothing_is_computed(backbone, paths, cache, monkeypatch):
    first = cached_features(backbone, paths, cache, name="train")
    monkeypatch.setattr(batches, "read_array", lambda *arguments: 1 / 0)
    for name in ("train", "of-another-phase"):
        again = cached_features(backbone, paths, cache, name=name)
        np.testing.assert_array_equal(first, again)
    assert len(list(cache.iterdir())) == 1


def test_other_weights_and_another_order_are_noticed(backbone, paths, cache):
    cached_features(backbone, paths, cache, name="train")
    other = cached_features(Backbone("SmallCNN", 64), paths, cache, name="other")
    turned = cached_features(backbone, paths[::-1], cache, name="train")

    ours = cached_features(backbone, paths, cache, name="again")
    assert np.abs(np.array(other) - ours).max() > 1e-3
    np.testing.assert_array_equal(turned, ours[::-1])


def test_half_precision_has_features_of_its_own(backbone, paths, cache):
    exact = np.array(cached_features(backbone, paths, cache, name="train"))
    with computing_in("mixed_bfloat16"):
        half = Backbone("SmallCNN", 64)
    half.set_weights(backbone.get_weights())

    half_features = cached_features(half, paths, cache, name="half")
    assert np.abs(half_features - exact).max() > 0
    again = cached_features(backbone, paths, cache, name="train")
    np.testing.assert_array_equal(again, exact)


def test_an_interrupted_run_leaves_no_half_file(backbone, paths, cache):
    paths[2].write_text("no picture")
    with pytest.raises(ImageError):
        cached_features(backbone, paths, cache, name="train")
    assert list(cache.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs POSIX")
def test_a_full_disk_is_an_error_and_leaves_nothing(
    backbone, paths, cache, monkeypatch
):
    def refuse(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left"):
        cached_features(backbone, paths, cache, name="train")
    assert list(cache.iterdir()) == []


def test_disk_space_is_reserved_before_anything_is_computed(tmp_path):
    file = tmp_path / "holes"
    with open(file, "wb") as holes:
        holes.truncate(1 << 20)
    _reserve(file)
    assert file.stat().st_size == 1 << 20
    if hasattr(os, "posix_fallocate"):
        assert 512 * file.stat().st_blocks >= 1 << 20


def test_old_incomplete_files_are_removed(backbone, paths, cache):
    cache.mkdir()
    for name in ("old", "new"):
        (cache / f".part-1-{name}.npy").touch()
    os.utime(cache / ".part-1-old.npy", (0, 0))
    cached_features(backbone, paths, cache, name="train")

    hidden = [file.name for file in cache.iterdir() if file.name[0] == "."]
    assert hidden == [".part-1-new.npy"]


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "another shape": lambda file: np.save(file, np.zeros((2, 3), "float16")),
    "text": lambda file: file.write_text("no features " * 10),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_named_and_computed_again(
    backbone, paths, cache, capsys, damage
):
    before = np.array(cached_features(backbone, paths, cache, name="train"))
    (file,) = cache.iterdir()
    damage(file)
    capsys.readouterr()

    again = cached_features(backbone, paths, cache, name="of-another-phase")
    np.testing.assert_array_equal(again, before)
    message = f"Warning: {file} is damaged; its features are computed again\n"
    assert capsys.readouterr().err == message
    assert not file.exists() and len(list(cache.iterdir())) == 1
    cached_features(backbone, paths, cache, name="train")
    assert not capsys.readouterr().err
