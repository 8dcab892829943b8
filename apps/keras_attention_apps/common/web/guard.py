"""Limits of requests and uploads."""

import asyncio
import base64
import contextlib
import hmac
import os
import re
import stat
import tempfile
import threading
import time
from pathlib import Path

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from keras_attention_apps.common.errors import UserError, printable
from keras_attention_apps.common.files import expanded, opened, parse_json

# Uploads are removed when they are older than this, in seconds. A request must not wait
# longer.
UPLOAD_AGE = 180
# Seconds between two searches for old uploads.
UPLOAD_INTERVAL = 15
REMOVED = "the upload was removed meanwhile: choose it again"

# Opening a pipe must not wait for a writer, and a link must not be followed. Windows
# lacks both flags.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOFOLLOW", 0)
)


@contextlib.contextmanager
def upload_folder(program):
    """Yield a temporary folder for Gradio's uploads; a thread removes old ones."""
    with tempfile.TemporaryDirectory(prefix=f"{program}-web-") as folder:
        folder = os.environ["GRADIO_TEMP_DIR"] = os.path.realpath(folder)
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


def remove_old(folder):
    """Remove files and empty folders that are older than `UPLOAD_AGE`."""
    oldest = time.time() - UPLOAD_AGE
    for root, folders, names in os.walk(folder, topdown=False):
        for name in (*names, *folders):
            path = Path(root, name)
            # A file may be removed meanwhile, and a folder may have new files.
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < oldest:
                    remove = path.rmdir if name in folders else path.unlink
                    remove()


def upload_path(path, folder):
    """Return the path of an upload, as a client named it, without links."""
    folder = os.path.join(folder, "")
    # A path elsewhere is not looked at, so that nobody learns whether it exists.
    if not os.path.abspath(path).startswith(folder):
        raise UserError("expected an uploaded file. Received: another path, or a URL")
    try:
        resolved = os.path.realpath(path)
        is_file = stat.S_ISREG(os.lstat(resolved).st_mode)
    # A name with a null character or a surrogate is a `ValueError`.
    except (OSError, ValueError):
        raise UserError(REMOVED) from None
    if not (is_file and resolved.startswith(folder)):
        raise UserError("expected an uploaded file. Received: a link or a folder")
    return resolved


def read_upload(path, max_bytes):
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        raise UserError(REMOVED) from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UserError("expected a regular file. Received: a pipe or a device")
        if status.st_size > max_bytes:
            raise UserError(
                f"expected a file of at most {max_bytes:,} bytes. Received: "
                f"{status.st_size:,}"
            )
        return file.read(max_bytes)


MEGABYTE = 1_000_000
# Maximum size of an upload of several files, relative to that of one file.
FILES_PER_UPLOAD = 10
# Maximum size of other requests.
MAX_BYTES = 2 * MEGABYTE
# Maximum length of a query, and of the name of a session, which Gradio keeps.
MAX_CHARACTERS = 500
# Uploads are refused while the files on disk take more than this.
MAX_ON_DISK = 1000 * MEGABYTE
# Seconds between two measurements of the disk usage, which read all file sizes.
SUM_INTERVAL = 1
# Seconds until a request is complete, and until an upload is.
REQUEST_SECONDS = 20
UPLOAD_SECONDS = UPLOAD_AGE
# Seconds until a wrong password is answered.
PASSWORD_SECONDS = 1
# Number of bytes of a password or an API key. One of 16 cannot be guessed.
MIN_SECRET, MAX_SECRET = 16, 1000
API = "/gradio_api/"
UPLOAD = f"{API}upload"
INFO = f"{API}info"
FILE = f"{API}file="
# Routes that the pages and Gradio's clients use. Others fetch other addresses, record
# or edit something, or describe the server.
ROUTES = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt)/?"
    r"|/(assets|static|svelte)/.+"
    rf"|{API}(info|upload|upload_progress|app_id|startup-events|theme\.css)/?"
    rf"|{API}(queue/(join|data|status)|cancel|reset|heartbeat/[^/]+)/?"
    rf"|{API}call/(v2/)?\w+(/\w+)?/?"
    rf"|{re.escape(FILE)}.+"
)

