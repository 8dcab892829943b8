"""A server for one page."""

import contextlib
import ipaddress
import logging
import os
import socket
import sys

from keras_attention_apps.common.errors import UserError, printable, reason
from keras_attention_apps.common.files import expanded, opened

# Events of the page that run at the same time. Most wait for a file or for their turn
# with the models.
MAX_EVENTS = 16
# Maximum size of a password in bytes.
MAX_PASSWORD = 1000
# Maximum number of characters of a reason.
MAX_REASON = 200
ERRORS = (AssertionError, AttributeError, LookupError, OSError, TypeError, ValueError)
# Seconds in which the events that are running may end before the program does.
END_SECONDS = 2


def serve(program, build, config):
    """Serve a page until it is interrupted.

    Uploads are written to a temporary folder, which is removed at the end.
    """
    password = read_password(config.password_file)
    with listening(config) as listener, page_folder(program) as folder:
        application = application_of(build(), config, folder, password)
        run(program, application, config.host, listener, notice(password))


def run(program, application, host, listener, warning, *, serve=None, **options):
    """Answer the requests of a socket until the program is interrupted.

    Args:
        program: Name of the program.
        application: ASGI application.
        host: Address of the socket as it was given. If other computers can reach it,
            `warning` is printed.
        listener: The socket.
        warning: What somebody should know whose server can be reached.
        serve: Class of the server; by default that of uvicorn.
        **options: Further options of uvicorn.
    """
    import uvicorn
    from keras_attention_apps.common.web import connections

    options = {"timeout_graceful_shutdown": END_SECONDS, **options}
    server = (serve or uvicorn.Server)(
        uvicorn.Config(
            application,
            http=connections.Connection,
            ws="none",
            loop="asyncio",
            backlog=connections.BACKLOG,
            log_level="warning",
            access_log=False,
            server_header=False,
            **options,
        )
    )
    if not is_local(host):
        print(f"{program}: warning: {warning}", file=sys.stderr)
    for name in ("uvicorn.error", "asyncio", "python_multipart.multipart"):
        logging.getLogger(name).addFilter(connections.Reported())
    name, port = listener.getsockname()[:2]
    name = f"[{name}]" if ":" in name else name
    print(f"{program}: http://{name}:{port} (Ctrl-C ends it)", flush=True)
    server.run(sockets=[listener])


def read_password(path):
    """Return the password in the first line of a file as bytes, or `None`."""
    if path is None:
        return None
    with opened(expanded(path)) as file:
        password = file.readline(MAX_PASSWORD + 1).rstrip(b"\r\n")
    if not 0 < len(password) <= MAX_PASSWORD:
        raise UserError(
            f"expected a password of 1 to {MAX_PASSWORD} bytes in the first line of "
            f"--password-file. Received: {printable(path)}"
        )
    return password


def notice(password):
    """Return what somebody should know whose page can be reached by other computers."""
    if password is None:
        return (
            "every computer that reaches this one can use the page: there is no login. "
            "--password-file asks for a password"
        )
    return "the password and all data are sent without encryption: see docs/serving.md"


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
    """Yield the folder of uploads, and keep Gradio from reporting its use."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise UserError(
            f'the page needs Gradio: python -m pip install ".[web]" ({error})'
        ) from error
    from keras_attention_apps.common.web.guard import upload_folder

    with upload_folder(program) as folder:
        before = os.environ.get("GRADIO_TEMP_DIR")
        os.environ["GRADIO_TEMP_DIR"] = str(folder)
        try:
            yield folder
        finally:
            if before is None:
                del os.environ["GRADIO_TEMP_DIR"]
            else:
                os.environ["GRADIO_TEMP_DIR"] = before


def application_of(page, config, folder, password=None):
    """Return the ASGI application of a page, with its limits."""
    import fastapi
    import gradio as gr
    from gradio.route_utils import FnIndexInferError
    from keras_attention_apps.common.web.guard import MEGABYTE, Guard
    from keras_attention_apps.common.web.page import STYLE, THEME, check_calls
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import ClientDisconnect

    check_calls(page)
    page.queue(
        max_size=config.max_queue, default_concurrency_limit=MAX_EVENTS, api_open=False
    )
    # What Gradio's routes raise for malformed requests; its events run elsewhere.
    errors = (*ERRORS, FnIndexInferError, ClientDisconnect)
    closed = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    application = gr.mount_gradio_app(
        fastapi.FastAPI(**closed),
        page,
        path="/",
        app_kwargs={**closed, "exception_handlers": dict.fromkeys(errors, _malformed)},
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
    application.add_middleware(Guard, config=config, folder=folder, password=password)
    if is_local(config.host):
        # DNS rebinding: another site must not reach this server through its own host
        # name.
        local = ["127.0.0.1", "localhost", "[::1]", config.host]
        application.add_middleware(TrustedHostMiddleware, allowed_hosts=local)
    return application


def _malformed(request, error):
    """Answer a request that one of Gradio's routes cannot read, and report it."""
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse

    if isinstance(error, ClientDisconnect):
        return JSONResponse({"detail": "expected a complete request"}, 408)
    logging.getLogger("uvicorn.error").warning(
        "malformed request of %s: %s", printable(request.url.path), type(error).__name__
    )
    detail = f"malformed request: {reason(error)[:MAX_REASON]}"
    return JSONResponse({"detail": detail}, 400)


def is_local(host):
    """Return whether an address can be reached from this computer only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
