"""`nmt web`: a page that translates and shows the alignment of every word."""

from keras_attention_apps.common.imports import imported
from keras_attention_apps.common.web.server import serve


def web(config):
    """Serve the page as a `WebConfig` describes it."""
    serve(
        "nmt",
        # Importing Gradio takes seconds, and it may not be installed.
        lambda: imported("keras_attention_apps.nmt.web.page:build")(config),
        config.server,
    )
