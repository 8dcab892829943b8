"""A REST server: limits, API keys and metrics.

The servers of both programs consist of routes; everything else is here.
"""

import asyncio
import collections
import contextlib
import functools
import hashlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl

import fastapi
import prometheus_client
import pydantic
import uvicorn
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from keras_attention_apps.common.cli import version
from keras_attention_apps.common.errors import printable
from keras_attention_apps.common.files import expanded, opened
from keras_attention_apps.common.litert import processors
from keras_attention_apps.common.web import guard
from keras_attention_apps.common.web.bodies import AGAIN, Bodies
from keras_attention_apps.common.web.fairness import Dropped, Gate, Job, Quota
from keras_attention_apps.common.web.guard import MEGABYTE, Refusal, header
from keras_attention_apps.common.web.server import (
    Connection,
    for_host,
    listening,
    network_of,
    run,
)

# Seconds after SIGTERM in which requests are still accepted: a load balancer, and
# clients with an open connection, learn meanwhile that the server ends.
ENDING_SECONDS = 1
# Seconds that accepted requests may then take.
GRACE_SECONDS = 60
# Seconds for which a thread may keep the interpreter from others.
SWITCH_SECONDS = 0.0005
# Maximum number of escaped bytes in a form, and of names and their like in JSON: they
# take longer to read than others.
MAX_MARKS = 100_000

HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
# Statuses of requests that fail: see `docs/rest.md`.
ERRORS = (400, 403, 408, 413, 415, 429, 500, 503)
JSON = "application/json"
URLENCODED = "application/x-www-form-urlencoded"
FORMS = (URLENCODED, "multipart/form-data")
# Fields of a form.
MAX_FIELDS = 1000


def serve(program, config, add_routes):
    """Answer requests, by routes that `add_routes` adds to a `Service`."""
    keys = read_keys(config.api_keys)
    warning = (
        "every computer that reaches this one can use the server: there is no API key. "
        "--api-keys asks for one"
        if keys is None
        else "API keys and all data are sent without encryption: see docs/rest.md"
    )
    # A thread that reads texts lets others go on soon.
    sys.setswitchinterval(SWITCH_SECONDS)
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
        )


def read_keys(path):
    """Return the set of the digests of the API keys in a file, or `None`."""
    if path is None:
        return None
    with opened(expanded(path)) as file:
        lines = [line.strip() for line in file]
    keys = [line for line in lines if line and not line.startswith(b"#")] or [b""]
    location = "every line of --api-keys"
    keys = [guard.checked_secret(key, "an API key", location, path) for key in keys]
    return {hashlib.sha256(key).digest() for key in keys}


class Error(pydantic.BaseModel):
    """The answer to a request that fails."""

    error: str


