"""What the NATS server says of the bridge's streams, for whoever asks over HTTP."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tailrace.bridge.environment import STREAMS
from tailrace.errors import TailraceError
from tailrace.ops.observing import Fresh
from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.wire import Wire

_EVERY_S: Final = 1.0
"""Anybody may ask: not every question becomes one to the server."""


class Streams:
    def __init__(self, options: NatsOptions, name: str) -> None:
        self._options = options
        self._name = f"{name} HTTP"
        self._known = {stream: Fresh(partial(self._ask, stream), _EVERY_S) for stream in STREAMS}

    def info(self, stream: str) -> dict[str, Any]:
        """As JetStream has it; an error has a code, as those of HTTP are."""
        if stream not in self._known:
            return _error(404, f"there is {', '.join(STREAMS)}")
        return self._known[stream].get() or _error(503, "the NATS server does not answer")

    def _ask(self, stream: str) -> dict[str, Any]:
        try:
            wire = Wire(self._options, self._name)
            try:
                return wire.ask(f"$JS.API.STREAM.INFO.{stream}")
            finally:
                wire.close()
        except TailraceError as error:
            return _error(503, str(error))


def _error(code: int, words: str) -> dict[str, Any]:
    return {"error": {"code": code, "description": words}}
