"""The bridge's HTTP API, with its own paths and names.

GET  /health                     200 {"status": "ok"} while it runs, because a transient fault is no reason to kill it;
                                 with faults and warnings, if there are any
GET  /status                     the bridge's status
GET  /metrics                    the same for Prometheus, and Tailrace's own metrics
GET  /streams/info?stream=CDC    JetStream's information about a stream
POST /shutdown                   stop cleanly
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tailrace.bridge.bridge_environment import STREAMS
from tailrace.bridge.status import BridgeStatus
from tailrace.ops import prometheus
from tailrace.ops.http import HEADERS, Service, health_report, shutdown_route
from tailrace.ops.status import Overview

if TYPE_CHECKING:
    from tailrace.bridge.stream_info import StreamInfo


def routes(service: Service, bridge_status: Callable[[Overview], BridgeStatus], streams: StreamInfo) -> list[Route]:
    async def health(request: Request) -> Response:
        overview = await run_in_threadpool(service.local_overview)
        report, _ = health_report(overview, may_read=request.state.may_read)
        return JSONResponse(report | {"status": "ok"}, headers=HEADERS)

    async def status(request: Request) -> Response:  # noqa: ARG001
        overview = await run_in_threadpool(service.overview)
        return JSONResponse(bridge_status(overview).to_json(), headers=HEADERS)

    async def metrics(request: Request) -> Response:  # noqa: ARG001
        overview = await run_in_threadpool(service.overview)
        text = bridge_status(overview).to_prometheus() + prometheus.render(overview)
        return PlainTextResponse(text, headers=HEADERS, media_type=prometheus.CONTENT_TYPE)

    async def stream(request: Request) -> Response:
        info = await run_in_threadpool(streams.get, request.query_params.get("stream", STREAMS[0]))
        return JSONResponse(info, info["error"]["code"] if "error" in info else 200, HEADERS)

    return [
        Route("/health", health),
        Route("/status", status),
        Route("/metrics", metrics),
        Route("/streams/info", stream),
        shutdown_route(service),
    ]