LENGTH = re.compile("[0-9]{0,15}")

# The browser loads nothing that does not come from this server.
POLICY = (
    "default-src 'self' data: blob:; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'self'"
)

HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


def read_password(path):
    """Return the password in the first line of a file as bytes, or `None`."""
    if path is None:
        return None
    with opened(expanded(path)) as file:
        line = file.readline(2 * MAX_SECRET)
    return checked_secret(line, "a password", "the first line of --password-file", path)


def checked_secret(line, kind, location, path):
    """Return a password or an API key in a line of a file, without spaces around it."""
    secret = line.strip()
    if not MIN_SECRET <= len(secret) <= MAX_SECRET:
        raise UserError(
            f"expected {kind} of {MIN_SECRET} to {MAX_SECRET} bytes in {location}, not "
            f"counting spaces around it. Received: {printable(path)}, with "
            f"{f'one of {len(secret)} bytes' if secret else 'none'}"
        )
    return secret


def notice(password):
    """Return what somebody should know whose page can be reached by other computers."""
    if password is None:
        return (
            "every computer that reaches this one can use the page: there is no login. "
            "--password-file asks for a password"
        )
    return "the password and all data are sent without encryption: see docs/serving.md"


class Guard:
    """ASGI middleware that bounds requests, and refuses routes that no page needs."""

    def __init__(self, application, *, config, folder, password=None):
        self.application = application
        self.config = config
        self.folder = os.path.realpath(folder)
        self.password = password
        self._bytes_on_disk = 0
        self._next_sum = 0.0

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return

        async def send_with_headers(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        if scope["path"].rstrip("/") == INFO:
            # Without a page, Gradio keeps the answer, with the host of one request.
            scope = {**scope, "query_string": scope["query_string"] + b"&page="}
        application = self.application
        try:
            await self._check_password(scope)
            self._check(scope)
            receive = await _checked_body(scope, receive)
        except Refusal as refusal:
            content = {"detail": str(refusal)}
            application = JSONResponse(content, refusal.status, refusal.headers)
        try:
            await application(scope, receive, send_with_headers)
        except RuntimeError as error:
            # Gradio reports an unknown session in a stream of events, and raises an
            # error after the response has begun.
            if not isinstance(error.__cause__, HTTPException):
                raise
            await send({"type": "http.response.body", "body": b""})

    async def _check_password(self, scope):
        """Refuse a request without the password."""
        if self.password is None:
            return
        scheme, _, token = header(scope, "authorization").partition(" ")
        try:
            _, _, received = base64.b64decode(token, validate=True).partition(b":")
        except ValueError:
            received = b""
        if scheme.lower() == "basic" and hmac.compare_digest(received, self.password):
            return
        if token:
            await asyncio.sleep(PASSWORD_SECONDS)
        login = 'Basic realm="page", charset="UTF-8"'
        raise Refusal(401, "expected the password", {"www-authenticate": login})

    def _check(self, scope):
        """Refuse a request by its route and its headers."""
        path = scope["path"]
        if not ROUTES.fullmatch(path):
            raise Refusal(404, "not found")
        if is_foreign(scope):
            raise Refusal(403, "expected a request of this page. Received: another's")
        if len(scope.get("query_string", b"")) > MAX_CHARACTERS:
            raise Refusal(414, f"expected a query of at most {MAX_CHARACTERS} bytes")
        if path.startswith(FILE):
            try:
                upload_path(path.removeprefix(FILE), self.folder)
            except UserError as error:
                raise Refusal(403, str(error)) from None
        length = header(scope, "content-length")
        if header(scope, "transfer-encoding") or not LENGTH.fullmatch(length):
            raise Refusal(411, "expected a content length")
        is_upload = _is_upload(scope)
        limit = MAX_BYTES
        if is_upload:
            limit = FILES_PER_UPLOAD * self.config.max_megabytes * MEGABYTE
        if int(length or 0) > limit:
            raise Refusal(413, f"expected at most {limit} bytes")
        if is_upload and self._is_disk_full():
            raise Refusal(503, "too many uploads: try again later")

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


def fault(error):
    """Return the first error of a `pydantic.ValidationError`, and what it received."""
    first = error.errors(include_url=False)[0]
    message = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
    return f"{message}. Received: {received(first['input'])}"


def received(value):
    """Return a value of a client in at most 80 characters, for an error."""
    return "a file" if isinstance(value, UploadFile) else printable(repr(value))[:80]


class Refusal(Exception):
    """A request that is refused, with the status and the reason of the response."""

    def __init__(self, status, reason, headers=None):
        super().__init__(reason)
        self.status = status
        self.headers = headers


class Left(Refusal):
    """A request whose client has closed the connection, and gets no answer."""

    def __init__(self):
        super().__init__(499, "the client has left")


async def _checked_body(scope, receive):
    """Return `receive` with a time limit; other requests than uploads are JSON.

    A client that exceeds the limit counts as disconnected.
    """
    if header(scope, "content-length") in ("", "0"):
        if scope["method"] == "POST":
            raise Refusal(400, "expected a body. Received: none")
        # A response that lasts is told by `receive` when the client disconnects.
        return receive
    if _is_upload(scope):
        return _bounded(receive, UPLOAD_SECONDS)
    content = bytearray()
    async for part in parts_of(receive):
        content += part
    # Gradio keeps the name of a session.
    if len(str(json_object(content).get("session_hash"))) > MAX_CHARACTERS:
        expected = f"expected at most {MAX_CHARACTERS} characters"
        raise Refusal(400, f"session_hash: {expected}")
    return replayed(content, receive)


async def parts_of(receive):
    """Yield the parts of the body of a request, within a time limit."""
    receive_in_time, more = _bounded(receive, REQUEST_SECONDS), True
    while more:
        message = await receive_in_time()
        if message["type"] == "http.disconnect":
            raise Refusal(408, f"expected a request within {REQUEST_SECONDS} seconds")
        yield message.get("body", b"")
        more = message.get("more_body", False)


def replayed(content, receive):
    """Return a `receive` of a request whose body was read."""
    messages = [{"type": "http.request", "body": bytes(content), "more_body": False}]

    async def replay():
        return messages.pop() if messages else await receive()

    return replay


def json_object(content):
    """Return the dict of a body in JSON, or refuse the request."""
    with contextlib.suppress(ValueError):
        value = parse_json(content)
        if isinstance(value, dict):
            return value
    raise Refusal(400, "expected a JSON object. Received: something else")


def _bounded(receive, seconds):
    """Return `receive` with a time limit for the whole body."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    more = True

    async def receive_in_time():
        nonlocal more
        if not more:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), end - loop.time())
        except TimeoutError:
            return {"type": "http.disconnect"}
        more = message.get("more_body", False)
        return message

    return receive_in_time


def header(scope, name):
    """Return the value of a header of a request, or an empty string."""
    return dict(scope["headers"]).get(name.encode(), b"").decode("latin-1")


def is_foreign(scope):
    """Return whether a browser sent a request for a page of another address.

    A reverse proxy names the address of the page in `X-Forwarded-Host`. Browsers do not
    let other pages set it.
    """
    origin = header(scope, "origin")
    _, _, host = origin.partition("://")
    hosts = header(scope, "host"), header(scope, "x-forwarded-host")
    # Some pages, such as files, have the origin "null".
    return bool(origin) and (not host or host not in hosts)


def _is_upload(scope):
    return scope["path"].rstrip("/") == UPLOAD
