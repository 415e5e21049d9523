"""Reads small segments in parallel, before a search from newer to older segments reaches them.

A log that was not compacted yet has thousands of objects of a few KB. Read one after the other, each costs two round
trips to the store. Small objects are read whole, so that headers and contents are in the reader's cache
afterwards. Large ones are left to the search, which may not need them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from tailrace.errors import GapError
from tailrace.log.reader import LogReader
from tailrace.log.segment import Header

_WINDOW: Final = 64
"""Segments to read at a time: enough to keep all requests busy, few enough for a search that ends soon."""
_WINDOW_BYTES: Final = 1 << 20
"""Of the objects, compressed. Less than what the reader's cache holds."""
_REQUESTS: Final = 16
"""At a time. A request takes milliseconds, on object stores tens of them."""


class ReadAhead:
    """Reads ahead of a search, from one segment down to another, as long as the context lasts."""

    def __init__(
        self, reader: LogReader, last: int, may_match: Callable[[Header], bool], *, headers_first: bool
    ) -> None:
        """Read ahead.

        Args:
            reader: The log, whose cache is filled.
            last: The lowest id.
            may_match: Whether the search will need the content of a segment.
            headers_first: Whether many headers are expected to say that it will not, so that they are worth a request.
        """
        self._reader = reader
        self._last = last
        self._may_match = may_match
        self._headers_first = headers_first
        self._read_to: int | None = None
        self._pool = ThreadPoolExecutor(_REQUESTS, "read-ahead")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def reach(self, id: int) -> None:
        """The search has come to a segment."""
        if self._read_to is not None and id >= self._read_to:
            return
        ids: list[int] = []
        bytes_ = 0
        for each in range(id, max(id - _WINDOW, self._last - 1), -1):
            self._read_to = each
            size = self._reader.small_object_bytes(each)
            known = self._reader.known_header(each)
            if size is None or (known is not None and not self._may_match(known)):
                continue
            ids.append(each)
            bytes_ += size
            if bytes_ > _WINDOW_BYTES:
                break
        if len(ids) > 1:
            list(self._pool.map(self._read, ids))

    def _read(self, id: int) -> None:
        try:
            header = self._reader.header(id) if self._headers_first else None
            if header is None or self._may_match(header):
                self._reader.content(id)
        except GapError:
            pass  # retention removed it since the listing, which the search finds too
