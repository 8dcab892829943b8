"""`nmt web`: the page of the translator, its components, events and models."""

import functools
import re

import gradio as gr

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.models import name_of
from keras_attention_apps.common.web import markup
from keras_attention_apps.common.web.models import Models
from keras_attention_apps.common.web.page import (
    LAYOUT,
    RESULTS,
    controls,
    event,
    in_turn,
    page,
    revealed,
    search_options,
    serve,
    shown,
)
from keras_attention_apps.nmt import views
from keras_attention_apps.nmt.config import PRESETS
from keras_attention_apps.nmt.languages import code_of, language_name
from keras_attention_apps.nmt.runtimes import RUNTIMES

PENALTIES = (0.0, 0.5, 1.0)
# Characters of a sentence; the models cut what is longer than they can read.
MAX_CHARACTERS = 2000
EXAMPLES = (
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Two dogs are playing in the snow.",
    "A young woman with red hair reads a book on a bench in the park.",
)
HINT = (
    "The translation appears here, and every word shows which words of the sentence it "
    "looked at."
)


class TranslationPage(Models):
    """The translator, the `others` to compare it with, and the functions of the events.

    These take the values of components, and return updates of others. A multilingual
    model has `languages`, a dict from the names of its target languages to how its
    vocabulary spells them, and `language`, the one that is chosen at first.
    """

    def __init__(self, config):
        super().__init__(RUNTIMES, config)
        self.others = RUNTIMES.others(config.compare, config.model.name)
        self.reverse = reverse_of(config.model.name)
        model = self.load({})
        model.check_target_language(config.target_language)
        self.languages = names_of(model.tokenizer.languages)
        self.language = config.target_language or next(
            iter(self.languages.values()), None
        )

    def translations(self, sentence, language, search, *, n_best=1, other=None):
        """Return the best translations of a sentence, best first.

        It is translated into a target `language`, if the model has that.
        """
        if len(sentence) > MAX_CHARACTERS:
            raise UserError(
                f"expected a sentence of at most {MAX_CHARACTERS} characters. "
                f"Received: {len(sentence)}"
            )

        def addressed(model):
            known = language in model.tokenizer.languages
            return model.with_target_language(sentence, language if known else None)

        return self.outputs(addressed, search, n_best=n_best, other=other)

    def swap(self, sentence, is_reversed, language, *options):
        """Return the translation as the next sentence, and the other direction."""
        other = self.reverse if is_reversed else None
        translations = self.translations(
            sentence, language, search_options(*options), other=other
        )
        return translations[0].text, not is_reversed

    def show_translations(self, sentence, is_reversed, language, n_best, *options):
        search = search_options(*options)
        other = self.reverse if is_reversed else None
        try:
            translations = self.translations(
                sentence, language, search, n_best=n_best, other=other
            )
        except UserError as error:
            return markup.alert(error), shown(""), shown("")
        title = name_of(other or self.config.model.name)
        figure = views.alignment_figure(translations[0], title, 0)
        table = (
            markup.n_best_table("translation", translations)
            if translations[0].words
            else ""
        )
        return figure, shown(table), shown(views.heat_map(translations[0]))

    @revealed
    def show_others(self, sentence, is_reversed, language, compare, *options):
        # The others translate in the direction of the model of the page.
        if is_reversed or not compare or not sentence.strip():
            return ""
        figures, search = [], search_options(*options)
        for number, other in enumerate(self.others, start=1):
            (best,) = self.translations(sentence, language, search, other=other)
            figures.append(views.alignment_figure(best, name_of(other), number))
        return f'<div class="ka-figures">{"".join(figures)}</div>'


def names_of(languages):
    """Return a dict from names of target languages to how a vocabulary spells them.

    >>> names_of(["deu", "fra", "xyz", "fr"])
    {'German': 'deu', 'French': 'fra', 'xyz': 'xyz', 'French: fr': 'fr'}
    """
    names: dict[str, str] = {}
    for language in languages:
        name = language_name(code_of(language))
        names[f"{name}: {language}" if name in names else name] = language
    return names


def reverse_of(model):
    """Return the preset for the other direction of a preset; `None` without one.

    >>> reverse_of("tatoeba-multi30k-en-de")
    'tatoeba-multi30k-de-en'
    """
    match = re.fullmatch("(.+)-([a-z]{2})-([a-z]{2})", str(model))
    reverse = match and f"{match[1]}-{match[3]}-{match[2]}"
    return reverse if reverse and (PRESETS / reverse).is_dir() else None


def serve_page(config):
    """Serve the page that a `WebConfig` describes."""
    serve("nmt", functools.partial(build, config), config.server)


def build(config):
    """Return the page as `gradio.Blocks`."""
    models = TranslationPage(config)
    description = "Translates a sentence, and shows which words every word came from."
    with page("nmt", description, models.purpose) as blocks:
        _fill(models)
    return blocks


def _fill(models):
    """Fill the page."""
    is_english = (models.purpose or "English").startswith("English")
    examples = EXAMPLES if is_english else ()
    with gr.Row(elem_classes=[LAYOUT, "ka-below"]):
        with gr.Column(min_width=280):
            sentence = gr.Textbox(
                label="Sentence",
                info="Enter translates, Shift+Enter begins a new line.",
                # With more lines at first, Enter would begin a new line.
                lines=1,
                max_lines=10,
                max_length=MAX_CHARACTERS,
                placeholder=examples[0] if examples else None,
                submit_btn="Translate",
                elem_classes="ka-sentence",
            )
            menu = None
            if models.languages:
                menu = gr.Dropdown(
                    list(models.languages.items()),
                    value=models.language,
                    label="Target language",
                )
            # Without a menu, the functions of the events get `None`.
            language = gr.State(None) if menu is None else menu
            is_reversed = gr.State(False)
            swap = gr.Button(
                "\u21c4 Swap languages", size="sm", visible=bool(models.reverse)
            )
            buttons = [gr.Button(x, size="sm") for x in examples]
        with gr.Column(min_width=280):
            with gr.Row(elem_classes=RESULTS):
                result = gr.HTML(markup.placeholder(HINT))
                others = gr.HTML(visible=False)
            with gr.Row(elem_classes=RESULTS):
                best = gr.HTML(visible=False)
                heat = gr.HTML(visible=False)
        chosen = controls(
            "Translations",
            models.defaults,
            PENALTIES,
            others=bool(models.others),
            label="Show other kinds of attention, too",
            info=f"{' and '.join(map(name_of, models.others))}. Loading them takes "
            "some seconds the first time.",
        )

    compare, n_best, options = chosen
    inputs = [sentence, is_reversed, language]
    translating = event(
        models.show_translations, [*inputs, n_best, *options], [result, best, heat]
    )
    comparing = event(models.show_others, [*inputs, compare, *options], others)
    swapping = event(models.swap, [*inputs, *options], [sentence, is_reversed])
    in_turn(swap.click, swapping, translating, comparing)
    for text, example in zip(examples, buttons, strict=True):
        choosing = event(lambda text=text: text, None, sentence)
        in_turn(example.click, choosing, translating, comparing)
    in_turn(sentence.submit, translating, comparing)
    if menu is not None:
        in_turn(menu.input, translating, comparing)
    chosen.connect(translating, comparing)
