"""Captions of large collections: the callable, its inputs and its output."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from attention_testing.arrays import assert_close
from keras_attention_apps.captioner import CaptionBatch
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main

SCORES = ("score", "log_probability", "mean_log_probability")


@pytest.fixture(scope="module")
def photographs(squares):
    return sorted(map(str, (squares / "Images").iterdir()))[:5]


@pytest.fixture(scope="module")
def expected(model_folder, photographs):
    """The captions of one process, by path."""
    captioner = Captioner.from_preset(model_folder)
    return {
        path: captions[0].details()
        for path, captions in captioner.caption_each(photographs)
    }


@pytest.fixture(scope="module")
def caption_batch(model_folder):
    return CaptionBatch(str(model_folder), column="photo", maps=True, runtime="keras")


def check(expected, row):
    """Check a row of the result against a caption of one process."""
    assert row["error"] is None
    assert row["caption"] == expected["caption"]
    assert list(row["words"]) == expected["words"]
    assert_close(row["probabilities"], expected["probabilities"], 2e-4)
    for name in SCORES:
        assert row[name] == pytest.approx(expected[name], abs=2e-4)


def rows(columns):
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]


def contents(paths):
    return np.array([Path(path).read_bytes() for path in paths], object)


def test_bytes_and_paths_have_the_captions_of_one_process(
    caption_batch, photographs, expected
):
    by_path = rows(caption_batch({"photo": np.array(photographs)}))
    by_bytes = rows(caption_batch({"photo": contents(photographs), "id": photographs}))

    for path, row, other in zip(photographs, by_path, by_bytes, strict=True):
        check(expected[path], row)
        check(expected[path], other)
        assert_close(row["attention"], expected[path]["attention"], 2e-4)


def test_bytes_are_left_out_and_other_columns_are_kept(caption_batch, photographs):
    columns = caption_batch({"photo": contents(photographs), "id": [3, 1, 4, 1, 5]})

    assert columns["id"] == [3, 1, 4, 1, 5]
    assert "photo" not in columns
    assert list(caption_batch({"photo": photographs})["photo"]) == photographs


def test_unreadable_image_is_a_row_with_its_error(
    caption_batch, photographs, expected, tmp_path
):
    values = np.array([photographs[0], str(tmp_path / "no.jpg"), b"broken", None], "O")
    inputs = {"id": [1, 2, 3, 4], "photo": values}
    first, missing, broken, nothing = rows(caption_batch(inputs))

    check(expected[photographs[0]], first)
    assert "no.jpg" in missing["error"]
    assert "b'broken'" in broken["error"]
    assert "NoneType" in nothing["error"]
    for row in (missing, broken, nothing):
        assert row["caption"] is None
        assert row["words"] == []
        assert math.isnan(row["score"])


@pytest.mark.exhaustive
def test_files_are_read_with_pyarrow(model_folder, photographs, expected, tmp_path):
    fs = pytest.importorskip("pyarrow.fs")
    options = {"runtime": "keras", "filesystem": fs.LocalFileSystem()}
    batch = CaptionBatch(str(model_folder), column="photo", **options)
    missing = str(tmp_path / "no.jpg")
    paths = [photographs[0], missing, f"file://{photographs[1]}"]
    actual = rows(batch({"photo": paths}))

    check(expected[photographs[0]], actual[0])
    assert f"Cannot read {missing!r}" in actual[1]["error"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "ray"], "needs --output"),
        (["--engine", "ray", "--overlay", "x"], "--overlay cannot be used"),
        (["--engine", "ray", "--n-best", "2"], "--n-best cannot be used"),
        (["--engine", "ray", "--json"], "--json cannot be used"),
        (["--actors", "2"], "--actors needs --engine ray. Received: 2"),
        (["--maps"], "--maps needs --engine ray"),
    ],
)
def test_contradictory_options_are_errors(options, message, photographs, capsys):
    assert main(["caption", photographs[0], *options]) == 2
    assert message in capsys.readouterr().err


def test_missing_ray_is_an_error(monkeypatch, photographs, tmp_path, capsys):
    for name in ("ray", "ray.data", "pyarrow.fs"):
        monkeypatch.setitem(sys.modules, name, None)
    output = ["--output", str(tmp_path / "out.parquet")]

    assert main(["caption", photographs[0], *output, "--engine", "ray"]) == 2
    assert 'pip install . "./apps[ray]"' in capsys.readouterr().err
