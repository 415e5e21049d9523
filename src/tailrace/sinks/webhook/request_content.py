"""What a request says: its id, headers and content, from one message or several. Without I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tailrace.sinks.messages.cloudevents_envelope import CONTENT_TYPE
from tailrace.sinks.messages.message import OutgoingMessages, position_headers
from tailrace.sinks.messages.payload_encoding import ENCODINGS
from tailrace.sinks.messages.row_envelope import OPERATION, UNCHANGED
from tailrace.sinks.webhook.request_envelope import METHOD, REQUEST_HEADER, escape_header

_CLOUDEVENTS_BATCH: Final = "application/cloudevents-batch+json; charset=UTF-8"
_DIGEST_BYTES: Final = 12


@dataclass(frozen=True)
class RequestContent:
    id: str
    """The same whenever these changes are sent together, and different for any others."""
    method: str
    path: str
    """Of the template: percent-encoded, to be appended to the URL's."""
    headers: Mapping[str, str]
    content: bytes
    """Before compression."""


@dataclass(frozen=True)
class ContentFormat:
    envelope: str
    encoding: str
    is_batch: bool
    """Whether the content is an array, also if it has one element."""


class RequestMaker:
    """Makes requests of messages. Threads may share it."""

    def __init__(self, messages: OutgoingMessages, form: ContentFormat) -> None:
        self._format = form
        self._encoding = ENCODINGS[form.encoding]
        headers = messages.headers
        self.ids: list[str] = messages.ids.to_pylist()
        self._messages = messages
        self._paths = messages.destinations.to_pylist()
        self._methods = headers[METHOD].to_pylist()
        self._values = messages.values.to_pylist()
        self._keys = [None] * len(messages) if messages.keys is None else messages.keys.to_pylist()
        self._request_headers = {
            name.removeprefix(REQUEST_HEADER): values.to_pylist()
            for name, values in headers.items()
            if name.startswith(REQUEST_HEADER)
        }
        own = {name: values for name, values in headers.items() if not name.startswith(":")}
        self._message_headers: dict[str, list[str | None]] = (
            _lists(own) if form.is_batch else _lists({**position_headers(messages.at), **own})
        )

    def position(self, row: int) -> str:
        return str(self._messages.at.position(row))

    def make(self, rows: Sequence[int]) -> RequestContent:
        """Return the request for some messages, which share their destination."""
        first = rows[0]
        own = {name: values[first] for name, values in self._request_headers.items()}
        headers = {name: value for name, value in own.items() if value is not None}
        if self._format.is_batch:
            is_event = self._format.envelope == "cloudevents"
            content_type = _CLOUDEVENTS_BATCH if is_event else self._encoding.content_type
            content = self._encoding.single_array(list(self._elements(rows)))
            id = self._batch_id(rows)
        else:
            sent = dict(self._headers_of(first))
            content_type = sent.pop(CONTENT_TYPE, self._encoding.content_type)
            headers = {**{name.lower(): escape_header(value) for name, value in sent.items()}, **headers}
            content, id = self._single(first), self.ids[first]
        return RequestContent(
            id, self._methods[first], self._paths[first], {CONTENT_TYPE: content_type, **headers}, content
        )

    def _single(self, row: int) -> bytes:
        """Return the content of one message. Of a deleted row alone there is nothing left but the key."""
        value: bytes | None = self._values[row]
        if value is None:
            value = self._keys[row] if self._format.envelope == "row" else None
        return value or b""

    def _elements(self, rows: Sequence[int]) -> Iterator[bytes]:
        for row in rows:
            yield self._row_element(row) if self._format.envelope == "row" else self._values[row]

    def _row_element(self, row: int) -> bytes:
        """Return a row with what its headers would say if it were sent alone."""
        encoding, headers = self._encoding, dict(self._headers_of(row))
        null = encoding.encode(None)
        fields = [
            ("id", encoding.text(self.ids[row])),
            ("operation", encoding.text(headers[OPERATION])),
            ("key", self._keys[row] or null),
            ("row", self._values[row] or null),
        ]
        if UNCHANGED in headers:
            fields.append(("unchanged", encoding.encode(json.loads(headers[UNCHANGED]))))
        return encoding.single_map(fields)

    def _headers_of(self, row: int) -> Iterator[tuple[str, str]]:
        for name, values in self._message_headers.items():
            if (value := values[row]) is not None:
                yield name, value

    def _batch_id(self, rows: Sequence[int]) -> str:
        """Return the first change's id, the number of changes, and a digest of all ids: after a restart, requests may
        be cut differently, and a request with other changes must have another id."""
        ids = [self.ids[row] for row in rows]
        digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()[: 2 * _DIGEST_BYTES]
        return f"{ids[0]}+{len(ids)}-{digest}"


def _lists(columns: Mapping[str, pa.Array]) -> dict[str, list[str | None]]:
    return {name: values.to_pylist() for name, values in columns.items()}
