"""Uploads: components that neither decode nor fetch anything, and their files."""

from pathlib import Path

import gradio as gr
from gradio_client.utils import is_http_url_like
from keras_attention_apps.common.cli import UserError

# Gradio pastes by a button only; this gives the image of Ctrl-V to an upload, too.
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

# Methods of components are replaced below. Gradio writes a file next to the source of
# every subclass, which a subclass would need.


def image_upload(**options):
    """Return a `gradio.Image` whose value is the path of the upload.

    The program checks the size of the image before it decodes it.

    Args:
        **options: As of `gradio.Image`.
    """
    component = _without_addresses(gr.Image(type="filepath", **options))
    component.preprocess = lambda payload: payload and payload.path
    return component


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
        **options: As of `gradio.File`.
    """
    return _without_addresses(gr.File(**options))


def _without_addresses(component):
    """Make a component refuse the address of a file in place of an upload."""
    move = component.async_move_resource_to_block_cache

    async def move_upload(path):
        # Gradio would download it, whatever its size.
        if path is not None and is_http_url_like(str(path)):
            raise gr.Error(
                "expected an uploaded file. Received: an address", print_exception=False
            )
        return await move(path)

    component.async_move_resource_to_block_cache = move_upload
    return component


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
