"""What is served over HTTP: health, status, metrics, a page for people; and control, for whoever may.

GET  /                      the page
GET  /health                200 {"status": "ok"}, or 503 with what is wrong
GET  /status                everything, as JSON
GET  /metrics               the same for Prometheus
POST /shutdown              a clean stop
POST /sinks/{name}/pause    until it is resumed, also over restarts
POST /sinks/{name}/resume
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tailrace.errors import ConfigError, TailraceError
from tailrace.ops import metrics
from tailrace.ops.status import Overview
from tailrace.settings import Http, Secret

_log = logging.getLogger("tailrace.http")

DEFAULT_PORT: Final = 9464

# Requests under way when it stops; nobody's clean stop waits for a browser.
_GRACE_SECONDS = 2
HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # The page needs its own style and script, and asks nobody but us.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


@dataclass(frozen=True)
class Subject:
    """What is told about, and what may be done to it."""

    overview: Callable[[], Overview]
    """All, also what has to be asked for elsewhere."""
    condition: Callable[[], Overview]
    """Only what is known at once: health must not wait for a source that is away."""
    shutdown: Callable[[], None]
    sinks: Collection[str] = ()
    pause: Callable[[str], None] | None = None
    resume: Callable[[str], None] | None = None


def routes(subject: Subject) -> list[Route]:
    page = files("tailrace.ops").joinpath("page.html").read_text(encoding="utf-8")

    async def index(request: Request) -> Response:  # noqa: ARG001
        return HTMLResponse(page, headers=HEADERS)

    async def health(request: Request) -> Response:  # noqa: ARG001
        faults = (await run_in_threadpool(subject.condition)).faults
        if faults:
            return JSONResponse({"status": "wrong", "faults": faults}, 503, HEADERS)
        return JSONResponse({"status": "ok"}, headers=HEADERS)

    async def status(request: Request) -> Response:  # noqa: ARG001
        return JSONResponse((await run_in_threadpool(subject.overview)).to_json(), headers=HEADERS)

    async def prometheus(request: Request) -> Response:  # noqa: ARG001
        text = metrics.text(await run_in_threadpool(subject.overview))
        return PlainTextResponse(text, headers=HEADERS, media_type=metrics.CONTENT_TYPE)

    async def control(request: Request) -> Response:
        name, verb = request.path_params["name"], request.path_params["verb"]
        act = {"pause": subject.pause, "resume": subject.resume}.get(verb)
        if act is None or name not in subject.sinks:
            return JSONResponse({"error": f"there is no sink {name} to {verb} here"}, 404, HEADERS)
        try:
            await run_in_threadpool(act, name)
        except TailraceError as error:
            return JSONResponse({"error": str(error), "hint": error.hint}, 503, HEADERS)
        _log.info("asked over HTTP to %s sink %s", verb, name)
        return JSONResponse({"status": f"{verb}d"}, headers=HEADERS)

    return [
        Route("/", index),
        Route("/health", health),
        Route("/status", status),
        Route("/metrics", prometheus),
        shutdown(subject),
        Route("/sinks/{name}/{verb:str}", control, methods=["POST"]),
    ]


def shutdown(subject: Subject) -> Route:
    async def answer(request: Request) -> Response:  # noqa: ARG001
        _log.info("asked over HTTP to shut down")
        # It waits for sinks and capture, longer than whoever asked; and this server is part of what ends.
        threading.Thread(target=subject.shutdown, name="shutdown", daemon=True).start()
        return JSONResponse({"status": "stopping"}, 202, HEADERS)

    return Route("/shutdown", answer, methods=["POST"])


class _Guarded:
    """Refuses before anything else looks at the request."""

    def __init__(self, app: ASGIApp, token: Secret | None, *, on_loopback: bool, trusts_local: bool) -> None:
        self._app = app
        self._token = token
        self._on_loopback = on_loopback
        self._trusts_local = trusts_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            peer = request.client.host if request.client is not None else ""
            is_local = is_loopback(peer) and is_loopback(_host_of(f"//{request.headers.get('host', '')}"))
            token = None if self._trusts_local and is_local else self._token
            refused = refusal(request.method, request.headers, token, on_loopback=self._on_loopback)
            if refused is not None:
                code, reason = refused
                extra = {"WWW-Authenticate": "Bearer"} if code == 401 else {}
                await JSONResponse({"error": reason}, code, HEADERS | extra)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def refusal(
    method: str, headers: Mapping[str, str], token: Secret | None, *, on_loopback: bool
) -> tuple[int, str] | None:
    """Why a request is not served, if it is not. Header names are in lower case.

    Being on this machine is no proof of good will: a page from anywhere, open in a browser here, can send requests to
    loopback, and by a name of its own that leads to 127.0.0.1 even read the answers.
    """
    host = headers.get("host", "")
    if on_loopback and not is_loopback(_host_of(f"//{host}")):
        return 403, f"this server is for loopback, not for {host or 'a request without Host'}"
    if method in ("GET", "HEAD"):
        return None
    origin = headers.get("origin")
    is_foreign = origin is not None and origin.partition("://")[2] != host
    if is_foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return 403, "requests from pages of another origin are not taken"
    if token is not None:
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), token.reveal().encode()):
            return 401, "control calls need the header Authorization: Bearer <token>"
    return None


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Server:
    """Serves in a thread while its context lasts."""

    def __init__(
        self, settings: Http, routes: Sequence[Route], port: int | None = None, *, trusts_local: bool = False
    ) -> None:
        """Takes the port at once, so that whoever cannot have it learns so before anything starts. Unset: the one of
        the settings, or any. `trusts_local`: who is on this machine, and calls it so, needs no token."""
        self._socket = listen(settings.host, port if port is not None else settings.port or 0, settings)
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        app = _Guarded(
            Starlette(routes=routes), settings.token or None, on_loopback=is_loopback(host), trusts_local=trusts_local
        )
        options: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "lifespan": "off"}
        self._server = uvicorn.Server(
            uvicorn.Config(app, http="h11", ws="none", timeout_graceful_shutdown=_GRACE_SECONDS, **options)
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


def listen(host: str, port: int, settings: Http) -> socket.socket:
    if not is_loopback(host) and not settings.token:
        raise ConfigError(
            f"http.host is {host}: whoever reaches it could shut Tailrace down",
            "set a token (TAILRACE_HTTP_TOKEN) that control calls must carry, or host = 127.0.0.1",
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"http.host is {host}: {error.strerror}", "name an address of this machine") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{host}:{port} cannot be listened on: {error.strerror}",
            "set another [http] port (or TAILRACE_HTTP_PORT), or 0 for none",
        ) from None
    return listener