class Service:
    """The application of a REST server, to whose `routes` a program adds its own."""

    def __init__(self, program, config, keys=None):
        self.config = config
        self.program = program
        self._keys = keys
        self._pool = ThreadPoolExecutor(config.max_queue, thread_name_prefix="request")
        # More threads at a time would make all of them slower.
        self._gate = Gate(processors() + 1)
        self._bodies = Bodies(config.max_megabytes * MEGABYTE, config.max_queue)
        self._jobs: list[Job] = []
        self._quota = Quota(config.requests_per_minute, "requests")
        self._server = None
        self._define_metrics()
        self.routes = fastapi.FastAPI(
            title=program,
            version=version(),
            openapi_url="/spec",
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            exception_handlers={
                Refusal: lambda _, error: _answer(error.status, error, error.headers),
                HTTPException: lambda _, error: _answer(
                    error.status_code, error.detail, error.headers
                ),
                Exception: lambda *_: _failed(),
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
        waiting.set_function(lambda: len(self._jobs))
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
        return _ErrorsAsJson(application)

    def server(self, config):
        """Return the server that runs the application."""
        self._server = _Server(config)
        return self._server

    @property
    def is_ending(self):
        return self._server is not None and self._server.should_exit

    async def in_thread(self, request, function, *args, size=1):
        """Return the result of a function of an authorized request.

        The function runs when it is the client's turn, and `fairness.Batches` may be
        called in it. The request waits in one of the `max_queue` places. `size` is the
        amount of its work, such as its characters: if there is no place, the client
        with most work loses the one of its last request to a client with less.
        """
        job = Job(request.state.client, self._gate, size)
        self._admit(job)
        left = asyncio.ensure_future(_left(request))
        try:
            future = asyncio.wrap_future(self._pool.submit(job.run, function, *args))
            await asyncio.wait((future, left), return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                job.drop(guard.Left())
            return await future
        except Dropped:
            raise job.reason or guard.Left() from None
        finally:
            left.cancel()
            job.drop(guard.Left())
            self._jobs.remove(job)

    def _admit(self, job):
        """Give a job a place, which may be that of another one, or refuse it."""
        jobs = [x for x in self._jobs if not x.reason]
        if len(jobs) >= self.config.max_queue:
            refusal = Refusal(
                503,
                f"expected at most {self.config.max_queue} requests at a time: try "
                "again later",
                AGAIN,
            )
            work: collections.Counter = collections.Counter()
            for queued in jobs:
                work[queued.client] += queued.size
            ((client, largest),) = work.most_common(1)
            if work[job.client] + job.size >= largest:
                raise refusal
            [x for x in jobs if x.client == client][-1].drop(refusal)
        self._jobs.append(job)

    def authorize(self, request, key=None):
        """Refuse a request without an API key, or of a client with too many requests.

        The key is that in the header `Authorization: Bearer`, or else `key`.
        """
        client = self._client(request, key)
        self._quota.check(client, 1)
        self._quota.use(client)
        request.state.client = client

    def _client(self, request, key):
        """Return the digest of an API key or, without keys, the address."""
        if self._keys is None:
            return network_of(request.client.host) if request.client else ""
        key = _key_of(request) or key
        if not key:
            raise Refusal(403, "expected an API key. Received: none")
        digest = hashlib.sha256(str(key).encode("utf-8", "replace")).digest()
        if digest not in self._keys:
            raise Refusal(403, "invalid API key")
        return digest

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
        # Some clients add a slash.
        scope = {**scope, "path": scope["path"].removesuffix("/") or "/"}
        # Other paths would be any number of labels.
        known = {getattr(route, "path", None) for route in self.routes.routes}
        path = scope["path"] if scope["path"] in known else "other"

        async def send_counted(message):
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [*HEADERS, *[(b"connection", b"close")] * self.is_ending]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            if scope["method"] == "POST" and path != "other":
                self._check_head(scope)
                async with self._bodies.read(scope, receive) as content:
                    receive = guard.replayed(content, receive)
                    await self.routes(scope, receive, send_counted)
            else:
                await self.routes(scope, receive, send_counted)
        except Refusal as refusal:
            answer = _answer(refusal.status, refusal, refusal.headers)
            await answer(scope, receive, send_counted)
        finally:
            self._requests.labels(path, status).inc()
            self._seconds.labels(path).observe(time.perf_counter() - begin)

    def _check_head(self, scope):
        """Refuse a request before its body is read: its origin, key and quota."""
        allowed = {"*", header(scope, "origin")}.intersection(self.config.allow_origin)
        if guard.is_foreign(scope) and not allowed:
            raise Refusal(403, "requests of web pages need --allow-origin")
        request = fastapi.Request(scope)
        key, kind = request.query_params.get("api_key"), _kind(scope)
        may_follow = self._keys is not None and kind in (*FORMS, JSON)
        if key or _key_of(scope) or not may_follow:
            self._quota.check(self._client(request, key), 1)


class _ErrorsAsJson:
    """ASGI middleware that makes JSON of errors that others write as text."""

    def __init__(self, application):
        self._application = application

    async def __call__(self, scope, receive, send):
        start, has_begun = None, False

        async def send_json(message):
            nonlocal start, has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                is_json = header(message, "content-type").startswith(JSON)
                if message["status"] >= 400 and not is_json:
                    start = message
                    return
            elif start:
                error = message.get("body", b"").decode("utf-8", "replace")
                left_out = b"content-type", b"content-length"
                headers = [x for x in start["headers"] if x[0] not in left_out]
                answer = _answer(start["status"], error)
                answer.raw_headers += [*headers, *HEADERS]
                await answer(scope, receive, send)
                return
            await send(message)

        try:
            await self._application(scope, receive, send_json)
        except Exception:
            if not has_begun:
                await _failed()(scope, receive, send)
            # Uvicorn writes it into the log.
            raise


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


def _failed():
    return _answer(500, "the server failed: see its log")


async def _left(request):
    """Wait until the client of a request, whose body was read, has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _key_of(scope):
    """Return the API key in the headers of a request, or an empty string."""
    scheme, _, token = header(scope, "authorization").partition(" ")
    # A key is UTF-8, as in the file.
    token = token.strip().encode("latin-1").decode("utf-8", "replace")
    return token if scheme.lower() == "bearer" else ""


def _kind(scope):
    """Return the type of the body of a request."""
    return header(scope, "content-type").partition(";")[0].strip().lower()


async def values_of(request):
    """Return the values of a request, a dict: query, and JSON object or form."""
    values, kind = dict(request.query_params), _kind(request)
    body = await request.body()
    if kind == URLENCODED:
        return dict(_fields(body)) | values
    if kind in FORMS:
        form = await request.form(
            max_files=1, max_fields=MAX_FIELDS, max_part_size=len(body)
        )
        return dict(reversed(form.multi_items())) | values
    if body:
        if kind != JSON:
            raise Refusal(
                415, f"expected a form or {JSON}. Received: {printable(kind)}"
            )
        _check_marks(body, b":")
        values |= guard.json_object(body)
    return values


def _fields(body):
    """Return names and values of a form, the first ones of a name last.

    Starlette reads them a byte at a time.
    """
    _check_marks(body, b"%")
    try:
        text = body.decode("utf-8", "replace")
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise Refusal(400, f"expected at most {MAX_FIELDS} fields") from None
    return reversed(fields)


def _check_marks(body, mark):
    if body.count(mark) > MAX_MARKS:
        raise Refusal(413, f"expected at most {MAX_MARKS:,} of {mark.decode()!r}")


def model_of(name, fields):
    """Return the pydantic model of an output; maps, and what may lack, are optional."""
    entries: dict[str, Any] = {}
    for field in fields:
        if field.key:
            kind: Any = field.json_type or field.type
            default: Any = ...
            if field.is_map or field.is_optional:
                kind, default = kind | None, None
            described = pydantic.Field(default, description=field.text)
            entries[field.key] = kind, described
    return pydantic.create_model(name, **entries)


def checked(model, values):
    """Return the values of a request as a pydantic model; empty ones are left out."""
    non_empty = {name: x for name, x in values.items() if x is not None and x != ""}
    try:
        return model.model_validate(non_empty)
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
