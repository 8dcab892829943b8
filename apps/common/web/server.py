"""A server that runs until it is interrupted, with limits of its connections.

The limits of requests are in `guard.py`.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import sys
import time
from typing import Any

import uvicorn
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.web import guard
from starlette.middleware.trustedhost import TrustedHostMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds in which the events that are running may end before the program does.
END_SECONDS = 2
# Maximum number of open connections.
MAX_CONNECTIONS = 400
# Connections that are accepted at once. When there is no file descriptor left, asyncio
# logs an error for each of them, and tries again as many times.
BACKLOG = 32
# Seconds in which the first request of a connection arrives when the server ends.
FIRST_SECONDS = 1
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
            log_level="warning",
            access_log=False,
            server_header=False,
            **options,
        )
    )
    if not is_local(host):
        print(f"{program}: warning: {warning}", file=sys.stderr)
    for name in ("uvicorn.error", "asyncio", "python_multipart.multipart"):
        logging.getLogger(name).addFilter(Reported())
    name, port = listener.getsockname()[:2]
    name = f"[{name}]" if ":" in name else name
    print(f"{program}: http://{name}:{port} (Ctrl-C ends it)", flush=True)
    server.run(sockets=[listener])


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


class Connection(H11Protocol):
    """A connection that is closed if it is idle, or if there are too many.

    The server has no time limit for the headers of a request. When it ends, a
    connection without a request stays open until its first one is answered, or
    `FIRST_SECONDS` are over.
    """

    _is_ending = False

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
        super().connection_lost(exc)

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
        """Close an idle connection, or else the oldest one."""
        others: list[Any] = [x for x in self.connections if x is not self]
        others = [x for x in others if not x.transport.is_closing()]
        if others:
            found = min(others, key=lambda one: (one._is_busy(), one._opened))
            found.transport.abort()

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
