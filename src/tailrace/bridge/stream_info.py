"""JetStream's information about the bridge's streams, cached for HTTP clients."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tailrace.bridge.bridge_environment import STREAMS
from tailrace.errors import TailraceError
from tailrace.ops.cache import BackgroundCache
from tailrace.sinks.nats.client import NatsClient
from tailrace.sinks.nats.options import NatsOptions

_REFRESH_S: Final = 1.0
"""At most one request a second to the NATS server, however many HTTP clients there are."""


class StreamInfo:
    def __init__(self, options: NatsOptions, name: str) -> None:
        self._options = options
        self._name = f"{name} HTTP"
        self._caches = {stream: BackgroundCache(partial(self._request, stream), _REFRESH_S) for stream in STREAMS}

    def get(self, stream: str) -> dict[str, Any]:
        """Return JetStream's answer. An error has a `code`, which is an HTTP status."""
        if stream not in self._caches:
            return _error(404, f"no such stream; known streams: {', '.join(STREAMS)}")
        return self._caches[stream].get() or _error(503, "the NATS server does not respond")

    def _request(self, stream: str) -> dict[str, Any]:
        try:
            wire = NatsClient(self._options, self._name)
            try:
                return wire.request(f"$JS.API.STREAM.INFO.{stream}")
            finally:
                wire.close()
        except TailraceError as error:
            return _error(503, str(error))


def _error(code: int, description: str) -> dict[str, Any]:
    return {"error": {"code": code, "description": description}}
