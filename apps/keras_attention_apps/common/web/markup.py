"""Fragments of HTML: words that can be chosen, tables, images and errors.

All texts are escaped here, so callers pass them unescaped.
"""

import base64
import html
import uuid
from pathlib import Path

STYLE_SHEET = Path(__file__).with_name("page.css")
# The colours of Gradio's theme for a notebook, from its text; no script copies texts.
_NOTEBOOK_STYLE = """
.ka-notebook {
  --body-text-color: currentColor;
  --body-text-color-subdued: color-mix(in srgb, currentColor 65%, transparent);
  --border-color-primary: color-mix(in srgb, currentColor 25%, transparent);
  --background-fill-primary: transparent;
}
.ka-notebook .ka-button { display: none; }
"""
# Weights below this are invisible, and left out.
MIN_WEIGHT = 0.02


def alert(error):
    """Return an error as a sentence, which screen readers read at once."""
    return f'<p class="ka-alert" role="alert">{html.escape(str(error))}</p>'


def note(text):
    return f'<p class="ka-note">{html.escape(text)}</p>'


def unsure_note(output):
    """Return a remark if the model is unsure of an output, and else an empty string."""
    if not output.unsure:
        return ""
    return note(f"Unsure: {output.reason}.")


def placeholder(text):
    """Return a box that says what will appear in its place."""
    return f'<p class="ka-placeholder">{html.escape(text)}</p>'


def headline(text, *, kind):
    """Return a result with a button that copies it; screen readers announce it.

    `kind` is a noun for what the result is, such as `"Caption"`.
    """
    text = html.escape(text)
    return (
        f'<div class="ka-headline"><p class="ka-text" dir="auto" '
        f'data-announce="{kind}: {text}">{text}</p>'
        f'<button type="button" class="ka-button" data-copy="{text}">Copy</button>'
        "</div>"
    )


def words(
    texts, layers, *, group, label, notes=None, shares=None, kinds=None, chosen=0
):
    """Return words as radio buttons, each with a layer over its figure.

    A click or the arrow keys choose a word. The style sheet shows the layer of the
    chosen word; no script is needed. `kinds` are a class of each word, or empty.
    """
    labels = []
    for i, (text, layer) in enumerate(zip(texts, layers, strict=True)):
        below = f"<small>{html.escape(notes[i])}</small>" if notes else ""
        style = f' style="--share:{shares[i]:.3f}"' if shares else ""
        style += f' class="{kinds[i]}"' if kinds and kinds[i] else ""
        checked = " checked" if i == chosen else ""
        labels.append(
            f'<label{style}><input type="radio" name="{html.escape(group)}" '
            f'value="{i}"{checked}><span dir="auto">{html.escape(text)}{below}</span>'
            f"{layer}</label>"
        )
    return (
        f'<div class="ka-words" role="radiogroup" aria-label="{html.escape(label)}">'
        f"{''.join(labels)}</div>"
    )


def table(headers, rows, *, label):
    """Return a table whose rows are lists of texts; numbers are right-aligned."""
    columns = [[row[i] for row in rows] for i in range(len(headers))]
    head = "".join(map(_header, headers, columns))
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="ka-scroll"><table class="ka-table"><caption>{html.escape(label)}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def n_best_table(kind, outputs):
    """Return the outputs for one input, best first, as a table."""
    rows = [[str(rank), x.text, x.score] for rank, x in enumerate(outputs, start=1)]
    return table(["rank", kind, "score"], rows, label=f"Best {kind}s")


def _header(text, column):
    has_numbers = any(isinstance(value, float) for value in column)
    kind = ' class="ka-number"' if has_numbers else ""
    return f'<th scope="col"{kind}>{html.escape(text)}</th>'


def _cell(value):
    if isinstance(value, float):
        return f'<td class="ka-number">{value:.3f}</td>'
    return f'<td dir="auto">{html.escape(str(value))}</td>'


def notebook_output(figure, *arguments):
    """Return a figure of the page as the output of a notebook, with its style.

    Args:
        figure: Function that returns the HTML; its last argument, `number`, is one that
            no other output has, so that words of several outputs are chosen separately.
        *arguments: Its other arguments.
    """
    content = figure(*arguments, uuid.uuid4().hex)
    # The style has no effect on the rest of the notebook.
    style = f"{STYLE_SHEET.read_text(encoding='utf-8')}{_NOTEBOOK_STYLE}"
    return (
        f"<div><style>@scope {{{style}}}</style>"
        f'<div class="gradio-container ka-notebook">{content}</div></div>'
    )


def data_uri(content, media_type):
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
