"""The frame of a page: title, components, events, checked values, and its server.

Importing this module takes seconds, and fails without Gradio.
"""

import abc
import asyncio
import concurrent.futures
import functools
import html
import logging
import os
import threading
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

# Gradio reports its use unless this is set before it is imported.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import fastapi
import gradio as gr
import pydantic
from gradio.data_classes import ImageData
from gradio.route_utils import FnIndexInferError
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from keras_attention_apps.common.errors import UserError, printable, reason
from keras_attention_apps.common.web import guard
from keras_attention_apps.common.web.markup import alert
from keras_attention_apps.common.web.server import for_host, listening, run

# Events of the page that run at the same time. Most wait for a file or for their turn
# with the models.
MAX_EVENTS = 16
# Maximum number of characters of the reason for a malformed request.
MAX_REASON = 200
# What Gradio's routes raise for malformed requests; its events run elsewhere.
MALFORMED = (
    *(AssertionError, AttributeError, LookupError, OSError, TypeError, ValueError),
    *(FnIndexInferError, ClientDisconnect),
)


def serve(program, build, config):
    """Serve a page until it is interrupted.

    Uploads are written to a temporary folder, which is removed at the end.
    """
    password = guard.read_password(config.password_file)
    with listening(config) as listener, guard.upload_folder(program) as folder:
        # Gradio makes a folder of its own there.
        gr.routes.DEFAULT_TEMP_DIR = str(folder)
        application = application_of(build(), config, folder, password)
        run(program, application, config.host, listener, guard.notice(password))


def application_of(page, config, folder, password=None):
    """Return the ASGI application of a page, with its limits."""
    check_calls(page, folder)
    page.queue(
        max_size=config.max_queue, default_concurrency_limit=MAX_EVENTS, api_open=False
    )
    handlers = dict.fromkeys(MALFORMED, _malformed)
    closed = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    has_endpoint = any(x.api_visibility == "public" for x in page.fns.values())
    application = gr.mount_gradio_app(
        fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        page,
        path="/",
        app_kwargs={**closed, "exception_handlers": handlers},
        server_name=config.host,
        server_port=config.port,
        footer_links=["api"] if has_endpoint else [],
        run_history=False,
        show_error=False,
        max_file_size=config.max_megabytes * guard.MEGABYTE,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=THEME,
        css_paths=STYLE,
    )
    limits = {"config": config, "folder": folder, "password": password}
    application.add_middleware(guard.Guard, **limits)
    return for_host(application, config.host)


def _malformed(request, error):
    """Answer a request that one of Gradio's routes cannot read, and report it."""
    if isinstance(error, ClientDisconnect):
        return JSONResponse({"detail": "expected a complete request"}, 408)
    logging.getLogger("uvicorn.error").warning(
        "malformed request of %s: %s", printable(request.url.path), type(error).__name__
    )
    detail = f"malformed request: {reason(error)[:MAX_REASON]}"
    return JSONResponse({"detail": detail}, 400)


# Name of the threads.
NAME = "event"


def in_daemon(function):
    """Return a coroutine function that runs `function` in a daemon thread.

    The program does not wait for such a thread when it ends, unlike for those in which
    Gradio runs functions.
    """

    @functools.wraps(function)
    async def run(*args):
        future: concurrent.futures.Future = concurrent.futures.Future()
        # From now on, the future cannot be cancelled, so its result can always be set.
        future.set_running_or_notify_cancel()

        def work():
            try:
                future.set_result(function(*args))
            except UserError as error:
                future.set_exception(gr.Error(str(error), print_exception=False))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name=NAME, daemon=True).start()
        return await asyncio.wrap_future(future)

    return run


