"""Translations as HTML: an alignment with lines, and a heat map."""

import html

import numpy as np

from keras_attention_apps.common.web import markup

# Name of the end of the sentence among the words that are attended to.
END_LABEL = "end"
# Width of the widest line in pixels.
MAX_WIDTH = 7
# Columns of an alignment in percent: source words, lines, target words.
LEFT, RIGHT = 40, 60


def alignment_figure(translation, title, number):
    """Return the words of both sentences, and lines of the attention between them."""
    if not translation.words:
        return markup.note("There is nothing to translate.")
    weights = np.column_stack([translation.weights, translation.end_weights])
    targets, sources = weights.shape
    rows = max(targets, sources)
    # Both sides are centred.
    first_source, first_target = (rows - sources) / 2, (rows - targets) / 2
    items = "".join(
        f'<li dir="auto"{_doubtful(i in translation.untranslated)}>'
        f"{html.escape(word)}</li>"
        for i, word in enumerate(translation.source_words)
    )
    layers = [
        _lines(row, first_source + 0.5, first_target + 0.5 + i, rows)
        for i, row in enumerate(weights)
    ]
    choices = markup.words(
        translation.words,
        layers,
        group=f"figure-{number}",
        label=f"Words of the translation by {title}: choose one to see where it looked",
        kinds=[
            "ka-doubtful" if i in translation.doubtful else "" for i in range(targets)
        ],
        chosen=int(np.argmax(translation.weights.max(axis=1))),
    )
    remark = "The sentence is too long and was cut."
    cut = markup.note(remark) if translation.cut else ""
    return (
        f'<figure class="ka-figure ka-alignment" style="--rows:{rows};'
        f'--source:{first_source};--target:{first_target}">'
        f"{markup.headline(translation.text, kind='Translation')}{cut}"
        f'{markup.unsure_note(translation)}<div class="ka-rows">'
        f'<ol aria-label="Source words">{items}<li class="ka-end">{END_LABEL}</li></ol>'
        f"{choices}</div><figcaption><b>{html.escape(title)}</b>: the wider a line, "
        "the more a word looked there</figcaption></figure>"
    )


def _doubtful(is_doubtful):
    """Return the attributes of a word, which is grey if it is doubtful."""
    title = "No word of the translation translates this one"
    return f' class="ka-doubtful" title="{title}"' if is_doubtful else ""


def _lines(row, first_source, target, rows):
    """Return the lines and bars from one target word to the source words."""
    shapes = []
    for i, weight in enumerate(row):
        if weight >= markup.MIN_WEIGHT:
            source, share = first_source + i, min(float(weight), 1.0)
            shapes.append(
                f'<rect x="{LEFT * (1 - share):.2f}" y="{source - 0.45:.2f}" '
                f'width="{LEFT * share:.2f}" height="0.9"/>'
                f'<line x1="{LEFT}" y1="{source:.2f}" x2="{RIGHT}" y2="{target:.2f}" '
                f'stroke-width="{MAX_WIDTH * share:.2f}"/>'
            )
    return (
        f'<svg viewBox="0 0 100 {rows}" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(shapes)}</svg>"
    )


def heat_map(translation):
    """Return the attention weights as a table of cells, darker for larger weights."""
    if not translation.words or not translation.weights.any():
        return ""
    head = "".join(
        f'<th scope="col"><span>{html.escape(word)}</span></th>'
        for word in translation.source_words
    )
    body = "".join(
        f'<tr><th scope="row">{html.escape(word)}</th>{"".join(map(_cell, row))}</tr>'
        for word, row in zip(translation.words, translation.weights, strict=True)
    )
    return (
        '<div class="ka-scroll"><table class="ka-heat" '
        f'style="--columns:{len(translation.source_words)}">'
        f"<caption>Attention weights</caption><thead><tr><td></td>{head}</tr>"
        f"</thead><tbody>{body}</tbody></table></div>"
    )


def _cell(weight):
    return (
        f'<td style="--share:{weight:.3f}" title="{weight:.2f}" '
        f'aria-label="{weight:.2f}"></td>'
    )
