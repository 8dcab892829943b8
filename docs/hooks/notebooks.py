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
        formula = _space_functions(convert(match["block"], display="block"))
        return f'\n\n<div class="formula">{formula}</div>\n\n'
    # Markdown must neither read emphasis into a formula nor take it for a block.
    formula = _space_functions(convert(match["inline"]))
    formula = formula.replace("*", "&#42;").replace("_", "&#95;")
    return f"<span>{formula}</span>"


def _space_functions(mathml):
    """Separate the name of a function from an argument without parentheses."""
    name = r"(<mi>(?:exp|log|max|min|tanh)</mi>)(?!<mo)"
    return re.sub(name, r'\1<mspace width="0.17em"></mspace>', mathml)


def _output(output):
    data = output.get("data", {})
    if "image/png" in data:
        image = "".join(data["image/png"]).replace("\n", "")
        source = f"data:image/png;base64,{image}"
        return f'<img alt="The figure that this cell draws" src="{source}">'
    if "text/html" in data:
        return "".join(data["text/html"])
    text = output.get("text", data.get("text/plain", output.get("traceback", "")))
    return f"````{{ .text .output }}\n{''.join(text).rstrip()}\n````"
