import numpy as np
from PIL import Image

from keras_attention_apps.captioner.data.batches import (
    WHOLE,
    TrainingBatches,
    load_images,
    random_views,
    viewed,
)
from keras_attention_apps.captioner.metrics import coverage
from keras_attention_apps.common.tokenizer import END, PAD, START


def batches(**changes):
    captions = [[[START, 4, END]] * (1 + n % 3) for n in range(11)]
    captions[7] = [[START, *range(4, 9), END]]
    options = {
        "features": [np.arange(11.0)[:, None, None]],
        "views": [[WHOLE] * 11],
        "batch_images": 3,
        "captions_per_image": 2,
        "seed": 5,
        **changes,
    }
    return TrainingBatches(captions, **options)


def batch_of_files(paths, **options):
    """One batch of images of 64 x 64, each with a caption of two words."""
    options = {"batch_images": len(paths), "captions_per_image": 1, "seed": 0} | options
    captions = [[[START, 4, 5, END]]] * len(paths)
    return TrainingBatches(captions, paths=paths, image_size=64, **options)


def rows_of(data, *names):
    """Yield the entries of each image of an epoch."""
    for i in range(len(data)):
        yield from zip(*(data[i][0][name] for name in names), strict=True)


def photographs_of(data):
    return [int(features.item()) for (features,) in rows_of(data, "features")]


def test_every_image_occurs_once_per_epoch():
    assert sorted(photographs_of(batches())) == list(range(11))


def test_the_order_depends_on_seed_and_epoch_alone():
    data = batches()
    first = photographs_of(data)
    data.on_epoch_end()
    second = photographs_of(data)

    assert first != second
    assert photographs_of(batches()) == first
    assert photographs_of(batches(epoch=1)) == second
    assert photographs_of(batches(seed=6)) != first


def test_missing_captions_are_padding_and_long_ones_share_a_batch():
    data = batches()
    for index in range(len(data)):
        batch = data[index][0]
        token_ids = batch["captions"]
        for photograph, texts in zip(batch["features"].ravel(), token_ids, strict=True):
            real = (texts[:, 0] == START).sum()
            assert real == min(2, 1 if photograph == 7 else 1 + int(photograph) % 3)
            assert (texts[real:] == PAD).all()
        if index:
            assert token_ids.shape[2] == (7 if 7 in batch["features"] else 3)


def test_the_first_two_batches_never_share_a_length():
    # Keras would assume that length for all batches.
    for seed in range(9):
        data = batches(seed=seed)
        first, second, *_ = (data[i][0]["captions"].shape[2] for i in range(len(data)))
        assert first > 7 >= second


def test_images_are_cropped_a_little_at_random(tmp_path):
    # The brightness is the position, so the corners of a crop show its position.
    width, height = 100, 50
    down, across = np.mgrid[:height, :width]
    picture = np.stack([across, down, across], axis=-1).astype("uint8")
    Image.fromarray(picture).save(tmp_path / "ramp.png")

    views = random_views(40, np.random.default_rng(1))
    views = [(box, False) for box, _ in views]
    images = load_images([tmp_path / "ramp.png"] * 40, 50, views)

    assert images.shape == (40, 50, 50, 3)
    ranges = [np.ptp(images[..., 0], (1, 2)), np.ptp(images[..., 1], (1, 2))]
    for shares in (ranges[0] / width, ranges[1] / height):
        assert shares.min() >= 0.76
        assert shares.max() > 0.9
        assert np.ptp(shares) > 0.1
    # Crops remove parts on both sides.
    assert images[..., 0].min(axis=(1, 2)).max() > 5
    assert images[..., 0].max(axis=(1, 2)).min() < 94


def test_every_epoch_draws_a_view_of_each_image():
    left = (0.0, 0.0, 0.5, 1.0)
    views = [[((0, 0, 1, 1), mirrored)] * 11 for mirrored in (False, True)]
    data = batches(
        features=[np.full((11, 2, 1), view) for view in (0, 1)],
        views=views,
        boxes=[{4: [left]}] * 11,
        grid=(1, 2),
    )
    epochs = []
    for _ in range(4):
        drawn = []
        for features, regions in rows_of(data, "features", "coverage"):
            view = int(features[0, 0])
            assert regions[0, 0].tolist() == [1 - view, view]
            drawn.append(view)
        assert set(drawn) == {0, 1}
        epochs.append(tuple(drawn))
        data.on_epoch_end()
    assert len(set(epochs)) == 4


def test_boxes_move_with_the_image(tmp_path):
    # The object is white: its regions are the bright ones in every view.
    picture = np.zeros((64, 64, 3), "uint8")
    picture[8:40, 36:60] = 255
    Image.fromarray(picture).save(tmp_path / "white.png")
    box = (36 / 64, 8 / 64, 60 / 64, 40 / 64)
    files = [tmp_path / "white.png"] * 2
    data = batch_of_files(files, boxes=[{5: [box]}] * 2, grid=(4, 8))
    mirrored = set()
    for _ in range(6):
        for image, regions in rows_of(data, "images", "coverage"):
            bright = image[..., 0].reshape(4, 16, 8, 8).mean(axis=(1, 3)) / 255
            np.testing.assert_allclose(regions[0, 1].reshape(4, 8), bright, atol=0.1)
            assert not regions[0, [0, 2]].any()
            mirrored.add(bool(bright[:, :3].max() > 0.5))
        data.on_epoch_end()
    assert mirrored == {True, False}


def test_images_are_unchanged_without_augmentation(squares):
    paths = sorted((squares / "Images").glob("*-0.png"))
    data = batch_of_files(paths, augment=False)
    actual = sorted(image.tobytes() for image in data[0][0]["images"])
    expected = sorted(np.array(Image.open(path)).tobytes() for path in paths)
    assert actual == expected


def test_coverage_by_hand():
    # Two rows and four columns; the box covers the right half and a quarter more.
    covered = coverage([(0.375, 0.5, 1.0, 1.0)], 2, 4).reshape(2, 4)

    np.testing.assert_allclose(covered, [[0, 0, 0, 0], [0, 0.5, 1, 1]])
    two = coverage([(0, 0, 0.125, 0.5), (0, 0, 0.25, 0.25)], 2, 4).reshape(2, 4)
    np.testing.assert_allclose(two[0], [0.5, 0, 0, 0])


def test_a_view_moves_boxes():
    boxes = [(0.2, 0.5, 0.4, 1.0), (0.9, 0.0, 1.0, 0.1)]
    view = (0.2, 0.0, 0.7, 1.0)

    (visible,) = viewed(boxes, (view, False))
    np.testing.assert_allclose(visible, (0, 0.5, 0.4, 1))
    (visible,) = viewed(boxes, (view, True))
    np.testing.assert_allclose(visible, (0.6, 0.5, 1, 1))
