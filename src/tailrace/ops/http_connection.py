"""A connection to the HTTP server: there is a limit to how many there are, and to how long each takes.

Whoever may connect could otherwise use up the file descriptors of the process, which captures or delivers with them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS: Final = 200
"""A tenth of them serves a page, its charts and a few probes. Many processes have 1,024 file descriptors."""
EXCHANGE_S: Final = 60.0
"""From the connection, or the previous answer, to the end of the answer. No answer takes a tenth of that."""


class LimitedConnection(H11Protocol):
    """Beyond the limit, the connection that has waited longest without a request gives way: probes get through."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._end = self.loop.call_later(EXCHANGE_S, transport.abort)
        others = [c for c in self.connections if isinstance(c, LimitedConnection) and not c.transport.is_closing()]
        if len(others) > MOST_CONNECTIONS:
            waiting = [c for c in others if c.is_waiting]  # this one is among them
            min(waiting, key=lambda c: c._since).transport.abort()

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._end.cancel()
        self._since = self.loop.time()
        self._end = self.loop.call_later(EXCHANGE_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        super().connection_lost(exc)
