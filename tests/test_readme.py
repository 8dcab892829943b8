"""The examples for the library in the documentation run, one after the other."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

# One of them learns: what comes of it depends on the numbers that are drawn.
pytestmark = pytest.mark.usefixtures("seeded")

ROOT = Path(__file__).parents[1]


def run(path):
    """Run all examples of a page and return its variables."""
    text = (ROOT / path).read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names = {"__name__": "page", "examples": len(examples)}
    for example in examples:
        if "import tensorflow" in example and keras.backend.backend() != "tensorflow":
            continue
        exec(compile(example, path, "exec"), names)
    return names


def test_examples_of_the_readme_run():
    names = run("README.md")

    assert tuple(names["logits"].shape) == (8, 12, 1000)
    assert tuple(names["found"]["weights"].shape) == (8, 5, 30, 20)


def test_recipes_of_the_page_on_layers_run():
    names = run("docs/layers.md")

    assert names["examples"] >= 5
    assert tuple(names["context"].shape) == (2, 64)
    assert tuple(names["model"](np.zeros((2, 7), "int32")).shape) == (2, 7, 64)


@pytest.mark.exhaustive
def test_examples_of_the_page_on_decoders_run():
    names = run("docs/decoders.md")

    def best(found):
        return keras.ops.convert_to_numpy(found["token_ids"])[:, 0]

    assert best(names["found"]).shape == (2, 8)
    digits = names["digits"][:200]
    found = best(names["translate"](digits))
    ends = np.full((200, 1), names["end"])
    written = found[:, :6] == np.concatenate([digits[:, ::-1], ends], axis=1)
    # Rounding differs between machines, and training makes more of it.
    assert np.mean(np.all(written, axis=1)) > 0.9
    if keras.backend.backend() == "tensorflow":
        assert best(names["again"]).tolist() == found[:7].tolist()
