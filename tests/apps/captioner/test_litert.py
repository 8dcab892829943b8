"""A captioner as a LiteRT file, beside the same one on Keras."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

from attention_testing.programs import (
    assert_same_results,
    check_types_of_outputs,
    error_of,
)
from keras_attention_apps.captioner import LiteCaptioner
from keras_attention_apps.captioner.commands.export import save_lite_captioner
from keras_attention_apps.captioner.images import ImageError
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.litert import read_model_file, write_model_file

from .conftest import TINY, untrained

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="conversion needs TensorFlow"
)

SEARCH = {"beam_size": 4, "length_penalty": 0.5, "no_repeat_ngrams": 2}
OPTIONS = ["--beam-size", "4", "--length-penalty", "0.5", "--no-repeat-ngrams", "2"]


@pytest.fixture(scope="module")
def exported(model_folder, tmp_path_factory):
    """The file of a tiny captioner with options of its own."""
    path = tmp_path_factory.mktemp("litert") / "tiny.tflite"
    model = ["--model", str(model_folder), "--quantize", "none"]
    assert main(["export", str(path), *model, *OPTIONS]) == 0
    return path


@pytest.fixture(scope="module")
def photographs(squares):
    return sorted((squares / "Images").iterdir())[:5]


def test_browsers_can_read_all_outputs(exported):
    check_types_of_outputs(exported)


@pytest.mark.parametrize("threads", [1, 3])
def test_captions_are_those_of_keras(
    cached_models, exported, model_folder, photographs, threads
):
    options = {"n_best": 4, **SEARCH}
    on_keras = Captioner.from_preset(model_folder)
    expected = dict(on_keras.caption_each(photographs, **options))
    lite = LiteCaptioner(exported, threads=threads)
    for images in (photographs, iter(photographs)):
        actual = dict(lite.caption_each(images, **options))
        assert list(actual) == photographs
        for path in photographs:
            assert_same_results(actual[path], expected[path])


@pytest.mark.exhaustive
def test_calibration_images_let_convolutions_compute_in_8_bits(
    cached_models, model_folder, photographs, squares, tmp_path
):
    paths = [tmp_path / "half.tflite", tmp_path / "integers.tflite"]
    for path, images in zip(paths, ([], [squares / "Images"]), strict=True):
        calibration = ["--calibration-images", *map(str, images)] if images else []
        model = ["--model", str(model_folder), *OPTIONS]
        assert main(["export", str(path), *model, *calibration]) == 0
    scores = [[x.score for x in LiteCaptioner(y).caption(photographs)] for y in paths]
    differences = np.abs(np.subtract(*scores))
    assert 0 < max(differences) < 0.05


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("saved", [], r"--calibration-images needs a LiteRT file"),
        ("half.tflite", ["--quantize", "float16"], "needs --quantize int8"),
        ("none.tflite", [], r"No image in .*empty"),
    ],
)
def test_calibration_images_that_cannot_be_used(
    model_folder, tmp_path, capsys, output, options, message
):
    (tmp_path / "empty").mkdir()
    images = ["--calibration-images", str(tmp_path / "empty")]
    model = ["--model", str(model_folder)]
    path = tmp_path / output
    assert main(["export", str(path), *model, *images, *options]) != 0
    assert re.search(message, capsys.readouterr().err)
    assert not path.exists()


KINDS = {
    "hard": {"attention": "hard"},
    "transformer": {"decoder": "transformer", "embedding_units": 6, "heads": 2},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [*KINDS, "ensemble"])
def test_every_kind_of_captioner_gives_the_same(kind, captioner, photographs, tmp_path):
    model = untrained(dataclasses.replace(TINY, **KINDS.get(kind, {"dropout": 0.1})))
    if kind == "ensemble":
        weights = captioner.network.backbone.get_weights()
        model.network.backbone.set_weights(weights)
        model = Captioner.ensemble([captioner, model])
    path = tmp_path / "kind.tflite"
    save_lite_captioner(model, path, search=SEARCH, quantize="none")
    lite = LiteCaptioner(path)
    for maps in ("weights", "probabilities"):
        expected = model.caption(photographs, maps=maps, **SEARCH)
        actual = lite.caption(photographs, maps=maps)
        assert_same_results(actual, expected)
        for caption in actual:
            if kind == "hard":
                assert (caption.weights.max() == 1.0) == (maps == "weights")


def test_an_image_that_cannot_be_read_does_not_stop_the_others(
    exported, photographs, tmp_path
):
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    lite = LiteCaptioner(exported, threads=2)
    captions = dict(lite.caption_each([photographs[0], text, photographs[1]]))
    assert isinstance(captions[text], ImageError)
    assert captions[photographs[1]][0].words
    with pytest.raises(ImageError, match=r"text\.jpg"):
        lite.caption(text)


def test_options_of_the_search_are_fixed(exported, photographs):
    lite = LiteCaptioner(exported)
    assert SEARCH.items() <= lite.search_options(beam_size=4).items()
    with pytest.raises(UserError, match=r"beam_size=4, which is fixed in the file"):
        lite.caption(photographs[0], beam_size=3)
    with pytest.raises(UserError, match=r"n_best must be between 1 and beam_size, 4"):
        list(lite.caption_each([], n_best=5))
    with pytest.raises(UserError, match="maps must be weights or probabilities"):
        lite.caption(photographs[0], maps="map")


# Runs in a process of its own, whose imported modules are checked.
RUN = """
import json, sys
from keras_attention_apps.captioner.main import main
code = main(sys.argv[1:])
print(json.dumps([code, [x for x in sys.modules if x in ("keras", "tensorflow")]]))
"""


def run(*arguments):
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *lines, last = done.stdout.splitlines()
    code, modules = json.loads(last)
    return code, modules, lines, done.stderr


def test_the_command_needs_no_keras(
    cached_models, exported, photographs, model_folder, tmp_path
):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    shutil.copy(exported, folder / "model.tflite")
    options = ["--overlay", tmp_path / "overlays", "--json", "--n-best", "2", *OPTIONS]
    code, modules, lines, _ = run("caption", *photographs, "--model", folder, *options)
    assert (code, modules) == (0, [])
    assert len(list((tmp_path / "overlays").iterdir())) == len(photographs)
    expected = Captioner.from_preset(model_folder)
    for path, line in zip(photographs, lines, strict=True):
        entry = json.loads(line)
        assert entry["image"] == str(path)
        best = expected.caption(path, **SEARCH)
        assert entry["captions"][0]["caption"] == best.text
        assert entry["captions"][0]["score"] == pytest.approx(best.score, abs=2e-4)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--image-size", "32"], "image_size is fixed in a LiteRT file"),
        (["--jit-compile"], "jit_compile needs Keras"),
        (["--runtime", "keras"], "needs --runtime litert"),
    ],
)
def test_options_that_contradict_the_file(
    exported, photographs, capsys, options, message
):
    command = ["caption", str(photographs[0]), "--model", str(exported), *options]
    assert message in error_of(main, command, capsys)


def test_an_evaluation_runs_the_file_of_a_model(
    without_java, exported, squares, model_folder, tmp_path, monkeypatch, capsys
):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    shutil.copy(exported, folder / "model.tflite")
    monkeypatch.setattr(Captioner, "from_preset", None)

    assert main(["evaluate", "--data", str(squares), "--model", str(folder)]) == 0
    assert "beam 4, length penalty 0.5" in capsys.readouterr().out


def test_scores_are_those_of_keras(
    eager, without_java, exported, squares, model_folder, capsys
):
    for model, more in ((exported, []), (model_folder, OPTIONS)):
        command = ["evaluate", "--data", str(squares), "--model", str(model), *more]
        assert main(command) == 0
    _, printed = capsys.readouterr().out.split(str(exported))
    lite, expected = printed.split(str(model_folder))
    assert lite == expected


def rewritten(exported, path, lost=None, files=(), **metadata):
    """Write the file with entries removed, or with other metadata or files."""
    contents, others = read_model_file(exported, "captioner")
    model = exported.read_bytes()[: contents["model_bytes"]]
    metadata, files = contents | metadata, others | dict(files)
    for entries in (metadata, files):
        entries.pop(lost, None)
    write_model_file(path, model, kind="captioner", metadata=metadata, files=files)
    return path


@pytest.mark.parametrize("lost", ["vocabulary.json", "grid", "search"])
def test_a_file_that_lacks_something(exported, tmp_path, lost):
    path = rewritten(exported, tmp_path / "incomplete.tflite", lost)
    with pytest.raises(UserError, match=f"not a complete captioner: .*{lost}"):
        LiteCaptioner(path)


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"grid": [5, 7]}, "cannot reshape"),
        ({"image_size": 17}, "reshape"),
        ({"files": {"vocabulary.json": b"[]"}}, "its vocabulary has no token"),
    ],
)
def test_metadata_that_do_not_fit_the_model(exported, tmp_path, changes, problem):
    path = rewritten(exported, tmp_path / "other.tflite", **changes)
    image = np.zeros((8, 8, 3), "uint8")
    with pytest.raises(UserError, match=f"not a complete captioner: .*{problem}"):
        LiteCaptioner(path).caption(image)
