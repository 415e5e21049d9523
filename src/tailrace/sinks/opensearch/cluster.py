"""Requests to a cluster: any of its nodes, JSON, and what a rejection means."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from tailrace import stored_json
from tailrace.errors import SinkError, SinkRefused, TailraceError
from tailrace.http.client import HttpAnswer, HttpClient, NoConnection
from tailrace.retry import Backoff
from tailrace.sinks.opensearch.options import OpenSearchOptions

_MOST_BODY_BYTES: Final = 1 << 30
"""The largest answer: a page of documents, each of which may have many megabytes."""
_JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
_BUSY: Final = (429, 502, 503, 504)
_MOST_ATTEMPTS: Final = 8
"""With the growing pauses, a busy cluster gets about half a minute. Then delivery retries the step, forever."""

Json = dict[str, Any]


@dataclass(frozen=True)
class ClusterAnswer:
    status: int
    text: str

    def json(self) -> Any:
        try:
            return stored_json.parse(self.text)
        except ValueError:
            raise SinkError("the cluster's answer is not JSON", "Retrying. Is a proxy in between?") from None

    @property
    def error(self) -> str:
        """The type of the error. Its reason is never shown: it may quote values."""
        try:
            found = stored_json.parse(self.text).get("error")
        except (ValueError, AttributeError):
            return ""
        return str(found.get("type", "")) if isinstance(found, dict) else ""


class Cluster:
    """One connection to a cluster. One thread uses it at a time."""

    def __init__(self, options: OpenSearchOptions) -> None:
        self._options = options
        self._clients = [
            HttpClient(node.origin, options.tls, allow_private=True, most_body_bytes=_MOST_BODY_BYTES)
            for node in options.nodes
        ]
        self._current = 0

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def ask(
        self,
        method: str,
        path: tuple[str, ...],
        parameters: Mapping[str, object] | None = None,
        body: Any = None,
        *,
        expected: tuple[int, ...] = (),
        content_type: str = _JSON,
    ) -> ClusterAnswer:
        """Send a request, again while the cluster is busy, and return the answer.

        Args:
            method: Such as PUT.
            path: The parts of the path, which are quoted.
            parameters: The query.
            body: An object to send as JSON, or bytes.
            expected: Statuses beside 2xx that the caller handles.
            content_type: The body's.

        Raises a SinkError if no node answers or the cluster stays busy, and a SinkRefused if it rejects the request.
        """
        target = "/" + "/".join(quote(part, safe="~*,") for part in path)
        if parameters:
            target += "?" + urlencode({name: _text(value) for name, value in parameters.items()})
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        )
        backoff = Backoff(longest=5.0)
        while True:
            answer = self._exchange(method, target, data, content_type)
            if 200 <= answer.status < 300 or answer.status in expected:
                return answer
            if answer.status not in _BUSY or backoff.failures >= _MOST_ATTEMPTS:
                raise rejection(f"{method} {target.partition('?')[0]}", answer.status, answer.error)
            time.sleep(backoff.next())

    def _exchange(self, method: str, target: str, body: bytes, content_type: str) -> ClusterAnswer:
        headers = {"accept": _JSON}
        if body:
            headers["content-type"] = content_type
        if (authorization := self._options.authorization) is not None:
            headers["authorization"] = authorization
        answer = self._answer(method, target, headers, body)
        if not answer.is_whole:
            raise SinkError("the cluster's answer is incomplete", "Retrying.")
        return ClusterAnswer(answer.status, answer.body.decode(errors="surrogateescape"))

    def _answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Ask the node that answered last; if it cannot be reached, the others."""
        error: NoConnection | None = None
        for _ in self._clients:
            node = self._options.nodes[self._current]
            try:
                return self._clients[self._current].exchange(
                    method, node.path.rstrip("/") + target, headers, body, self._options.timeout_s
                )
            except NoConnection as failure:
                error = failure
                self._current = (self._current + 1) % len(self._clients)
        assert error is not None
        raise error


def rejection(what: str, status: int, error: str) -> TailraceError:
    """Return the error for a request or an item that was rejected, though not for its content."""
    shown = f"{what}: the cluster answers {status}" + (f", {error}" if error else "")
    match status:
        case 401:
            return SinkRefused(shown, "Set user and password, api_key or bearer to those of a user of the cluster.")
        case 403 if "block" in error:
            return SinkError(shown, "Is the cluster's disk full? It then makes indices read-only. Retrying.")
        case 403:
            return SinkRefused(shown, "`tailrace check` lists the rights that the sink needs.")
        case 404:
            return SinkError(
                shown, "An index of the sink is missing: somebody removed it. Opening the sink again loads it."
            )
        case _ if status in _BUSY or status >= 500:
            return SinkError(shown, "Retrying until the cluster accepts requests.")
    return SinkRefused(shown, "`tailrace check` inspects the cluster; its log has the reason.")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