# A `gradio.Image` whose value is the path of the upload: the program checks the size of
# the image before it decodes it. What the component shows is a data URI, so that the
# server keeps no file of it. Gradio creates a component again from its class, and its
# metaclass, which is left out, would write a file next to this one.
_Image = abc.ABCMeta.__new__(
    type(gr.Image),
    gr.Image.__name__,
    (gr.Image,),
    {
        "preprocess": lambda self, value: value and value.path,
        "postprocess": lambda self, value: value and ImageData(url=value),
    },
)
# The script of the page uploads images that are pasted anywhere.
ImageUpload = functools.partial(_Image, type="filepath", elem_classes="ka-upload")


def check_calls(page, folder):
    """Check what clients send to any event or endpoint of a page."""
    preprocess = page.preprocess_data

    async def preprocess_checked(function, values, *args, **options):
        try:
            values = checked_values(function, values, str(folder))
        except UserError as error:
            raise gr.Error(str(error), print_exception=False) from error
        return await preprocess(function, values, *args, **options)

    page.preprocess_data = preprocess_checked


def checked_values(function, values, folder):
    """Return the values of the inputs of an event, and nothing else of the client."""
    if function.fn is None:
        raise UserError("expected an event with a function. Received: one without")
    if len(values) != len(function.inputs):
        raise UserError(
            f"expected {len(function.inputs)} values. Received: {len(values)}"
        )
    pairs = zip(function.inputs, values, strict=True)
    return [_checked(component, value, folder) for component, value in pairs]


def _checked(component, value, folder):
    """Return the value of a component, or raise a `UserError`."""
    if component.stateful:
        # It is kept by the server.
        return None
    if isinstance(component, gr.Image):
        is_upload = value is not None and not _is_preview(value)
        return _checked_upload(value, folder) if is_upload else None
    try:
        return pydantic.TypeAdapter(_type_of(component)).validate_python(
            value, strict=True
        )
    except pydantic.ValidationError as error:
        raise UserError(f"{component.label or 'text'}: {guard.fault(error)}") from None


def _type_of(component):
    """Return the type of the values of a component, for pydantic."""
    if isinstance(component, gr.Dropdown):
        return Literal[tuple(choice for _, choice in component.choices)]
    if isinstance(component, (gr.Number, gr.Slider)):
        step = 1 if component.precision == 0 else None
        low, high = component.minimum, component.maximum
        return Annotated[float, pydantic.Field(ge=low, le=high, multiple_of=step)]
    types: dict = {gr.Checkbox: bool, gr.Textbox: str, gr.HTML: str | None}
    return types[type(component)]


def _checked_upload(value, folder):
    """Return the upload that a client named, with nothing but its path."""
    path = value.get("path") if isinstance(value, dict) else None
    if not isinstance(path, str):
        expected = 'an uploaded file, {"path": ...}'
        raise UserError(f"expected {expected}. Received: {guard.received(value)}")
    path = guard.upload_path(path, folder)
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


def _is_preview(value):
    """Return whether a value is the photograph that the page shows, not an upload.

    Gradio sends it when the camera is chosen while the sample is shown.
    """
    is_shown = isinstance(value, dict) and value.get("path") is None
    return is_shown and str(value.get("url")).startswith("data:image/")


STYLE = Path(__file__).parent / "page.css"
SCRIPT = Path(__file__).parent / "page.js"

# System fonts, so that no font is downloaded.
THEME = gr.themes.Default(
    primary_hue="indigo",
    neutral_hue="slate",
    font=("system-ui", "sans-serif"),
    font_mono=("ui-monospace", "monospace"),
).set(body_text_color_subdued="*neutral_500")

# Class of a row of results, which are side by side where there is room.
RESULTS = "ka-results"
# Class of a row of inputs, results and controls. In a wide window, the results are
# beside both others; in a narrow one, between them.
LAYOUT = "ka-layout"
# Events that share a limit of how many run at the same time.
EVENTS = "events"
BEAM_SIZES = (1, 3, 5, 10)
MAX_BEAMS = 20


