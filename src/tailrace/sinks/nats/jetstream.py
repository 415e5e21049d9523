"""JetStream streams: creating and checking them, and finding the messages that a sink has published."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tailrace.change import Position
from tailrace.errors import SinkError, SinkRefused
from tailrace.sinks.messages.message import POSITION
from tailrace.sinks.nats import message_batch
from tailrace.sinks.nats.client import NatsClient, parse_headers
from tailrace.sinks.nats.message_batch import MessagePosition, Sender

NO_STREAM: Final = 10059
_NO_MESSAGE: Final = 10037
_MAX_REQUESTS: Final = 256
_MAX_UNREAD_BYTES: Final = 16 << 20
"""Limits the messages requested at once. The server disconnects clients with more than 64 MB of unread data."""
_DUPLICATE_WINDOW_S: Final = 120
"""The server's default. The window may not exceed the retention of messages."""
_DEFAULTS: Final[Mapping[str, Any]] = {
    "retention": "limits",
    "storage": "file",
    "discard": "old",
    "num_replicas": 1,
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
}


@dataclass(frozen=True)
class StreamTail:
    """The end of a stream, and which of the sink's messages the stream holds."""

    last_sequence: int
    complete_to: MessagePosition | None
    """The stream holds all of the sink's messages up to this one. None: unknown."""
    beyond_gaps: frozenset[MessagePosition] = frozenset()
    """The sink's later messages. There are gaps between them if the server rejected individual messages."""
    max_message_bytes: int = -1
    """The stream's own limit on the size of a message; -1: none."""

    @property
    def has_gaps(self) -> bool:
        """Whether there are gaps before the sink's last message. A replayed dead letter may be the last one."""
        return any(self.complete_to is None or position > self.complete_to for position in self.beyond_gaps)

    def max_bytes(self, max_payload: int) -> int:
        """Return how large a message may be, given the server's limit."""
        return max_payload if self.max_message_bytes < 0 else min(max_payload, self.max_message_bytes)

    @property
    def highest_position(self) -> Position | None:
        positions = [*([self.complete_to] if self.complete_to else []), *self.beyond_gaps]
        return max(positions)[0] if positions else None


def ensure_stream(
    client: NatsClient, name: str, subjects: Sequence[str], config: Mapping[str, Any], *, create: bool
) -> None:
    """Check that a stream exists and accepts `subjects`; create it with `config` if it is missing."""
    answer = client.request(f"$JS.API.STREAM.INFO.{name}")
    if answer.get("error", {}).get("err_code") == NO_STREAM:
        if not create:
            raise SinkRefused(f"stream {name} does not exist", "Create it, or set create = true.")
        answer = client.request(
            f"$JS.API.STREAM.CREATE.{name}", {**_DEFAULTS, "name": name, "subjects": list(subjects), **config}
        )
    existing = raise_for_error(answer)["config"].get("subjects", ())
    for needed in subjects:
        if not any(_covers(subject, needed) for subject in existing):
            raise SinkRefused(
                f"stream {name} does not accept {needed}, but {', '.join(existing)}",
                f"Add {needed} to its subjects, or choose another stream.",
            )


def last_message(client: NatsClient, stream: str, subject: str) -> dict[str, Any] | None:
    """Return the newest message on a subject, or None if there is none."""
    answer = client.request(f"$JS.API.STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    if answer.get("error", {}).get("err_code") == _NO_MESSAGE:
        return None
    message: dict[str, Any] = raise_for_error(answer)["message"]
    return message


def find_tail(client: NatsClient, stream: str, sender: Sender, floor: int) -> StreamTail:
    """Search back from the stream's end for the sender's last message that was published in order.

    Messages up to sequence `floor` are not looked at.
    """
    info = raise_for_error(client.request(f"$JS.API.STREAM.INFO.{stream}"))
    last, first = int(info["state"]["last_seq"]), int(info["state"]["first_seq"])
    max_message_bytes = int(info["config"].get("max_msg_size", -1))
    floor = max(floor if floor <= last else 0, first - 1)
    sequence, count, max_count = last, 1, min(_MAX_REQUESTS, max(_MAX_UNREAD_BYTES // client.max_payload, 1))
    beyond_gaps: set[MessagePosition] = set()
    while sequence > floor:
        end = max(sequence - count, floor)
        requests: list[tuple[str, Mapping[str, Any] | None]] = [
            (f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": n}) for n in range(sequence, end, -1)
        ]
        for answer in client.request_many(requests):
            headers = _own_headers(answer, sender)
            if headers is None:
                continue
            position = Position.parse(headers[POSITION]), message_batch.SCHEMA not in headers
            if message_batch.SINGLE not in headers:
                return StreamTail(last, position, frozenset(beyond_gaps), max_message_bytes)
            beyond_gaps.add(position)
        sequence, count = end, max_count
    return StreamTail(last, None, frozenset(beyond_gaps), max_message_bytes)


def last_sequence(client: NatsClient, stream: str) -> int:
    return int(raise_for_error(client.request(f"$JS.API.STREAM.INFO.{stream}"))["state"]["last_seq"])


def replicas_like(client: NatsClient, stream: str) -> dict[str, int]:
    """Return the configuration that gives another stream as many replicas as `stream` has."""
    info = raise_for_error(client.request(f"$JS.API.STREAM.INFO.{stream}"))
    return {"num_replicas": int(info["config"]["num_replicas"])}


def stored_messages(
    client: NatsClient, stream: str, sequences: Sequence[int]
) -> Iterator[tuple[dict[str, str], bytes]]:
    """Yield headers and payload of each message that the stream still holds."""
    for sequence in sequences:
        answer = client.request(f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": sequence})
        if answer.get("error", {}).get("err_code") != _NO_MESSAGE:
            message = raise_for_error(answer)["message"]
            yield parse_headers(base64.b64decode(message.get("hdrs", ""))), base64.b64decode(message.get("data", ""))


def _own_headers(answer: dict[str, Any], sender: Sender) -> dict[str, str] | None:
    """Return the headers of a message if the sender published it."""
    if answer.get("error", {}).get("err_code") == _NO_MESSAGE:
        return None  # deleted or expired
    headers = parse_headers(base64.b64decode(raise_for_error(answer)["message"].get("hdrs", "")))
    is_own = (
        headers.get(message_batch.SINK) == sender.sink and int(headers.get(message_batch.REPLAY, 0)) == sender.replays
    )
    return headers if is_own else None


def raise_for_error(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer, or raise the error that it reports."""
    if (error := answer.get("error")) is not None:
        # Codes from 500 on are the server's own problems: a cluster without a leader, or out of space.
        kind = SinkError if int(error.get("code", 0)) >= 500 else SinkRefused
        raise kind(f"JetStream: {error.get('description')}", "See the log of the NATS server.")
    return answer


def retention(seconds: int) -> dict[str, int]:
    """Return the stream configuration that retains messages for so long."""
    return {"max_age": seconds * 10**9, "duplicate_window": min(_DUPLICATE_WINDOW_S, seconds) * 10**9}


def _covers(subject: str, needed: str) -> bool:
    """Whether a stream's subject matches everything that `needed` matches."""
    own, wanted = subject.split("."), needed.split(".")
    for index, part in enumerate(own):
        if part == ">":
            return True
        if index >= len(wanted) or (part != wanted[index] and part != "*") or wanted[index] == ">":
            return False
    return len(own) == len(wanted)
