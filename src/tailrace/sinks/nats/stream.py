"""JetStream's side: streams that are made or checked, and what a stream holds of a sink's."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tailrace.change import Position
from tailrace.errors import SinkRefused
from tailrace.sinks.nats import frames
from tailrace.sinks.nats.frames import Sender
from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.wire import Wire

_NO_STREAM: Final = 10059
_NO_MESSAGE: Final = 10037
_AT_ONCE: Final = 256
_DUPLICATE_WINDOW_S: Final = 120
"""The server's own default; never more than messages are kept."""


@dataclass(frozen=True)
class Tail:
    """Where a stream ends."""

    last: int
    """The number of its last message."""
    position: Position | None
    """Of the last change of ours that it holds."""


def ensure(wire: Wire, options: NatsOptions) -> None:
    """The stream is there, and takes what is published; it is made if need be."""
    found = wire.ask(f"$JS.API.STREAM.INFO.{options.stream}")
    if found.get("error", {}).get("err_code") == _NO_STREAM:
        if not options.create:
            raise SinkRefused(f"there is no stream {options.stream}", "make it, or let the sink: create = true")
        found = wire.ask(f"$JS.API.STREAM.CREATE.{options.stream}", _configuration(options))
    config = _checked(found)["config"]
    wanted = f"{options.subject}.>"
    if not any(_covers(subject, wanted) for subject in config.get("subjects", ())):
        raise SinkRefused(
            f"stream {options.stream} does not take {wanted}, but {', '.join(config.get('subjects', ()))}",
            f"add {wanted} to its subjects, or name another `stream` or `subject`",
        )


def tail(wire: Wire, stream: str, sender: Sender, floor: int) -> Tail:
    """From the stream's end back to the last message of ours; below `floor` there is none that matters."""
    state = _checked(wire.ask(f"$JS.API.STREAM.INFO.{stream}"))["state"]
    last, first = int(state["last_seq"]), int(state["first_seq"])
    floor = max(floor if floor <= last else 0, first - 1)
    number, some = last, 1
    while number > floor:
        upto = max(number - some, floor)
        questions: list[tuple[str, Mapping[str, Any] | None]] = [
            (f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": n}) for n in range(number, upto, -1)
        ]
        for answer in wire.ask_many(questions):
            position = _position(answer, sender)
            if position is not None:
                return Tail(last, position)
        number, some = upto, _AT_ONCE
    return Tail(last, None)


def _position(answer: dict[str, Any], sender: Sender) -> Position | None:
    if answer.get("error", {}).get("err_code") == _NO_MESSAGE:
        return None  # it is deleted, or too old by now
    raw = base64.b64decode(_checked(answer)["message"].get("hdrs", "")).decode(errors="replace")
    headers = dict(re.findall(r"^([^:\r\n]+): ?([^\r\n]*)", raw, re.MULTILINE))
    if headers.get(frames.SINK) != sender.sink or int(headers.get(frames.REPLAY, 0)) != sender.replays:
        return None
    return Position.parse(headers[frames.POSITION])


def _configuration(options: NatsOptions) -> dict[str, Any]:
    return {
        "name": options.stream,
        "subjects": [f"{options.subject}.>"],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_age": options.max_age_s * 10**9,
        "duplicate_window": min(_DUPLICATE_WINDOW_S, options.max_age_s) * 10**9,
        "num_replicas": 1,
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
    }


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if (error := answer.get("error")) is not None:
        raise SinkRefused(f"JetStream: {error.get('description')}", "what the server says of it stands in its own log")
    return answer


def _covers(subject: str, wanted: str) -> bool:
    """Whether a stream's subject takes everything that another does."""
    has, needs = subject.split("."), wanted.split(".")
    for place, own in enumerate(has):
        if own == ">":
            return True
        if place >= len(needs) or (own != needs[place] and own != "*") or needs[place] == ">":
            return False
    return len(has) == len(needs)
