"""Files of the repository: its pages, the code in them, and its scripts."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(text, language="python"):
    """Return the blocks of code of a page in Markdown."""
    fences = re.findall(r"^```(\S*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [code for name, code in fences if name == language]


def module_of(path):
    """Import a script, which belongs to no package."""
    path = ROOT / path
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
