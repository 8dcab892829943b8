"""A REST server: limits, API keys, metrics, and batches of the inputs that wait.

The servers of both programs consist of routes; everything else is here.
"""

import asyncio
import collections
import contextlib
import functools
import hashlib
import math
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import fastapi
import prometheus_client
import pydantic
import uvicorn
from keras_attention_apps.common.cli import version
from keras_attention_apps.common.errors import UserError, printable
from keras_attention_apps.common.files import expanded, opened
from keras_attention_apps.common.web import guard
from keras_attention_apps.common.web.guard import MEGABYTE, Refusal, header
from keras_attention_apps.common.web.server import Connection, for_host, listening, run
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

# Seconds after SIGTERM in which requests are still accepted: a load balancer, and
# clients with an open connection, learn meanwhile that the server ends.
ENDING_SECONDS = 1
# Seconds that accepted requests may then take.
GRACE_SECONDS = 60
# Maximum size of all bodies in memory.
MAX_IN_MEMORY = 1000 * MEGABYTE
# Maximum size of the line and the headers of a request; some clients send the text in
# the line.
MAX_HEAD = 65_536
# Number of characters of the shortest API key. A longer key cannot be guessed.
MIN_KEY = 16
# Clients whose requests are counted.
MAX_CLIENTS = 10_000

HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
# Statuses of requests that fail: see `docs/rest.md`.
ERRORS = (400, 403, 408, 413, 415, 429, 500, 503)
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def serve(program, config, add_routes):
    """Answer requests, by routes that `add_routes` adds to a `Service`."""
    keys = read_keys(config.api_keys)
    warning = (
        "every computer that reaches this one can use the server: there is no API key. "
        "--api-keys asks for one"
        if keys is None
        else "API keys and all data are sent without encryption: see docs/rest.md"
    )
    with listening(config) as listener:
        service = Service(program, config, keys)
        add_routes(service)
        run(
            program,
            service.application(),
            config.host,
            listener,
            warning,
            serve=service.server,
            timeout_graceful_shutdown=GRACE_SECONDS,
            h11_max_incomplete_event_size=MAX_HEAD,
        )


def read_keys(path):
    """Return the set of the digests of the API keys in a file, or `None`."""
    if path is None:
        return None
    with opened(expanded(path)) as file:
        lines = [line.strip() for line in file]
    keys = [line for line in lines if line and not line.startswith(b"#")]
    if not keys or min(map(len, keys)) < MIN_KEY:
        raise UserError(
            f"expected an API key of at least {MIN_KEY} characters in every line of "
            f"--api-keys. Received: {printable(path)}, with "
            f"{'a shorter one' if keys else 'none'}"
        )
    return {hashlib.sha256(key).digest() for key in keys}


class Error(pydantic.BaseModel):
    """The answer to a request that fails."""

    error: str


class Batches:
    """Calls a function with the inputs of all that wait, in a thread of its own.

    `call` takes a list of at most `size` inputs, and returns their results, in order.
    If it fails, it is called again with each input alone, so that one cannot fail
    another. `observe` is called with the size of every batch.
    """

    def __init__(self, call, size, observe):
        self._call, self._size, self._observe = call, size, observe
        self._waiting: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._work, name="batches", daemon=True).start()

    def __call__(self, inputs):
        """Return the results of some inputs, a list."""
        futures: list[Future] = [Future() for _ in inputs]
        for pair in zip(inputs, futures, strict=True):
            self._waiting.put(pair)
        return [future.result() for future in futures]

    def _work(self):
        while True:
            batch = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < self._size:
                    batch.append(self._waiting.get_nowait())
            self._observe(len(batch))
            self._compute(batch)

    def _compute(self, batch):
        inputs, futures = zip(*batch, strict=True)
        try:
            for future, result in zip(futures, self._call(list(inputs)), strict=True):
                future.set_result(result)
        except Exception as error:
            waiting = [x for x in batch if not x[1].done()]
            if len(batch) == 1:
                waiting[0][1].set_exception(error)
                return
            for one in waiting:
                self._compute([one])


