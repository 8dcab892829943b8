"""Limits of connections, which need the server; those of requests are in `guard.py`."""

import asyncio
import logging
import time

from keras_attention_apps.common.web import guard
from uvicorn.protocols.http.h11_impl import H11Protocol

# Maximum number of open connections.
MAX_CONNECTIONS = 400
# Connections that are accepted at once. When there is no file descriptor left, asyncio
# logs an error for each of them, and tries again as many times.
BACKLOG = 32
# Seconds in which the first request of a connection arrives when the server ends.
FIRST_SECONDS = 1
# Seconds in which one message is logged once.
LOG_INTERVAL = 60


class Connection(H11Protocol):
    """A connection that is closed if it is idle, or if there are too many.

    The server has no time limit for the headers of a request.

    Attributes:
        keeps_open: Whether the connection stays open when the server ends, until its
            first request is answered or `FIRST_SECONDS` are over.
    """

    keeps_open = False

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
        if self.keeps_open:
            self.keeps_open = False
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
        others = [x for x in self.connections if not x.transport.is_closing()]
        others = [x for x in others if x is not self]
        if others:
            found = min(others, key=lambda one: (one._is_busy(), one._opened))
            found.transport.abort()

    def _is_busy(self):
        return self.cycle is not None and not self.cycle.response_complete


def max_connections():
    """Return the maximum number of connections, which depends on the open files.

    An upload needs a second file.
    """
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return MAX_CONNECTIONS
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if limit < 0 else max(1, min(MAX_CONNECTIONS, limit // 3))


class Reported(logging.Filter):
    """Lets each message pass once in `LOG_INTERVAL`; clients cause most of them.

    A message about a cancellation does not pass: an interrupt cancels the connections
    of open pages, which is no error.
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
