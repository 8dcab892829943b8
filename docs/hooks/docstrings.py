"""Docstrings of this project, as Markdown: an extension of Griffe.

A section is a line such as `Args:`. What is indented below it is text, or entries such
as `units: Positive integer.`, which become a list of definitions.
"""

import inspect
import re
import textwrap

import griffe

TITLES = {"Args": "Arguments"}
SECTION = re.compile(
    r"^(Args|Attributes|Call arguments|Examples?|Raises|References?|Returns|Yields):$"
)
# One name, or several: `kernel_initializer, kernel_regularizer: For both.`
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): (?=\S)")


def as_markdown(docstring):
    """Return a docstring as Markdown."""
    lines = inspect.cleandoc(docstring).splitlines()
    text, i = [], 0
    while i < len(lines):
        line = lines[i]
        section = SECTION.match(line)
        if section:
            name = section[1]
            text += [f"**{TITLES.get(name, name)}**", ""]
            body, i = _indented(lines, i + 1)
            text += _entries(textwrap.dedent("\n".join(body)).splitlines(), name)
        elif line.startswith(">>> "):
            end = next((j for j in range(i, len(lines)) if not lines[j]), len(lines))
            text += ["```pycon", *lines[i:end], "```"]
            i = end
        else:
            text.append(line)
            i += 1
    return "\n".join(text)


def _indented(lines, start):
    """Return the indented lines from `start` on, and the number of the next line."""
    end = start
    while end < len(lines) and (not lines[end] or lines[end].startswith(" ")):
        end += 1
    return lines[start:end], end


def _entries(lines, section):
    """Return the body of a section; each entry becomes a definition."""
    text = []
    is_list = bool(lines) and ENTRY.match(lines[0])
    for i, line in enumerate(lines):
        entry = ENTRY.match(line) if is_list else None
        if entry:
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            text += ["", names, f":   {line[entry.end() :]}"]
        elif is_list:
            text.append(line)
        elif section == "Returns" and line.startswith('`"') and i:
            # Entries of a dict: `"scores"` `(B, K)`, the sum;
            starts = {":": ["", f"- {line}"], ";": [f"- {line}"]}
            text += starts.get(lines[i - 1][-1:], [line])
        else:
            text.append(line)
    return [*text, ""]


class Docstrings(griffe.Extension):
    """Turns docstrings into Markdown when Griffe has read them."""

    def on_instance(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg, **kwargs):
        if pkg.name == "keras_attention":
            _show_options(pkg)
            _show_function(pkg)


def _show_options(pkg):
    """Give `beam_search` the parameters of the class that it passes its options to."""
    _, *options = pkg["search.beam.Beam.__init__"].parameters
    pkg["search.beam.beam_search"].parameters = griffe.Parameters(*options)


def _show_function(pkg):
    """Let the name `linear_crossentropy` mean the function, not its module."""
    name = "linear_crossentropy"
    function = pkg[f"losses.{name}.{name}"]
    pkg.set_member(name, griffe.Alias(name, function, parent=pkg))
