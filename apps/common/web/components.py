"""Components for uploads, and the check of all values that clients send.

Gradio checks little of what a client sends: a file without `"meta"` may have any path,
and other values may have any type. So `check_calls` checks the values of every event
and endpoint of a page, before a component reads them.
"""

import abc
import functools
import json

import gradio as gr
from gradio.data_classes import ListFiles
from gradio.utils import get_upload_folder
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.web.uploads import upload_path

# Gradio has a button for pasting; this script also uploads images pasted by Ctrl-V.
PASTE = """() => document.addEventListener("paste", (event) => {
    const image = [...event.clipboardData.files].find(x => x.type.startsWith("image/"));
    const input = document.querySelector("#%s input[type=file]");
    if (image && input) {
        const files = new DataTransfer();
        files.items.add(image);
        input.files = files.files;
        input.dispatchEvent(new Event("change", {bubbles: true}));
    }
})"""


def _paths(self, value):
    """Return the path of an upload, or the list of the paths of several."""
    if isinstance(value, ListFiles):
        return [file.path for file in value]
    return value and value.path


def _subclass(component):
    """Return a subclass of a component, of the same name, whose values are paths.

    An update creates a component again from its class, so replacing the method of a
    component would not last. Gradio's metaclass is left out, since it would write a
    file next to this one.
    """
    methods = {"preprocess": _paths}
    return abc.ABCMeta.__new__(
        type(component), component.__name__, (component,), methods
    )


ImageUpload = _subclass(gr.Image)
FileUpload = _subclass(gr.File)


def image_upload(**options):
    """Return a `gradio.Image` whose value is the path of the upload.

    The program checks the size of the image before it decodes it.

    Args:
        **options: As for `gradio.Image`.
    """
    return ImageUpload(type="filepath", **options)


def file_upload(**options):
    """Return a `gradio.File` whose value is the path of the upload.

    With `file_count="multiple"`, it is a list of paths.

    Args:
        **options: As for `gradio.File`.
    """
    return FileUpload(**options)


def paste_images(page, upload):
    """Upload an image that is pasted anywhere on the page.

    Args:
        page: The `gradio.Blocks`, inside its `with` statement.
        upload: `elem_id` of the `image_upload`.
    """
    page.load(None, js=PASTE % upload, api_visibility="private")


def check_calls(page):
    """Check what clients send to any event or endpoint of a page.

    A wrong value is answered with one sentence.

    Args:
        page: The `gradio.Blocks`.
    """
    preprocess = page.preprocess_data

    async def preprocess_checked(function, values, *args, **options):
        try:
            values = checked_values(function, values, get_upload_folder())
        except UserError as error:
            raise gr.Error(str(error), print_exception=False) from error
        return await preprocess(function, values, *args, **options)

    page.preprocess_data = preprocess_checked


def checked_values(function, values, folder):
    """Return the values of the inputs of an event, with nothing else that a client set.

    Args:
        function: The `gradio.blocks.BlockFunction` of the event.
        values: List of what the client sent.
        folder: Folder of the uploads.

    Raises:
        UserError: If their number or one of them is wrong.
    """
    if function.fn is None:
        raise UserError("expected an event with a function. Received: one without")
    if len(values) != len(function.inputs):
        raise UserError(
            f"expected {len(function.inputs)} values. Received: {len(values)}"
        )
    return [
        _checked(component, value, folder)
        for component, value in zip(function.inputs, values, strict=True)
    ]


def _checked(component, value, folder):
    """Return the value of a component, or raise a `UserError`."""
    if component.stateful:
        # It is kept by the server.
        return None
    if isinstance(component, (gr.Image, gr.File)):
        return _checked_upload(component, value, folder)
    expected, read = _reader(component)
    try:
        return read(value)
    except ValueError:
        raise UserError(
            f"{component.label or 'text'}: expected {expected}. Received: "
            f"{_described(value)}"
        ) from None


def _reader(component):
    """Return what a component takes, in words, and a function that reads a value.

    The function raises a `ValueError` if the value is something else.
    """
    if isinstance(component, (gr.Number, gr.Slider)):
        is_slider = isinstance(component, gr.Slider)
        is_whole = component.step == 1 if is_slider else component.precision == 0
        low, high = component.minimum, component.maximum
        kind = "a whole number" if is_whole else "a number"
        read = functools.partial(_read_number, low=low, high=high, is_whole=is_whole)
        return f"{kind} from {low} to {high}", read
    if isinstance(component, (gr.Dropdown, gr.Radio)):
        choices = [choice for _, choice in component.choices]
        if isinstance(component, gr.Radio):
            choices.append(None)
        return f"one of {json.dumps(choices)}", functools.partial(_read_choice, choices)
    if isinstance(component, gr.Checkbox):
        return "true or false", functools.partial(_read_instance, bool)
    if isinstance(component, gr.Textbox):
        return "a text", functools.partial(_read_instance, str)
    if isinstance(component, gr.HTML):
        return "a text or null", functools.partial(_read_instance, str | None)
    raise TypeError(f"no check of the values of {type(component).__name__}")


def _read_number(value, *, low, high, is_whole):
    # A boolean is an integer in Python.
    if type(value) not in (int, float) or not low <= value <= high:
        raise ValueError
    if is_whole and value != int(value):
        raise ValueError
    return int(value) if is_whole else value


def _read_choice(choices, value):
    if isinstance(value, bool):
        raise ValueError
    return choices[choices.index(value)]


def _read_instance(kind, value):
    if not isinstance(value, kind):
        raise ValueError
    return value


def _checked_upload(component, value, folder):
    """Return the uploads that a client named, with nothing but their paths."""
    files = value if isinstance(value, list) else [value]
    several = getattr(component, "file_count", "single") == "multiple"
    if value is None and isinstance(component, gr.Image):
        return None
    if not files or (len(files) > 1 and not several):
        raise UserError(f"expected one uploaded file. Received: {len(files)}")
    checked = []
    for file in files:
        path = file.get("path") if isinstance(file, dict) else None
        if not isinstance(path, str):
            raise UserError(
                'expected an uploaded file, {"path": ...}. Received: '
                f"{_described(file)}"
            )
        checked.append(
            {"path": upload_path(path, folder), "meta": {"_type": "gradio.FileData"}}
        )
    return checked if isinstance(value, list) and several else checked[0]


def _described(value):
    """Return a value as JSON, or its type if it is long."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