class Service:
    """The application of a REST server, to whose `routes` a program adds its own."""

    def __init__(self, program, config, keys=None):
        self.config = config
        self.program = program
        self._keys = keys
        self._pool = ThreadPoolExecutor(config.max_queue, thread_name_prefix="request")
        self._server = None
        self._waiting = self._bytes = 0
        self._rates = collections.OrderedDict()
        self._define_metrics()
        self.routes = fastapi.FastAPI(
            title=program,
            version=version(),
            openapi_url="/spec",
            docs_url=None,
            redoc_url=None,
            exception_handlers={
                Refusal: lambda _, error: _answer(error.status, error, error.headers),
                HTTPException: lambda _, error: _answer(
                    error.status_code, error.detail, error.headers
                ),
                Exception: lambda *_: _answer(500, "the server failed: see its log"),
            },
        )
        self.route("GET", "/health", self._health, dict[str, str])
        self.route("GET", "/metrics", self._metrics, None)

    def _define_metrics(self):
        self._registry = prometheus_client.CollectorRegistry()
        options = {"namespace": self.program, "registry": self._registry}
        self._requests = prometheus_client.Counter(
            "requests", "Requests.", ["path", "status"], **options
        )
        self._seconds = prometheus_client.Histogram(
            "request_seconds", "Seconds until the answer.", ["path"], **options
        )
        waiting = prometheus_client.Gauge(
            "waiting_requests", "Requests without an answer yet.", **options
        )
        waiting.set_function(lambda: self._waiting)
        self.batch_sizes = prometheus_client.Histogram(
            "batch_size",
            "Inputs that a model computed together.",
            ["model"],
            buckets=[2**i for i in range(8)],
            **options,
        )
        prometheus_client.ProcessCollector(registry=self._registry)

    def route(self, method, path, function, answer, **described):
        """Add a route: a function from a request to its response.

        `/spec` has its docstring, `answer`, the type of the answer, and `described`.
        """
        errors = ERRORS if method == "POST" else ()
        self.routes.add_api_route(
            path,
            function,
            methods=[method],
            summary=function.__doc__.partition("\n")[0],
            response_model=answer,
            responses={status: {"model": Error} for status in errors},
            openapi_extra=described,
        )

    async def values(self, request, model):
        """Return the values of an authorized request as a pydantic model."""
        values = await values_of(request)
        self.authorize(request, values.get("api_key"))
        return checked(model, values)

    def application(self):
        """Return the ASGI application, with all limits."""
        application = for_host(self._limited, self.config.host)
        if self.config.allow_origin:
            application = CORSMiddleware(
                application,
                allow_origins=self.config.allow_origin,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )
        return application

    def server(self, config):
        """Return the server that runs the application."""
        self._server = _Server(config)
        return self._server

    @property
    def is_ending(self):
        return self._server is not None and self._server.should_exit

    async def in_thread(self, function, *args):
        """Return the result of a function that waits for a model."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function, *args)

    def authorize(self, request, key=None):
        """Refuse a request without an API key, or of a client with too many requests.

        The key is that in the header `Authorization: Bearer`, or else `key`.
        """
        client = request.client.host if request.client else ""
        if self._keys is not None:
            scheme, _, token = header(request, "authorization").partition(" ")
            if scheme.lower() == "bearer":
                key = token.strip()
            if not key:
                raise Refusal(403, "expected an API key. Received: none")
            client = hashlib.sha256(str(key).encode("utf-8", "replace")).digest()
            if client not in self._keys:
                raise Refusal(403, "invalid API key")
        self._count(client)

    def _count(self, client):
        """Refuse a request of a client that has sent too many (token bucket)."""
        most, now = self.config.requests_per_minute, time.monotonic()
        if most is None:
            return
        left, then = self._rates.pop(client, (most, now))
        left = min(left + (now - then) * most / 60, most)
        seconds = math.ceil((1 - left) * 60 / most)
        self._rates[client] = left - (left >= 1), now
        if len(self._rates) > MAX_CLIENTS:
            self._rates.popitem(last=False)
        if left < 1:
            raise Refusal(
                429,
                f"expected at most {most} requests a minute: try again later",
                {"retry-after": str(seconds)},
            )

    async def _health(self):
        """Tell whether the server takes requests."""
        if self.is_ending:
            return _answer(503, "the server ends")
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: fastapi.Request):
        """Return metrics for Prometheus."""
        if self._keys is not None:
            self.authorize(request)
        content = prometheus_client.generate_latest(self._registry)
        return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    async def _limited(self, scope, receive, send):
        """Pass a request on to the routes, within the limits, and count it."""
        if scope["type"] != "http":
            await self.routes(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def send_counted(message):
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [*HEADERS, *[(b"connection", b"close")] * self.is_ending]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            if scope["method"] == "POST":
                with self._admitted(scope) as content:
                    receive = await self._read(scope, receive, content)
                    await self.routes(scope, receive, send_counted)
            else:
                await self.routes(scope, receive, send_counted)
        except Refusal as refusal:
            answer = _answer(refusal.status, refusal, refusal.headers)
            await answer(scope, receive, send_counted)
        finally:
            # Other paths would be any number of labels.
            known = {getattr(route, "path", None) for route in self.routes.routes}
            path = scope["path"] if scope["path"] in known else "other"
            self._requests.labels(path, status).inc()
            self._seconds.labels(path).observe(time.perf_counter() - begin)

    @contextlib.contextmanager
    def _admitted(self, scope):
        """Yield where to read the body of a request, if there are not too many."""
        allowed = {"*", header(scope, "origin")}.intersection(self.config.allow_origin)
        if guard.is_foreign(scope) and not allowed:
            raise Refusal(403, "requests of web pages need --allow-origin")
        if self._waiting >= self.config.max_queue:
            raise Refusal(
                503,
                f"expected at most {self.config.max_queue} requests at a time: try "
                "again later",
                {"retry-after": "1"},
            )
        self._waiting += 1
        content = bytearray()
        try:
            yield content
        finally:
            self._waiting -= 1
            self._bytes -= len(content)

    async def _read(self, scope, receive, content):
        """Read the body of a request into `content`, and return a `receive` of it."""
        most = self.config.max_megabytes * MEGABYTE
        if int(header(scope, "content-length") or 0) > most:
            raise Refusal(413, f"expected at most {most:,} bytes")
        async for part in guard.parts_of(receive):
            content += part
            self._bytes += len(part)
            if len(content) > most:
                raise Refusal(413, f"expected at most {most:,} bytes")
            if self._bytes > MAX_IN_MEMORY:
                again = {"retry-after": "1"}
                raise Refusal(503, "too many uploads: try again later", again)
        return guard.replayed(content, receive)


class _Server(uvicorn.Server):
    """A server that answers everything that it has accepted before it ends."""

    async def shutdown(self, sockets=None):
        await asyncio.sleep(ENDING_SECONDS)
        accepted = []
        for listener in sockets or ():
            with contextlib.suppress(BlockingIOError):
                while True:
                    # The system has accepted it, and would reset it.
                    accepted.append(listener.accept()[0])
        for server in self.servers:
            server.close()
        protocol = functools.partial(
            Connection,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        loop = asyncio.get_running_loop()
        for connection in accepted:
            await loop.connect_accepted_socket(protocol, connection)
        await super().shutdown(sockets)


def _answer(status, error, headers=None):
    return JSONResponse({"error": str(error)}, status, headers)


async def values_of(request):
    """Return the values of a request, a dict: query, and JSON object or form."""
    values = dict(request.query_params)
    kind = header(request, "content-type").partition(";")[0].strip().lower()
    body = await request.body()
    if kind in FORMS:
        form = await request.form(max_files=1, max_fields=1000, max_part_size=len(body))
        for name, value in form.multi_items():
            values.setdefault(name, value)
    elif body:
        if kind != "application/json":
            raise Refusal(
                415, f"expected a form or application/json. Received: {printable(kind)}"
            )
        values |= guard.json_object(body)
    return values


def checked(model, values):
    """Return the values of a request as a pydantic model; empty ones are left out."""
    given = {name: x for name, x in values.items() if x is not None and x != ""}
    try:
        return model.model_validate(given)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = first["loc"][0] if first["loc"] else "body"
        if first["type"] == "missing":
            raise Refusal(400, f"{field} is missing") from None
        raise Refusal(400, f"{field}: {guard.fault(error)}") from None


def described(model, *kinds, **content):
    """Return what `/spec` says of the body of a request."""
    schema = {"schema": model.model_json_schema()}
    return {
        "requestBody": {"content": {**dict.fromkeys(kinds, schema), **content}},
    }
