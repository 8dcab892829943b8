"""A server that runs until it is interrupted, with limits of its connections.

The limits of requests are in `guard.py`.
"""

import asyncio
import collections
import contextlib
import ctypes
import ipaddress
import json
import logging
import socket
import sys
import time
from typing import Any

import h11
import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.web import guard

# Seconds in which the events that are running may end before the program does.
END_SECONDS = 2
# Maximum number of open connections.
MAX_CONNECTIONS = 400
# Connections that are accepted at once. When there is no file descriptor left, asyncio
# logs an error for each of them, and tries again as many times.
BACKLOG = 32
# Seconds in which the first request of a connection arrives when the server ends.
FIRST_SECONDS = 1
# Maximum size of the line and the headers of a request; some clients send the text in
# the line.
MAX_HEAD = 65_536
# Bytes that are parsed at a time.
PART_SIZE = 16_384
# Mean size of the chunks of a body, but for some smaller ones.
CHUNK_SIZE, MAX_SMALL_CHUNKS = 1000, 500
# Seconds in which a client reads a part of a response.
READ_SECONDS = 60
# Option of glibc, and the bytes of blocks that are allocated apart from others.
M_MMAP_THRESHOLD, MIN_BLOCK = -3, 1_000_000
# Seconds in which one message is logged once.
LOG_INTERVAL = 60


def run(program, application, host, listener, warning, *, serve=None, **options):
    """Answer the requests of a socket until the program is interrupted.

    `warning` is printed if other computers can reach the `host`, the address of the
    socket as it was given. `serve` returns another server than that of uvicorn, and
    `**options` are further options of uvicorn.
    """
    options = {"timeout_graceful_shutdown": END_SECONDS, **options}
    server = (serve or uvicorn.Server)(
        uvicorn.Config(
            application,
            http=Connection,
            ws="none",
            loop="asyncio",
            backlog=BACKLOG,
            # Its warnings are about requests of clients.
            log_level="error",
            access_log=False,
            server_header=False,
            **options,
        )
    )
    if not is_local(host):
        print(f"{program}: warning: {warning}", file=sys.stderr)
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(Reported())
    # Its warnings are about forms of clients, which are answered with the reason.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    name, port = listener.getsockname()[:2]
    name = f"[{name}]" if ":" in name else name
    return_large_blocks()
    print(f"{program}: http://{name}:{port} (Ctrl-C ends it)", flush=True)
    server.run(sockets=[listener])


def return_large_blocks():
    """Give blocks of memory back to the system when they are free.

    By default, glibc keeps up to 64 MB of them for each thread, such as those of large
    images. Other libraries have no `mallopt`.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MIN_BLOCK)


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


def is_local(host):
    """Return whether an address can be reached from this computer only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def for_host(application, host):
    """Return an ASGI application that refuses names of other hosts if it is local.

    Another site could reach the server through its own name (DNS rebinding).
    """
    local = ["127.0.0.1", "localhost", "[::1]", host]
    allowed = local if is_local(host) else None
    return TrustedHostMiddleware(application, allowed_hosts=allowed)


def network_of(address):
    """Return what counts as one client: an address, or a network of IPv6 (/64)."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 6:
        network = ipaddress.ip_network((parsed, 64), strict=False)
        return str(parsed.ipv4_mapped or network)
    return str(parsed)


class Parser(h11.Connection):
    """A parser of requests that refuses bodies in many small chunks.

    A chunk takes some 50 microseconds, in which no other request is read.
    """

    _chunks = 0.0

    def next_event(self):
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = 0.0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start - len(event.data) / CHUNK_SIZE
            if self._chunks > MAX_SMALL_CHUNKS:
                raise h11.RemoteProtocolError("too many small chunks")
        return event


class Connection(H11Protocol):
    """A connection that is closed if it is idle, or if there are too many.

    The server has no time limit for the headers of a request, and none for a client
    that does not read the response. When it ends, a connection without a request stays
    open until its first one is answered, or `FIRST_SECONDS` are over.
    """

    _is_ending = False
    _writing: asyncio.TimerHandle | None = None

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.conn = Parser(h11.SERVER, MAX_HEAD)

    def data_received(self, data):
        # Heads are bounded if they come in parts.
        for begin in range(0, len(data), PART_SIZE):
            if not self.transport.is_closing():
                super().data_received(data[begin : begin + PART_SIZE])

    def connection_made(self, transport):
        super().connection_made(transport)
        self._opened = self.loop.time()
        self._watch(None)
        if len(self.connections) > max_connections():
            self._close_another()

    def _watch(self, cycle):
        seconds = guard.REQUEST_SECONDS
        self._timer = self.loop.call_later(seconds, self._close_idle, cycle)

    def connection_lost(self, exc):
        self._timer.cancel()
        # This resumes writing.
        super().connection_lost(exc)

    def pause_writing(self):
        super().pause_writing()
        self._writing = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self):
        super().resume_writing()
        if self._writing:
            self._writing.cancel()

    def send_400_response(self, msg):
        """Answer bytes that are no request, in JSON like all other errors."""
        if self.cycle:
            # The application must not answer, too.
            self.cycle.disconnected = True
        content = json.dumps({"error": msg}).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(content))),
            ("connection", "close"),
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=content),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def shutdown(self):
        if self.cycle is None and not self._is_ending:
            self._is_ending = True
            self.loop.call_later(FIRST_SECONDS, self.shutdown)
        elif not self.transport.is_closing():
            super().shutdown()

    def _close_idle(self, cycle):
        """Close the connection if no request has begun since the last call."""
        if self.cycle is cycle and not self._is_busy():
            self.transport.abort()
        else:
            self._watch(self.cycle)

    def _close_another(self):
        """Close another connection.

        Idle ones are closed first, those with a complete request last; among equals,
        the oldest one of the address with most connections.
        """
        others: list[Any] = [x for x in self.connections if x is not self]
        others = [x for x in others if not x.transport.is_closing()]
        counts = collections.Counter(connection._address() for connection in others)

        def rank(connection):
            is_complete = connection._is_busy() and not connection.cycle.more_body
            state = connection._is_busy() + is_complete
            return state, -counts[connection._address()], connection._opened

        if others:
            min(others, key=rank).transport.abort()

    def _address(self):
        return network_of(self.client[0]) if self.client else ""

    def _is_busy(self):
        return self.cycle is not None and not self.cycle.response_complete


def max_connections():
    """Return the maximum number of connections; an upload needs a second open file."""
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return MAX_CONNECTIONS
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if limit < 0 else max(1, min(MAX_CONNECTIONS, limit // 3))


class Reported(logging.Filter):
    """Lets each message pass once in `LOG_INTERVAL`; clients cause most of them.

    Messages about a cancellation do not pass: an interrupt cancels open connections.
    """

    def __init__(self):
        super().__init__()
        self._next = {}

    def filter(self, record):
        message, now = record.getMessage().partition("\n")[0], time.monotonic()
        error = record.exc_info and record.exc_info[1]
        if message.startswith("Cancel ") or isinstance(error, asyncio.CancelledError):
            return False
        if self._next.get(message, 0) > now:
            return False
        if len(self._next) > 100:
            self._next.clear()
        self._next[message] = now + LOG_INTERVAL
        return True
