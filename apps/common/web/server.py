"""A server for one page: limits of requests and uploads, and refused routes."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from keras_attention_apps.common.cli import UserError

MEGABYTE = 1_000_000

# Maximum size of an upload of several files, relative to that of one file.
FILES_PER_UPLOAD = 10
# Maximum size of other requests.
MAX_BYTES = 2 * MEGABYTE
# Uploads are refused while the files on disk take more than this.
MAX_ON_DISK = 1000 * MEGABYTE

# Seconds between two measurements of the disk usage, which read all file sizes.
SUM_INTERVAL = 1

# Uploads are removed when they are older than this, in seconds. A request must not wait
# longer.
UPLOAD_AGE = 180
# Seconds between two searches for old uploads.
UPLOAD_INTERVAL = 15

# Routes of Gradio that fetch other addresses, record or edit something.
REFUSED = re.compile(
    r"/gradio_api/(proxy=|file=\w+:|vibe|run|process_recording|profiling)|/monitoring"
)

# The browser loads nothing that does not come from this server.
POLICY = "; ".join(
    (
        "default-src 'self' data: blob:",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'self'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def serve(program, build, config):
    """Serve a page until it is interrupted.

    Uploads are written to a temporary folder, which is removed at the end.

    Args:
        program: Name of the program, for messages.
        build: Function without arguments that returns the `gradio.Blocks`.
        config: The `ServerConfig`.

    Raises:
        UserError: If Gradio is not installed, or the port is in use.
    """
    with listening(config) as listener, page_folder(program) as folder:
        import uvicorn

        application = application_of(build(), config, folder)
        server = uvicorn.Server(
            uvicorn.Config(
                application,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=2,
            )
        )
        if not is_local(config.host):
            print(
                f"{program}: warning: every computer that reaches this one can use the "
                "page, and there is no password",
                file=sys.stderr,
            )
        # An interrupt cancels the connections of open pages, which is no error.
        logging.getLogger("uvicorn.error").addFilter(_is_reported)
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        print(f"{program}: http://{host}:{port} (Ctrl-C ends it)", flush=True)
        server.run(sockets=[listener])


def _is_reported(record):
    """Return whether a log record is reported; that of a cancellation is not."""
    error = record.exc_info and record.exc_info[1]
    message = record.getMessage()
    return not (
        isinstance(error, asyncio.CancelledError) or message.startswith("Cancel ")
    )


@contextlib.contextmanager
def listening(config):
    """Yield a socket that listens at the address of a `ServerConfig`."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        raise UserError(
            f"cannot listen at {config.host}, port {config.port}: {error.strerror}"
        ) from error
    with listener:
        yield listener


@contextlib.contextmanager
def page_folder(program):
    """Yield the folder of uploads, and keep Gradio from reporting its use.

    Old uploads are removed in a thread.

    Raises:
        UserError: If Gradio is not installed.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise UserError(
            f'the page needs Gradio: python -m pip install ".[web]" ({error})'
        ) from error
    with tempfile.TemporaryDirectory(prefix=f"{program}-web-") as folder:
        before = os.environ.get("GRADIO_TEMP_DIR")
        os.environ["GRADIO_TEMP_DIR"] = folder
        ended = threading.Event()

        def remove():
            while not ended.wait(UPLOAD_INTERVAL):
                remove_old(folder)

        remover = threading.Thread(target=remove, daemon=True)
        remover.start()
        try:
            yield Path(folder)
        finally:
            ended.set()
            remover.join()
            if before is None:
                del os.environ["GRADIO_TEMP_DIR"]
            else:
                os.environ["GRADIO_TEMP_DIR"] = before


def remove_old(folder):
    """Remove files and empty folders that are older than `UPLOAD_AGE`."""
    oldest = time.time() - UPLOAD_AGE
    for root, folders, names in os.walk(folder, topdown=False):
        for name in (*names, *folders):
            path = Path(root, name)
            # A file may be removed meanwhile, and a folder may have new files.
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    remove = path.rmdir if name in folders else path.unlink
                    remove()


def application_of(page, config, folder):
    """Return the ASGI application of a page, with its limits.

    Args:
        page: The `gradio.Blocks`.
        config: The `ServerConfig`.
        folder: Folder of the uploads.
    """
    import fastapi
    import gradio as gr
    from keras_attention_apps.common.web.page import STYLE
    from keras_attention_apps.common.web.page import THEME
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    # One search at a time: a second one would only make both slower.
    page.queue(max_size=config.max_queue, default_concurrency_limit=1, api_open=False)
    application = gr.mount_gradio_app(
        fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        page,
        path="/",
        server_name=config.host,
        server_port=config.port,
        footer_links=["api"],
        run_history=False,
        show_error=False,
        max_file_size=config.max_megabytes * MEGABYTE,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=THEME,
        css_paths=STYLE,
    )
    application.add_middleware(Guard, config=config, folder=folder)
    if is_local(config.host):
        # DNS rebinding: another site must not reach this server through its own host
        # name.
        local = ["127.0.0.1", "localhost", "[::1]", config.host]
        application.add_middleware(TrustedHostMiddleware, allowed_hosts=local)
    return application


def is_local(host):
    """Return whether an address can be reached from this computer only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """ASGI middleware that bounds requests, and refuses routes that no page needs.

    Args:
        application: The ASGI application.
        config: The `ServerConfig`.
        folder: Folder of the uploads.
    """

    def __init__(self, application, *, config, folder):
        self.application = application
        self.config = config
        self.folder = folder
        self._bytes_on_disk = 0
        self._next_sum = 0

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return

        async def send_with_headers(message):
            if message["type"] == "http.response.start":
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        application = self._refusal(scope) or self.application
        await application(scope, receive, send_with_headers)

    def _refusal(self, scope):
        """Return the response to a request that is refused, or `None`."""
        from starlette.responses import PlainTextResponse

        path, headers = scope["path"], dict(scope["headers"])
        if REFUSED.search(path):
            return PlainTextResponse("Not found", 404)
        length = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not (length or b"0").isdigit():
            return PlainTextResponse("expected a content length", 411)
        is_upload = _is_upload(scope)
        most = MAX_BYTES
        if is_upload:
            most = FILES_PER_UPLOAD * self.config.max_megabytes * MEGABYTE
        if int(length or 0) > most:
            return PlainTextResponse(f"expected at most {most} bytes", 413)
        if is_upload and self._is_disk_full():
            return PlainTextResponse("too many uploads: try again later", 503)
        return None

    def _is_disk_full(self):
        """Return whether the uploads take more than they may."""
        if time.monotonic() >= self._next_sum:
            self._next_sum = time.monotonic() + SUM_INTERVAL
            self._bytes_on_disk = 0
            for root, _, names in os.walk(self.folder):
                for name in names:
                    # A file may be removed meanwhile.
                    with contextlib.suppress(OSError):
                        self._bytes_on_disk += Path(root, name).stat().st_size
        return self._bytes_on_disk > MAX_ON_DISK


def _is_upload(scope):
    return scope["path"].rstrip("/") == "/gradio_api/upload"
