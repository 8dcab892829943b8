"""Bodies of requests that are read: bounded in number, size and time.

A request with half a body waits for its client alone. Where there are too many of them,
the oldest one of the address that has most gives way.
"""

import asyncio
import collections
import contextlib

from keras_attention_apps.common.web import guard
from keras_attention_apps.common.web.guard import MEGABYTE, Refusal, header
from keras_attention_apps.common.web.server import network_of

# Maximum size of all bodies in memory.
MAX_IN_MEMORY = 1000 * MEGABYTE
# Incomplete bodies of all addresses together, relative to those of one.
ADDRESSES = 4

AGAIN = {"retry-after": "1"}
# The rest of the body is not read.
CLOSE = {"connection": "close"}


class _Body:
    """A body of which a part has come, and where it comes from."""

    def __init__(self, address):
        self.address, self.parts, self.size = address, [], 0
        self.limit, self.was_dropped = asyncio.timeout(guard.REQUEST_SECONDS), False


class Bodies:
    """Reads bodies of at most `most` bytes, of one address at most `number` at a time.

    Attributes:
        size: Bytes of all bodies in memory.
    """

    def __init__(self, max_bytes, number):
        self._max_bytes, self._number = max_bytes, number
        self._incomplete: list[_Body] = []
        self.size = 0

    @contextlib.asynccontextmanager
    async def read(self, scope, receive):
        """Yield the body of a request, which counts as long as the context lasts."""
        if int(header(scope, "content-length") or 0) > self._max_bytes:
            raise self._too_large()
        client = scope.get("client")
        body = _Body(network_of(client[0]) if client else "")
        self._make_place(body.address)
        self._incomplete.append(body)
        try:
            await self._complete(body, receive)
            content = b"".join(body.parts)
            body.parts.clear()
            yield content
        finally:
            self._remove(body)

    async def _complete(self, body, receive):
        """Read a body until it is complete, or there is no time or no room left."""
        try:
            async with body.limit:
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise guard.Left
                    if body.was_dropped:
                        # The limit is over.
                        await asyncio.sleep(1)
                    self._add(body, message.get("body", b""))
                    more = message.get("more_body", False)
                self._incomplete.remove(body)
        except TimeoutError:
            seconds = guard.REQUEST_SECONDS
            raise (
                Refusal(503, "too many incomplete requests: try again later", CLOSE)
                if body.was_dropped
                else Refusal(408, f"expected a request within {seconds} seconds", CLOSE)
            ) from None

    def _add(self, body, part):
        body.parts.append(part)
        body.size += len(part)
        self.size += len(part)
        if body.size > self._max_bytes:
            raise self._too_large()
        while self.size > MAX_IN_MEMORY:
            sizes: collections.Counter = collections.Counter()
            for upload in self._incomplete:
                sizes[upload.address] += upload.size
            ((largest, _),) = sizes.most_common(1)
            oldest = self._oldest(largest)
            if oldest is body:
                raise Refusal(503, "too many uploads: try again later", AGAIN)
            self._drop(oldest)

    def _make_place(self, address):
        """Drop incomplete bodies until there is place for another one."""
        counts = collections.Counter(body.address for body in self._incomplete)
        if counts[address] >= self._number:
            self._drop(self._oldest(address))
        elif counts.total() >= ADDRESSES * self._number:
            ((largest, _),) = counts.most_common(1)
            self._drop(self._oldest(largest))

    def _oldest(self, address):
        return next(x for x in self._incomplete if x.address == address)

    def _drop(self, body):
        body.was_dropped = True
        self._remove(body)
        if not body.limit.expired():
            body.limit.reschedule(asyncio.get_running_loop().time())

    def _remove(self, body):
        with contextlib.suppress(ValueError):
            self._incomplete.remove(body)
        self.size -= body.size
        body.size = 0
        body.parts.clear()

    def _too_large(self):
        return Refusal(413, f"expected at most {self._max_bytes:,} bytes")
