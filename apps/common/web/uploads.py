"""Components for uploads that neither decode images nor fetch URLs."""

import abc
from pathlib import Path

import gradio as gr
from gradio.blocks import Block
from gradio_client.utils import is_http_url_like
from keras_attention_apps.common.cli import UserError

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


async def _move_upload(component, path):
    """Refuse the address of a file, which Gradio would download, whatever its size."""
    if path is not None and is_http_url_like(str(path)):
        raise gr.Error(
            "expected an uploaded file. Received: an address", print_exception=False
        )
    return await Block.async_move_resource_to_block_cache(component, path)


def _subclass(component, **methods):
    """Return a subclass of a component, of the same name.

    An update creates a component again from its class, so replacing the methods of a
    component would not last. Gradio's metaclass is left out, since it would write a
    file next to this one.
    """
    methods["async_move_resource_to_block_cache"] = _move_upload
    return abc.ABCMeta.__new__(
        type(component), component.__name__, (component,), methods
    )


ImageUpload = _subclass(gr.Image, preprocess=lambda self, value: value and value.path)
FileUpload = _subclass(gr.File)


def image_upload(**options):
    """Return a `gradio.Image` whose value is the path of the upload.

    The program checks the size of the image before it decodes it.

    Args:
        **options: As for `gradio.Image`.
    """
    return ImageUpload(type="filepath", **options)


def paste_images(page, upload):
    """Upload an image that is pasted anywhere on the page.

    Args:
        page: The `gradio.Blocks`, inside its `with` statement.
        upload: `elem_id` of the `image_upload`.
    """
    page.load(None, js=PASTE % upload, api_visibility="private")


def file_upload(**options):
    """Return a `gradio.File`.

    Args:
        **options: As for `gradio.File`.
    """
    return FileUpload(**options)


def read_upload(path, most):
    """Return the bytes of an uploaded file.

    Raises:
        UserError: If it is larger than `most` bytes, or was removed meanwhile.
    """
    try:
        size = Path(path).stat().st_size
        if size > most:
            raise UserError(
                f"expected a file of at most {most:,} bytes. Received: {size:,}"
            )
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise UserError("the upload was removed meanwhile: choose it again") from None
