"""The examples for the library in the README run, one after the other."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_examples_run():
    text = README.read_text(encoding="utf-8").split("## captioner")[0]
    examples = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(examples) >= 7

    names = {"__name__": "readme"}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)

    assert tuple(names["logits"].shape) == (8, 12, 1000)
    assert tuple(names["found"]["weights"].shape) == (8, 5, 30, 20)
    assert tuple(names["context"].shape) == (2, 64)
