"""Messages as records of a producer, made column by column: a call of `as_py` for each value takes twice as long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log.segment import payload_buffers
from tailrace.sinks.messages.message import POSITION, OutgoingMessages

Header = tuple[str, "str | bytes | None"]
Record = tuple[str, bytes | None, bytes | None, list[Header]]
"""Topic, value, key and headers."""

_RECORD_OVERHEAD: Final = 128
"""More than Kafka adds to key, value and headers: the head of a batch of one record, and lengths."""
_HEADER_OVERHEAD: Final = 10


def records(messages: OutgoingMessages) -> Iterator[Record]:
    """Yield the messages, which have all their headers."""
    distinct = messages.destinations.dictionary_encode()
    names = distinct.dictionary.to_pylist()
    topics = [names[index] for index in distinct.indices.to_numpy().tolist()]
    keys = [None] * len(messages) if messages.keys is None else _bytes(messages.keys)
    columns = [_headers(name, values) for name, values in messages.headers.items()]
    rows = zip(topics, _bytes(messages.values), keys, *columns, strict=True)
    if any(values.null_count for values in messages.headers.values()):
        for topic, value, key, *headers in rows:
            yield topic, value, key, [header for header in headers if header is not None]
    else:
        for topic, value, key, *headers in rows:
            yield topic, value, key, headers


def record_sizes(messages: OutgoingMessages) -> npt.NDArray[np.int64]:
    """Return the size of each record, rounded up."""
    total = np.full(len(messages), _RECORD_OVERHEAD, np.int64)
    columns = [messages.values, *([] if messages.keys is None else [messages.keys]), *messages.headers.values()]
    for column in columns:
        total += pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return total + sum(len(name) + _HEADER_OVERHEAD for name in messages.headers)


def _headers(name: str, values: pa.Array) -> Sequence[Any]:
    """Return name and value for each row; None where a row lacks the header."""
    if name == POSITION:
        return [(name, value) for value in _bytes(values)]
    # The other headers are the same for many rows.
    distinct = values.dictionary_encode()
    pairs = [*((name, value) for value in _bytes(distinct.dictionary)), None]
    return [pairs[index] for index in pc.fill_null(distinct.indices, len(pairs) - 1).to_numpy().tolist()]


def _bytes(values: pa.Array) -> list[Any]:
    """Return the values of a column of texts or bytes as bytes; None where a value is NULL."""
    offsets, data = payload_buffers(values.cast(pa.binary()))
    whole = bytes(data)
    found: list[Any] = [whole[start:end] for start, end in pairwise(offsets.tolist())]
    if values.null_count:
        for row in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)):
            found[row] = None
    return found
