"""The HTTP server: health, status, metrics, a dashboard, and control requests from authorized clients.

GET  /                      the dashboard; /assets/{name} are its scripts and styles
GET  /live                  200 while the server answers
GET  /health                200 {"status": "ok"}, with warnings if there are any, or 503 with the faults
GET  /status                the status of every component, as JSON
GET  /metrics               the same for Prometheus
GET  /metrics/history       throughput, lag and latency of the last hours
GET  /tables                the tables and their states
GET  /changes               changes in the log, with their rows
GET  /row                   the versions of one row
GET  /dead-letters          changes that destinations rejected
POST /shutdown              stop cleanly
POST /sinks/{name}/pause    pause a sink until it is resumed, also over restarts
POST /sinks/{name}/resume   resume a sink
POST /sinks/{name}/replay   deliver dead letters again
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tailrace.errors import ConfigError, GapError, SinkRefused, TailraceError
from tailrace.ops import prometheus
from tailrace.ops.http_connection import LimitedConnection
from tailrace.ops.metric_history import MetricHistory
from tailrace.ops.status import Overview
from tailrace.settings import HttpSettings, Secret
from tailrace.settings.address import is_loopback

if TYPE_CHECKING:
    # Capture imports this module and must stay light: the explorer loads the decoder, which loads a compiler.
    from tailrace.ops.explorer import Explorer

_log = logging.getLogger("tailrace.http")

Endpoint = Callable[[Request], Awaitable[Response]]

DEFAULT_PORT: Final = 9464

# These reveal nothing of what is captured, so they need no token: the page without its data, and what probes ask.
_OPEN_PATHS: Final = frozenset({"/", "/live", "/health"})
_ASSETS: Final = "/assets/"
_MEDIA_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}

# What proxies add to a request, in this or that fashion.
_FORWARDED: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")

# Requests that read the log wait for one another, and never for a thread that a probe needs.
_EXPLORER_THREADS: Final = 4
_HISTORY_SECONDS: Final = 3600.0
_MAX_HISTORY_SECONDS: Final = 86400.0

# How long a stop waits for open requests. A browser must not delay a clean stop.
_GRACE_SECONDS = 2
HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # The dashboard's scripts and styles are files of this server, and no text can become HTML or a script.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True)
class Service:
    """What the HTTP server exposes: the status of the components, and the control requests they accept."""

    overview: Callable[[], Overview]
    """Returns the full status, including source and log, which may take seconds to read."""
    local_overview: Callable[[], Overview]
    """Returns only what this process knows. `/health` uses it, so as not to wait for an unreachable source."""
    shutdown: Callable[[], None]
    sinks: Collection[str] = ()
    """The names of the sinks that can be paused and resumed."""
    pause: Callable[[str], None] | None = None
    resume: Callable[[str], None] | None = None
    history: MetricHistory | None = None
    explorer: Explorer | None = None
    """None: this process does not read the log for clients."""


def routes(service: Service) -> list[Route]:
    directory = files("tailrace.ops").joinpath("assets")
    page = directory.joinpath("index.html").read_text(encoding="utf-8")
    assets = {
        file.name: file.read_bytes() for file in directory.iterdir() if PurePath(file.name).suffix in _MEDIA_TYPES
    }

    async def index(request: Request) -> Response:  # noqa: ARG001
        return HTMLResponse(page, headers=HEADERS)

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in assets:
            return JSONResponse({"error": f"there is no asset {name}"}, 404, HEADERS)
        return Response(assets[name], headers=HEADERS, media_type=_MEDIA_TYPES[PurePath(name).suffix])

    async def live(request: Request) -> Response:  # noqa: ARG001
        return JSONResponse({"status": "ok"}, headers=HEADERS)

    async def health(request: Request) -> Response:
        overview = await run_in_threadpool(service.local_overview)
        content, code = health_report(overview, may_read=request.state.may_read)
        return JSONResponse(content, code, HEADERS)

    async def status(request: Request) -> Response:  # noqa: ARG001
        return JSONResponse((await run_in_threadpool(service.overview)).to_json(), headers=HEADERS)

    async def metrics(request: Request) -> Response:  # noqa: ARG001
        text = prometheus.render(await run_in_threadpool(service.overview))
        return PlainTextResponse(text, headers=HEADERS, media_type=prometheus.CONTENT_TYPE)

    async def history(request: Request) -> Response:
        text = request.query_params.get("seconds", str(_HISTORY_SECONDS))
        if not re.fullmatch(r"\d{1,6}(\.\d*)?", text) or not 0 < float(text) <= _MAX_HISTORY_SECONDS:
            return JSONResponse({"error": f"seconds is {text!r}", "hint": "give up to 86400"}, 400, HEADERS)
        if service.history is None:
            return JSONResponse({"error": "this process has no history of metrics"}, 404, HEADERS)
        return JSONResponse(service.history.to_json(float(text)), headers=HEADERS)

    async def control(request: Request) -> Response:
        name, verb = request.path_params["name"], request.path_params["verb"]
        act = {"pause": service.pause, "resume": service.resume}.get(verb)
        if act is None or name not in service.sinks:
            return JSONResponse({"error": f"cannot {verb} sink {name}: no such sink or action here"}, 404, HEADERS)
        try:
            await run_in_threadpool(act, name)
        except TailraceError as error:
            return error_response(error)
        _log.info("received an HTTP request to %s sink %s", verb, name)
        return JSONResponse({"status": f"{verb}d"}, headers=HEADERS)

    return [
        Route("/", index),
        Route(_ASSETS + "{name}", asset),
        Route("/live", live),
        Route("/health", health),
        Route("/status", status),
        Route("/metrics", metrics),
        Route("/metrics/history", history),
        *explorer_routes(service),
        shutdown_route(service),
        Route("/sinks/{name}/{verb:str}", control, methods=["POST"]),
    ]


def health_report(overview: Overview, *, may_read: bool) -> tuple[dict[str, Any], int]:
    """Return what `/health` says, and its HTTP status. A warning is no reason to restart anything.

    Args:
        overview: The status.
        may_read: Whether the client may read it; if not, it learns only how many faults and warnings there are.
    """
    found = {"faults": overview.faults, "warnings": overview.warnings}
    if not may_read:
        found = {kind: [f"{len(all_)}: a request with the token lists them"] for kind, all_ in found.items() if all_}
    content = {"status": "wrong" if overview.faults else "ok", **{kind: all_ for kind, all_ in found.items() if all_}}
    return content, 503 if overview.faults else 200


def explorer_routes(service: Service) -> list[Route]:
    threads = ThreadPoolExecutor(_EXPLORER_THREADS, "explorer")

    async def read(act: Callable[[Explorer], dict[str, Any]]) -> Response:
        if service.explorer is None:
            reason = "rows are not shown: [http] explorer is false, or this process only captures"
            return JSONResponse({"error": reason}, 404, HEADERS)
        try:
            found = await asyncio.get_running_loop().run_in_executor(threads, act, service.explorer)
            return JSONResponse(found, headers=HEADERS)
        except TailraceError as error:
            return error_response(error)

    def parameters(request: Request) -> Mapping[str, Sequence[str]]:
        return {name: request.query_params.getlist(name) for name in request.query_params}

    def rows(find: Callable[[Explorer, Mapping[str, Sequence[str]]], dict[str, Any]]) -> Endpoint:
        """An endpoint for clients that may see rows."""

        async def endpoint(request: Request) -> Response:
            if not request.state.may_see_rows:
                return unauthorized()
            return await read(lambda explorer: find(explorer, parameters(request)))

        return endpoint

    async def tables(request: Request) -> Response:  # noqa: ARG001
        return await read(lambda explorer: explorer.tables())

    async def replay(request: Request) -> Response:
        name, positions = request.path_params["name"], request.query_params.getlist("position")
        if name not in service.sinks:
            return JSONResponse({"error": f"there is no sink {name} here"}, 404, HEADERS)
        answer = await read(lambda explorer: {"replayed": explorer.replay(name, positions)})
        if answer.status_code == 200:
            _log.info("received an HTTP request to replay %d dead letters of sink %s", len(positions), name)
        return answer

    return [
        Route("/tables", tables),
        Route("/changes", rows(lambda explorer, given: explorer.changes(given))),
        Route("/row", rows(lambda explorer, given: explorer.row(given))),
        Route("/dead-letters", rows(lambda explorer, given: explorer.dead_letters(given))),
        Route("/sinks/{name}/replay", replay, methods=["POST"]),
    ]


def error_response(error: TailraceError) -> Response:
    """400 for a request that makes no sense, 404 for what a sink does not have, 503 for what may work later."""
    code = 400 if isinstance(error, ConfigError) else 404 if isinstance(error, SinkRefused | GapError) else 503
    return JSONResponse({"error": str(error), "hint": error.hint}, code, HEADERS)


def unauthorized() -> Response:
    reason = "this request needs the header Authorization: Bearer <token>, of the token in [http]"
    return JSONResponse({"error": reason}, 401, HEADERS | {"WWW-Authenticate": "Bearer"})


def shutdown_route(service: Service) -> Route:
    async def shutdown(request: Request) -> Response:  # noqa: ARG001
        _log.info("received an HTTP request to shut down")
        # In a thread: shutting down waits for sinks and capture, longer than a client would, and stops this server too.
        threading.Thread(target=service.shutdown, name="shutdown", daemon=True).start()
        return JSONResponse({"status": "stopping"}, 202, HEADERS)

    return Route("/shutdown", shutdown, methods=["POST"])


class _AccessControl:
    """Middleware that rejects unauthorized requests before the application sees them."""

    def __init__(
        self, app: ASGIApp, token: Secret | None, *, on_loopback: bool, trusts_local: bool, guards_reads: bool
    ) -> None:
        self._app = app
        self._token = token
        self._on_loopback = on_loopback
        self._trusts_local = trusts_local
        self._guards_reads = guards_reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            peer = request.client.host if request.client is not None else ""
            is_local = is_loopback(peer) and is_loopback(_host_of(f"//{request.headers.get('host', '')}"))
            # Behind a proxy everybody is local.
            is_forwarded = any(name in request.headers for name in _FORWARDED)
            needs_none = self._token is None or (self._trusts_local and is_local)
            is_authorized = (needs_none and not is_forwarded) or _has(request, self._token)
            may_read = is_authorized or not self._guards_reads or (self._on_loopback and not is_forwarded)
            path = scope["path"]
            is_open = path in _OPEN_PATHS or path.startswith(_ASSETS)
            rejected = rejection(
                request.method,
                request.headers,
                is_authorized=may_read or is_open if is_read(request.method) else is_authorized,
                on_loopback=self._on_loopback,
            )
            if rejected is not None:
                code, reason = rejected
                answer = unauthorized() if code == 401 else JSONResponse({"error": reason}, code, HEADERS)
                await answer(scope, receive, send)
                return
            request.state.may_read = may_read
            request.state.may_see_rows = is_authorized
        await self._app(scope, receive, send)


def is_read(method: str) -> bool:
    return method in ("GET", "HEAD")


def rejection(
    method: str, headers: Mapping[str, str], *, is_authorized: bool, on_loopback: bool
) -> tuple[int, str] | None:
    """Return the HTTP status and the reason if a request must be rejected, else None. Header names are in lower case.

    A request from this machine is not trustworthy by itself: any web page open in a local browser can send requests to
    loopback. With a DNS name that resolves to 127.0.0.1 it can even read the responses.
    """
    host = headers.get("host", "")
    if on_loopback and not is_loopback(_host_of(f"//{host}")):
        return 403, f"this server accepts only loopback names in the Host header, not {host or 'a request without one'}"
    if not is_read(method):
        origin = headers.get("origin")
        is_cross_origin = origin is not None and origin.partition("://")[2] != host
        if is_cross_origin or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "cross-origin requests are not allowed"
    if not is_authorized:
        return 401, "the token is missing"
    return None


def _has(request: Request, token: Secret | None) -> bool:
    if token is None:
        return False
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    # Headers are bytes, which are read as Latin-1.
    given = credentials.strip().encode("latin-1")
    return scheme.lower() == "bearer" and hmac.compare_digest(given, token.reveal().encode())


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


class HttpServer:
    """Serves in a thread until the context exits."""

    def __init__(
        self,
        settings: HttpSettings,
        routes: Sequence[Route],
        port: int | None = None,
        *,
        trusts_local: bool = False,
        guards_reads: bool = True,
    ) -> None:
        """Bind the port at once, so that a port that is in use is reported before anything starts.

        `port` overrides the port in the settings; without either, any free port is used. With `trusts_local`, requests
        from this machine that use a loopback name need no token. Without `guards_reads`, no read needs one.
        """
        self._socket = listen(settings.host, port if port is not None else settings.port or 0, settings)
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        app = _AccessControl(
            Starlette(routes=routes),
            settings.token or None,
            on_loopback=is_loopback(host),
            trusts_local=trusts_local,
            guards_reads=guards_reads,
        )
        options: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "lifespan": "off"}
        self._server = uvicorn.Server(
            uvicorn.Config(app, http=LimitedConnection, ws="none", timeout_graceful_shutdown=_GRACE_SECONDS, **options)
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        _log.info("serving %s", self.url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@contextlib.contextmanager
def serve(
    http: HttpSettings, service: Service, ports: Collection[int | None], *, guards_reads: bool = True
) -> Iterator[None]:
    """Serve `service` on all of `ports` until the context exits. None is the port in the settings.

    Without `guards_reads`, the status and the metrics need no token. Rows still do.
    """
    with contextlib.ExitStack() as stack:
        # Bind all ports before serving on any of them.
        servers = [HttpServer(http, routes(service), port, guards_reads=guards_reads) for port in ports]
        if service.history is not None:
            stack.enter_context(service.history)
        for server in servers:
            stack.enter_context(server)
        yield


def listen(host: str, port: int, settings: HttpSettings) -> socket.socket:
    if not is_loopback(host) and not settings.token:
        raise ConfigError(
            f"http.host is {host}: anyone who can reach it could read the status and shut Tailrace down",
            "set a token (TAILRACE_HTTP_TOKEN), or host = 127.0.0.1",
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"http.host is {host}: {error.strerror}", "use an address of this machine") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            "set another [http] port (or TAILRACE_HTTP_PORT), or 0 to disable HTTP",
        ) from None
    return listener
