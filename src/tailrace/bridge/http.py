"""The bridge's HTTP, with its own paths and names.

GET  /health                     200 {"status": "ok"} while it runs: what passes by itself is no reason to kill it
GET  /status                     its figures
GET  /metrics                    the same for Prometheus, and Tailrace's own
GET  /streams/info?stream=CDC    what the server says of a stream
POST /shutdown                   a clean stop
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tailrace.bridge.environment import STREAMS
from tailrace.bridge.figures import Figures
from tailrace.ops import metrics
from tailrace.ops.http import HEADERS, Subject, shutdown
from tailrace.ops.status import Overview

if TYPE_CHECKING:
    from tailrace.bridge.streams import Streams


def routes(subject: Subject, figures: Callable[[Overview], Figures], streams: Streams) -> list[Route]:
    async def health(request: Request) -> Response:  # noqa: ARG001
        return JSONResponse({"status": "ok"}, headers=HEADERS)

    async def status(request: Request) -> Response:  # noqa: ARG001
        overview = await run_in_threadpool(subject.overview)
        return JSONResponse(figures(overview).status(), headers=HEADERS)

    async def prometheus(request: Request) -> Response:  # noqa: ARG001
        overview = await run_in_threadpool(subject.overview)
        text = figures(overview).metrics() + metrics.text(overview)
        return PlainTextResponse(text, headers=HEADERS, media_type=metrics.CONTENT_TYPE)

    async def stream(request: Request) -> Response:
        found = await run_in_threadpool(streams.info, request.query_params.get("stream", STREAMS[0]))
        return JSONResponse(found, found["error"]["code"] if "error" in found else 200, HEADERS)

    return [
        Route("/health", health),
        Route("/status", status),
        Route("/metrics", prometheus),
        Route("/streams/info", stream),
        shutdown(subject),
    ]