def page(title, description, purpose=None):
    """Return `gradio.Blocks` with a title, to be filled in a `with` statement."""
    blocks = gr.Blocks(title=title, analytics_enabled=False)
    # Beyond this number of sessions, the images of the oldest are deleted.
    blocks.state_session_capacity = 200
    with blocks:
        first = f"<p><b>{html.escape(purpose)}</b></p>" if purpose else ""
        lines = f"{first}<p>{description}</p>"
        gr.HTML(f'<header class="ka-title"><h1>{title}</h1>{lines}</header>')
        script = SCRIPT.read_text(encoding="utf-8")
        blocks.load(None, js=script, api_visibility="private")
    return blocks


def beam_options(defaults, penalties):
    """Return controls of the beam search: beam width and length penalty.

    The choices are few, since Keras compiles a graph for each pair of values.
    """

    def dropdown(values, value, label, info):
        choices, texts = sorted({*values, value}), {"label": label, "info": info}
        return gr.Dropdown(choices, value=value, filterable=False, **texts)

    beam_info = "Hypotheses kept at each step; 1 is greedy search."
    ranked = "Hypotheses are ranked by log-probability / length ** penalty."
    beam_size, length_penalty = defaults["beam_size"], defaults["length_penalty"]
    return (
        dropdown(BEAM_SIZES, beam_size, "Beam width", beam_info),
        dropdown(penalties, length_penalty, "Length penalty", ranked),
    )


def search_options(beam_size, length_penalty):
    """Return the values of both controls as options of the beam search."""
    return {"beam_size": beam_size, "length_penalty": length_penalty}


class Controls(NamedTuple):
    """The controls of a page: whether other models are shown, and its options.

    Attributes:
        compare: Checkbox that shows the results of other models, too.
        n_best: Number of results in the list.
        options: The controls of the beam search; see `beam_options`.
    """

    compare: Any
    n_best: Any
    options: tuple

    def connect(self, showing, comparing):
        """Run the event of the results, and that of other models, after changes."""
        in_turn(self.n_best.change, showing)
        for option in self.options:
            in_turn(option.input, showing, comparing)
        in_turn(self.compare.input, comparing)


def controls(results, defaults, penalties, *, others, label, info):
    """Add a column with the `Controls`, and return them.

    Args:
        results: What the model returns, in plural, such as `"Captions"`.
        defaults: Options of the search that are shown at first.
        penalties: Length penalties to choose from.
        others: Whether there are other models.
        label, info: Texts of the checkbox that shows them.
    """
    with gr.Column(min_width=280):
        compare = gr.Checkbox(label=label, info=info, visible=others)
        with gr.Accordion("Options", open=False):
            label = f"{results} in the list"
            n_best = gr.Slider(1, 5, value=3, step=1, precision=0, label=label)
            options = beam_options(defaults, penalties)
    return Controls(compare, n_best, options)


def event(function, inputs, outputs):
    """Return the arguments of an event of the page itself.

    Several events run at the same time, and take turns with the models. If a user
    triggers one again while it waits, it runs once more afterwards, with the latest
    values.
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
    """Run events one after the other, until one of them fails."""
    for arguments in events:
        trigger = trigger(**arguments).success


def endpoint(function, inputs, defaults, *, name):
    """Add an endpoint: a function that clients call, with the options of a search.

    It takes the value of `inputs`, the number of results, the beam width and the length
    penalty, and returns what JSON can hold.
    """
    number = functools.partial(gr.Number, visible=False)
    whole = functools.partial(number, precision=0, minimum=1, maximum=MAX_BEAMS)
    penalty = functools.partial(number, minimum=0, maximum=10)
    gr.Button(visible=False).click(
        in_daemon(function),
        [
            inputs,
            whole(1, label="Number of results"),
            whole(defaults["beam_size"], label="Beam width"),
            penalty(defaults["length_penalty"], label="Length penalty"),
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
    """Wrap a function that returns HTML; an empty text is hidden, an error is shown."""

    @functools.wraps(function)
    def run(*args):
        try:
            value = function(*args)
        except UserError as error:
            value = alert(error)
        return shown(value)

    return run
