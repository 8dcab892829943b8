"""The examples for the library in the documentation run, one after the other."""

import re
from pathlib import Path

import keras
import pytest

# One of them learns: what comes of it depends on the numbers that are drawn.
pytestmark = pytest.mark.usefixtures("seeded")

ROOT = Path(__file__).parents[1]


def run(path, until="no such line"):
    """What the names of a page mean after all its examples have run."""
    text = (ROOT / path).read_text(encoding="utf-8").split(f"\n{until}\n")[0]
    examples = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names = {"__name__": "page", "examples": len(examples)}
    for example in examples:
        if "import tensorflow" in example and keras.backend.backend() != "tensorflow":
            continue
        exec(compile(example, path, "exec"), names)
    return names


def test_examples_of_the_readme_run():
    names = run("README.md", until="## captioner")

    assert names["examples"] >= 7
    assert tuple(names["logits"].shape) == (8, 12, 1000)
    assert tuple(names["found"]["weights"].shape) == (8, 5, 30, 20)
    assert tuple(names["context"].shape) == (2, 64)


def test_examples_of_the_page_on_decoders_run():
    names = run("docs/decoders.md")

    found, digits = names["found"], names["digits"]
    best = keras.ops.convert_to_numpy(found["token_ids"])[:, 0]
    assert best[:, :5].tolist() == digits[:2, ::-1].tolist()
    assert best[:, 5].tolist() == [names["end"]] * 2
    if keras.backend.backend() == "tensorflow":
        again = names["again"]["token_ids"].numpy()
        assert again[:, 0, :5].tolist() == digits[:7, ::-1].tolist()
