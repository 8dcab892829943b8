"""Notebooks as Markdown, with the outputs that they contain."""

import json
import re

from latex2mathml.converter import convert

# Code stays as it is; formulas are `$...$` and `$$...$$`.
FORMULA = re.compile(
    r"(?P<code>(`+).+?\2)|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^\s$][^$]*?)\$",
    re.DOTALL,
)


def as_markdown(path):
    """Return the cells of a notebook as the text of a page."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(FORMULA.sub(_as_mathml, source))
        else:
            parts.append(f"````python\n{source}\n````")
            parts += [_output(output) for output in cell["outputs"]]
    return "\n\n".join(parts)


def _as_mathml(match):
    """Return a formula of TeX as MathML, which browsers draw without scripts."""
    if match["code"]:
        return match["code"]
    if match["block"]:
        return f"\n\n<div class='formula'>{convert(match['block'], display='block')}</div>\n\n"
    # Markdown must not read emphasis into a formula.
    return convert(match["inline"]).replace("*", "&#42;").replace("_", "&#95;")


def _output(output):
    data = output.get("data", {})
    if "image/png" in data:
        image = "".join(data["image/png"]).replace("\n", "")
        source = f"data:image/png;base64,{image}"
        return f'<img alt="The figure that this cell draws" src="{source}">'
    text = output.get("text", data.get("text/plain", output.get("traceback", "")))
    return f"````{{ .text .output }}\n{''.join(text).rstrip()}\n````"
