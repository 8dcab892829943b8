"""The tutorials run, and their notebooks are those of the scripts."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import keras_attention

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(FOLDER.glob("[0-9]*.py"))
tutorials = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


@pytest.mark.exhaustive
@tutorials
def test_tutorial_runs(script, tmp_path):
    # In another folder, without the files beside it. The script asserts its claims.
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, check=True)

    assert not list(tmp_path.iterdir())


@tutorials
def test_tutorial_imports_public_names_only(script):
    imported = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and "keras_attention" in node.module:
            assert node.module == "keras_attention"
            imported.update(alias.name for alias in node.names)

    assert imported
    assert imported <= set(keras_attention.__all__)


@tutorials
def test_notebook_is_up_to_date(script):
    jupytext = pytest.importorskip("jupytext")
    notebook = script.with_suffix(".ipynb")

    def cells(path):
        return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]

    assert cells(notebook) == cells(script)
    assert notebook.stat().st_size < 300_000
    code = [x for x in json.loads(notebook.read_bytes())["cells"] if "outputs" in x]
    kinds = [output["output_type"] for cell in code for output in cell["outputs"]]
    assert "display_data" in kinds
    assert "error" not in kinds


def test_every_tutorial_is_in_the_list():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")

    assert SCRIPTS
    for script in SCRIPTS:
        assert f"[{script.stem}]({script.stem}.ipynb)" in text
        assert f"`{script.name}`" in text
