"""`nmt web`: the page of the translator, its components, events and models."""

import functools
import io
import os

import gradio as gr
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import utf8_lines
from keras_attention_apps.common.models import Models, name_of
from keras_attention_apps.common.web.guard import MEGABYTE, read_upload
from keras_attention_apps.common.web.markup import (
    alert,
    figures,
    n_best_table,
    placeholder,
    unsure_mark,
)
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

# Characters of a sentence; the models cut what is longer than they can read.
MAX_CHARACTERS = 2000


class TranslationService(Models):
    """The translator of the page, and the names of the `others` to compare it with."""

    def __init__(self, config):
        super().__init__(RUNTIMES, config)
        self.others = RUNTIMES.others(config.compare, config.model.name)

    def translations(self, sentence, search, *, n_best=1):
        """Return the best `Translation`s of a sentence, best first."""
        with self.turns:
            return _translations(self.main(search), sentence, search, n_best)

    def other_translation(self, model, sentence, search):
        """Return the best translation of another model."""
        with self.turns:
            return _translations(self.load(model, search), sentence, search, 1)[0]


def _translations(model, sentence, search, n_best):
    if len(sentence) > MAX_CHARACTERS:
        raise UserError(
            f"expected a sentence of at most {MAX_CHARACTERS} characters. Received: "
            f"{len(sentence)}"
        )
    n_best = min(n_best, model.search_options(**search)["beam_size"])
    (found,) = model.translate_each([sentence], n_best=n_best, **search)
    return found


PENALTIES = (0.0, 0.5, 1.0)
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


def serve_page(config):
    """Serve the page that a `WebConfig` describes."""
    serve("nmt", functools.partial(build, config), config.server)


def build(config):
    """Return the page as `gradio.Blocks`."""
    service = TranslationService(config)
    blocks = page(
        "nmt",
        "Translates a sentence, and shows which words every word came from.",
        service.purpose,
    )
    with blocks:
        with gr.Tab("One sentence"):
            _one_sentence(config, service)
        with gr.Tab("A text file"):
            _text_file(config, service)
    return blocks


def _one_sentence(config, service):
    """Fill the tab for a sentence, and add an endpoint with the same options."""
    source, target = views.languages(service.purpose)
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
                where = (
                    f"The translation into {target}" if target else "The translation"
                )
                result = gr.HTML(placeholder(f"{where} {HINT}"))
                others = gr.HTML(visible=False)
            with gr.Row(elem_classes=RESULTS):
                best = gr.HTML(visible=False)
                heat = gr.HTML(visible=False)
        with gr.Column(min_width=280):
            compare = gr.Checkbox(
                label="Show other kinds of attention, too",
                info=f"{' and '.join(map(name_of, service.others))}. Loading them "
                "takes some seconds the first time.",
                visible=bool(service.others),
            )
            with gr.Accordion("Options", open=False):
                n_best = gr.Slider(
                    1, 5, value=3, step=1, label="Translations in the list"
                )
                options = beam_options(service.defaults, PENALTIES)

    events = _SentenceEvents(config, service)
    translating = event(
        events.show_translations, [sentence, n_best, *options], [result, best, heat]
    )
    comparing = event(events.show_others, [sentence, compare, *options], others)
    for text, example in zip(examples, buttons, strict=True):
        choosing = event(lambda text=text: text, None, sentence)
        in_turn(example.click, choosing, translating, comparing)
    for trigger in (sentence.submit, *(option.input for option in options)):
        in_turn(trigger, translating, comparing)
    in_turn(n_best.change, translating)
    in_turn(compare.input, comparing)
    endpoint(events.translate, sentence, service.defaults, name="translate")


class _SentenceEvents:
    """Functions of the events of the tab for a sentence, from values to updates."""

    def __init__(self, config, service):
        self.config = config
        self.service = service

    def show_translations(self, sentence, n_best, beam_size, penalty):
        search = search_options(beam_size, penalty)
        try:
            found = self.service.translations(sentence, search, n_best=n_best)
        except UserError as error:
            return alert(error), shown(""), shown("")
        title = name_of(self.config.model.name)
        figure = views.alignment_figure(found[0], title, 0)
        table = n_best_table("translation", found) if found[0].words else ""
        return figure, shown(table), shown(views.heat_map(found[0]))

    @revealed
    def show_others(self, sentence, compare, beam_size, penalty):
        if not compare or not sentence.strip():
            return ""
        search = search_options(beam_size, penalty)
        return figures(
            *(
                views.alignment_figure(
                    self.service.other_translation(model, sentence, search),
                    name_of(model),
                    number,
                )
                for number, model in enumerate(self.service.others, start=1)
            )
        )

    def translate(self, sentence, n_best, beam_size, length_penalty):
        """Translate a sentence; the result is a list of translations, best first."""
        search = search_options(beam_size, length_penalty)
        found = self.service.translations(sentence, search, n_best=n_best)
        return [one.details() for one in found]


def _text_file(config, service):
    """Fill the tab for a text file, with one sentence on each line."""
    upload = FileUpload(
        label=f"Text in UTF-8, one sentence a line, up to {MAX_LINES} lines",
        height=180,
    )
    link = gr.HTML()
    table = gr.HTML(
        placeholder("A table of translations appears here, to download as text.")
    )
    most = config.server.max_megabytes * MEGABYTE

    def translated(path):
        try:
            sentences = _sentences(read_upload(path, most), os.path.basename(path))
            rows = []
            for number, sentence in enumerate(sentences, start=1):
                (found,) = service.translations(sentence, {})
                rows.append([str(number), sentence, found.text, unsure_mark(found)])
                if number % LINES_AT_ONCE == 0:
                    yield gr.skip(), "", views.lines_table(rows)
        except UserError as error:
            yield None, "", alert(error)
            return
        link = views.text_link([text for _, _, text, _ in rows])
        yield None, link, views.lines_table(rows)

    in_turn(upload.upload, event(translated, upload, [upload, link, table]))


def _sentences(content, name):
    """Return the lines of a text in a file of this name."""
    lines = list(utf8_lines(io.BytesIO(content), name))
    if len(lines) > MAX_LINES:
        raise UserError(f"expected at most {MAX_LINES} lines. Received: {len(lines)}")
    return [decode_line(line, name, i) for i, line in enumerate(lines, start=1)]
