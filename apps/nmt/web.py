"""`nmt web`: the page of the translator, its components, events and models."""

import functools
import io
import os

import gradio as gr
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import utf8_lines
from keras_attention_apps.common.models import Models, name_of
from keras_attention_apps.common.web import markup
from keras_attention_apps.common.web.guard import MEGABYTE, read_upload
from keras_attention_apps.common.web.page import (
    LAYOUT,
    RESULTS,
    FileUpload,
    beam_options,
    endpoint,
    event,
    in_turn,
    page,
    revealed,
    search_options,
    serve,
    shown,
)
from keras_attention_apps.nmt import views
from keras_attention_apps.nmt.text import decode_line
from keras_attention_apps.nmt.translations import RUNTIMES

PENALTIES = (0.0, 0.5, 1.0)
# Characters of a sentence; the models cut what is longer than they can read.
MAX_CHARACTERS = 2000
# Maximum number of lines of a file in the second tab.
MAX_LINES = 500
# Lines between two updates of the table.
LINES_AT_ONCE = 10
EXAMPLES = (
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Two dogs are playing in the snow.",
    "A young woman with red hair reads a book on a bench in the park.",
)
HINT = "appears here, and every word shows which words of the sentence it looked at."


class TranslationPage(Models):
    """The translator, the `others` to compare it with, and the functions of the events.

    These take the values of components, and return updates of others.
    """

    def __init__(self, config):
        super().__init__(RUNTIMES, config)
        self.others = RUNTIMES.others(config.compare, config.model.name)

    def translations(self, sentence, search, *, n_best=1, other=None):
        """Return the best translations of a sentence, best first."""
        if len(sentence) > MAX_CHARACTERS:
            raise UserError(
                f"expected a sentence of at most {MAX_CHARACTERS} characters. "
                f"Received: {len(sentence)}"
            )
        with self.turns:
            model = self.load(search, other)
            n_best = min(n_best, model.search_options(**search)["beam_size"])
            (found,) = model.translate_each([sentence], n_best=n_best, **search)
        return found

    def show_translations(self, sentence, n_best, *options):
        search = search_options(*options)
        try:
            found = self.translations(sentence, search, n_best=n_best)
        except UserError as error:
            return markup.alert(error), shown(""), shown("")
        title = name_of(self.config.model.name)
        figure = views.alignment_figure(found[0], title, 0)
        table = markup.n_best_table("translation", found) if found[0].words else ""
        return figure, shown(table), shown(views.heat_map(found[0]))

    @revealed
    def show_others(self, sentence, compare, *options):
        if not compare or not sentence.strip():
            return ""
        found, search = [], search_options(*options)
        for number, other in enumerate(self.others, start=1):
            (best,) = self.translations(sentence, search, other=other)
            found.append(views.alignment_figure(best, name_of(other), number))
        return markup.figures(*found)

    def translate(self, sentence, n_best, beam_size, length_penalty):
        """Translate a sentence; the result is a list of translations, best first."""
        search = search_options(beam_size, length_penalty)
        found = self.translations(sentence, search, n_best=n_best)
        return [one.details() for one in found]

    def translate_file(self, path):
        """Yield the table of the lines of a file, which grows, and at last a link."""
        rows: list[list[str]] = []
        name = os.path.basename(path)
        try:
            content = read_upload(path, self.config.server.max_megabytes * MEGABYTE)
            for sentence in _sentences(content, name):
                (found,) = self.translations(sentence, {})
                number = str(len(rows) + 1)
                rows.append([number, sentence, found.text, markup.unsure_mark(found)])
                if len(rows) % LINES_AT_ONCE == 0:
                    yield gr.skip(), "", views.lines_table(rows)
        except UserError as error:
            yield None, "", markup.alert(error)
            return
        link = views.text_link([text for _, _, text, _ in rows])
        yield None, link, views.lines_table(rows)


def _sentences(content, name):
    """Return the lines of a text in a file of this name."""
    lines = list(utf8_lines(io.BytesIO(content), name))
    if len(lines) > MAX_LINES:
        raise UserError(f"expected at most {MAX_LINES} lines. Received: {len(lines)}")
    return [decode_line(line, name, i) for i, line in enumerate(lines, start=1)]


def serve_page(config):
    """Serve the page that a `WebConfig` describes."""
    serve("nmt", functools.partial(build, config), config.server)


def build(config):
    """Return the page as `gradio.Blocks`."""
    models = TranslationPage(config)
    description = "Translates a sentence, and shows which words every word came from."
    with page("nmt", description, models.purpose) as blocks:
        with gr.Tab("One sentence"):
            _one_sentence(models)
        with gr.Tab("A text file"):
            _text_file(models)
    return blocks


def _one_sentence(models):
    """Fill the tab for a sentence, and add an endpoint with the same options."""
    source, target = views.languages(models.purpose)
    examples = EXAMPLES if source in (None, "English") else ()
    with gr.Row(elem_classes=[LAYOUT, "ka-below"]):
        with gr.Column(min_width=280):
            sentence = gr.Textbox(
                label=f"Sentence in {source}" if source else "Sentence",
                info="Enter translates, Shift+Enter begins a new line.",
                # With more lines at first, Enter would begin a new line.
                lines=1,
                max_lines=10,
                max_length=MAX_CHARACTERS,
                placeholder=examples[0] if examples else None,
                submit_btn="Translate",
                elem_classes="ka-sentence",
            )
            buttons = [gr.Button(x, size="sm") for x in examples]
        with gr.Column(min_width=280):
            with gr.Row(elem_classes=RESULTS):
                where = f" into {target}" if target else ""
                result = gr.HTML(markup.placeholder(f"The translation{where} {HINT}"))
                others = gr.HTML(visible=False)
            with gr.Row(elem_classes=RESULTS):
                best = gr.HTML(visible=False)
                heat = gr.HTML(visible=False)
        with gr.Column(min_width=280):
            compare = gr.Checkbox(
                label="Show other kinds of attention, too",
                info=f"{' and '.join(map(name_of, models.others))}. Loading them "
                "takes some seconds the first time.",
                visible=bool(models.others),
            )
            with gr.Accordion("Options", open=False):
                label = "Translations in the list"
                n_best = gr.Slider(1, 5, value=3, step=1, precision=0, label=label)
                options = beam_options(models.defaults, PENALTIES)

    translating = event(
        models.show_translations, [sentence, n_best, *options], [result, best, heat]
    )
    comparing = event(models.show_others, [sentence, compare, *options], others)
    for text, example in zip(examples, buttons, strict=True):
        choosing = event(lambda text=text: text, None, sentence)
        in_turn(example.click, choosing, translating, comparing)
    for trigger in (sentence.submit, *(option.input for option in options)):
        in_turn(trigger, translating, comparing)
    in_turn(n_best.change, translating)
    in_turn(compare.input, comparing)
    endpoint(models.translate, sentence, models.defaults, name="translate")


def _text_file(models):
    """Fill the tab for a text file, with one sentence on each line."""
    upload = FileUpload(
        label=f"Text in UTF-8, one sentence a line, up to {MAX_LINES} lines",
        height=180,
    )
    link = gr.HTML()
    table = gr.HTML(
        markup.placeholder("A table of translations appears here, to download as text.")
    )
    outputs = [upload, link, table]
    in_turn(upload.upload, event(models.translate_file, upload, outputs))
