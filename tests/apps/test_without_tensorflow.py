"""Programs of the page on LiteRT where neither TensorFlow nor Keras is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attention_testing.repository import ROOT, blocks, read

pytest.importorskip("ai_edge_litert")
PAGE = read("docs/litert.md")

# What `pip install --no-deps .` and the packages of the page bring.
INSTALLED = (
    *("ai_edge_litert", "backports", "flatbuffers", "google", "keras_attention"),
    *("keras_attention_apps", "ml_dtypes", "numpy", "numpy.libs", "PIL", "pillow.libs"),
    *("sentencepiece", "tqdm", "typing_extensions.py"),
)


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """A folder of packages without TensorFlow and Keras, for `PYTHONPATH`."""
    folder = tmp_path_factory.mktemp("site")
    for name in INSTALLED:
        origin = place_of(name)
        if origin:
            (folder / name).symlink_to(origin)
    return folder


def place_of(name):
    """Return where a package lies, or a file or a folder beside the packages."""
    spec = None if "." in name else importlib.util.find_spec(name)
    if spec is None:
        beside = Path(importlib.util.find_spec("numpy").origin).parents[1] / name
        return beside if beside.exists() else None
    return next(iter(spec.submodule_search_locations))


def run(installation, program, folder):
    # `-S`: without the packages that are installed in this Python.
    return subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "PYTHONPATH": str(installation)},
        capture_output=True,
        cwd=folder,
        text=True,
    )


def test_tensorflow_is_not_there(installation, tmp_path):
    for name in ("tensorflow", "keras"):
        done = run(installation, f"import {name}", tmp_path)
        assert f"No module named '{name}'" in done.stderr


@pytest.mark.parametrize("heading", ["In Python", "Without this package"])
def test_the_page_runs(installation, tmp_path, heading):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    presets = ROOT / "apps" / "keras_attention_apps" / "captioner" / "presets"
    (tmp_path / "my.tflite").symlink_to(presets / "flickr8k-coco-ensemble/model.tflite")
    (program,) = blocks(PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0])
    print_text = "\nprint(caption if isinstance(caption, list) else caption.text)"
    done = run(installation, program + print_text, tmp_path)
    assert done.returncode == 0, done.stderr
    if heading == "Without this package":
        assert done.stdout.startswith("a man ")
    else:
        assert done.stdout == "a man that is holding a camera\n"


def test_rest_servers_import_neither():
    code = (
        "import sys; from keras_attention_apps.captioner import serve; "
        "from keras_attention_apps.nmt import serve; "
        "print({'gradio', 'keras', 'tensorflow'}.intersection(sys.modules))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert finished.stdout == "set()\n"
