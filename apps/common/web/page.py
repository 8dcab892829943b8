"""The frame of a page: theme, style sheet, title, options and errors."""

import functools
import html
from pathlib import Path

import gradio as gr
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.web.events import in_daemon
from keras_attention_apps.common.web.markup import alert

STYLE = Path(__file__).parent / "page.css"

# System fonts, so that no font is downloaded.
THEME = gr.themes.Default(
    primary_hue="indigo",
    neutral_hue="slate",
    font=("system-ui", "sans-serif"),
    font_mono=("ui-monospace", "monospace"),
).set(body_text_color_subdued="*neutral_500")

# Class of a row of results, which are side by side where there is room.
RESULTS = "ka-results"

# Events that share a limit of how many run at the same time.
EVENTS = "events"

BEAM_SIZES = (1, 3, 5, 10)
MAX_BEAMS = 20


def page(title, description, purpose=None):
    """Return `gradio.Blocks` with a title, to be filled in a `with` statement.

    Args:
        title: Title of the page.
        description: What the page does.
        purpose: What its model is for, which comes first, if known.
    """
    blocks = gr.Blocks(title=title, analytics_enabled=False)
    # Beyond this number of sessions, the images of the oldest are deleted.
    blocks.state_session_capacity = 200
    with blocks:
        lines = [f"<b>{html.escape(purpose)}</b>"] if purpose else []
        lines = "".join(f"<p>{line}</p>" for line in [*lines, description])
        gr.HTML(f'<header class="ka-title"><h1>{title}</h1>{lines}</header>')
    return blocks


def beam_options(defaults, penalties):
    """Return controls of the beam search: beam width and length penalty.

    The choices are few, since Keras compiles a graph for each pair of values.

    Args:
        defaults: Dict of the options of the model's search.
        penalties: Length penalties to choose from, in addition to that of the model.
    """

    def dropdown(values, value, **texts):
        choices = sorted({*values, value})
        return gr.Dropdown(choices, value=value, filterable=False, **texts)

    return (
        dropdown(
            BEAM_SIZES,
            defaults["beam_size"],
            label="Beam width",
            info="Hypotheses kept at each step; 1 is greedy search.",
        ),
        dropdown(
            penalties,
            defaults["length_penalty"],
            label="Length penalty",
            info="Hypotheses are ranked by log-probability / length ** penalty.",
        ),
    )


def search_options(beam_size, length_penalty):
    """Return the values of both controls as options of the beam search."""
    return {"beam_size": beam_size, "length_penalty": length_penalty}


def event(function, inputs, outputs):
    """Return the arguments of an event of the page itself.

    Several events run at the same time, and take turns with the models. If a user
    triggers one again while it waits, it runs once more afterwards, with the latest
    values.

    Args:
        function: Function of the values of `inputs`. If it has the name of an endpoint,
            Gradio renames the endpoint.
        inputs, outputs: Component or list of components.
    """
    return {
        "fn": in_daemon(function),
        "inputs": inputs,
        "outputs": outputs,
        "api_visibility": "private",
        "concurrency_id": EVENTS,
        "trigger_mode": "always_last",
    }


def in_turn(trigger, *events):
    """Run events one after the other, until one of them fails.

    Args:
        trigger: What starts the first event, such as `button.click`.
        *events: Arguments of each event; see `event`.
    """
    for one in events:
        trigger = trigger(**one).success


def endpoint(function, given, defaults, *, name):
    """Add an endpoint: a function that clients call, with the options of a search.

    Args:
        function: Function of the value of `given`, the number of results, the beam
            width and the length penalty that returns what JSON can hold. A `UserError`
            becomes an error of one sentence.
        given: Component of the first argument.
        defaults: Dict of the options of the model's search.
        name: Name of the endpoint.
    """

    @functools.wraps(function)
    def run(*args):
        try:
            return function(*args)
        except UserError as error:
            raise gr.Error(str(error), print_exception=False) from error

    number = functools.partial(gr.Number, visible=False)
    whole = functools.partial(number, precision=0, minimum=1, maximum=MAX_BEAMS)
    gr.Button(visible=False).click(
        in_daemon(run),
        [
            given,
            whole(1, label="Number of results"),
            whole(defaults["beam_size"], label="Beam width"),
            number(
                defaults["length_penalty"],
                minimum=0,
                maximum=10,
                label="Length penalty",
            ),
        ],
        gr.JSON(visible=False, label="Results, best first"),
        api_name=name,
        api_visibility="public",
        concurrency_id=EVENTS,
    )


def shown(markup):
    """Return an update of a `gradio.HTML`, which is hidden if it is empty."""
    return gr.update(value=markup, visible=bool(markup))


def revealed(function):
    """Wrap a function that returns HTML so that its output is hidden if it is empty.

    A `UserError` is shown, too.
    """

    @functools.wraps(function)
    def run(*args):
        try:
            value = function(*args)
        except UserError as error:
            value = alert(error)
        return shown(value)

    return run
