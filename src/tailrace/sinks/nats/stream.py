"""JetStream's side: streams that are made or checked, and what a stream holds of a sink's."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tailrace.change import Position
from tailrace.errors import SinkError, SinkRefused
from tailrace.sinks.nats import frames
from tailrace.sinks.nats.frames import Mark, Sender
from tailrace.sinks.nats.wire import Wire, headers

NO_STREAM: Final = 10059
_NO_MESSAGE: Final = 10037
_AT_ONCE: Final = 256
_ROOM: Final = 16 << 20
"""For messages that are asked for at once: whom a server has 64 MB for that they did not read yet, it cuts off."""
_DUPLICATE_WINDOW_S: Final = 120
"""The server's own default; never more than messages are kept."""
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
class Tail:
    """Where a stream ends."""

    last: int
    """The number of its last message."""
    reached: Mark | None
    """Of ours it holds everything up to this message; None: that is not known."""
    beyond: frozenset[Mark] = frozenset()
    """What it holds of ours after that: with gaps, where it took single messages and refused others."""
    largest: int = -1
    """The most bytes that it takes in a message, if it has a limit of its own."""

    @property
    def furthest(self) -> Position | None:
        marks = [*([self.reached] if self.reached else []), *self.beyond]
        return max(marks)[0] if marks else None


def ensure(wire: Wire, name: str, subjects: Sequence[str], more: Mapping[str, Any], *, create: bool) -> None:
    """The stream is there, and takes what is published; it is made if need be."""
    found = wire.ask(f"$JS.API.STREAM.INFO.{name}")
    if found.get("error", {}).get("err_code") == NO_STREAM:
        if not create:
            raise SinkRefused(f"there is no stream {name}", "make it, or let the sink: create = true")
        found = wire.ask(
            f"$JS.API.STREAM.CREATE.{name}", {**_DEFAULTS, "name": name, "subjects": list(subjects), **more}
        )
    has = checked(found)["config"].get("subjects", ())
    for wanted in subjects:
        if not any(_covers(subject, wanted) for subject in has):
            raise SinkRefused(
                f"stream {name} does not take {wanted}, but {', '.join(has)}",
                f"add {wanted} to its subjects, or name another stream",
            )


def last_of_subject(wire: Wire, stream: str, subject: str) -> dict[str, Any] | None:
    """The newest message there; None when there is none."""
    answer = wire.ask(f"$JS.API.STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    if answer.get("error", {}).get("err_code") == _NO_MESSAGE:
        return None
    found: dict[str, Any] = checked(answer)["message"]
    return found


def tail(wire: Wire, stream: str, sender: Sender, floor: int, *, is_chained: bool) -> Tail:
    """From the stream's end back to the last message of ours, if it took each of ours behind the one before; else all
    of them. Up to `floor` there is none that matters."""
    about = checked(wire.ask(f"$JS.API.STREAM.INFO.{stream}"))
    last, first = int(about["state"]["last_seq"]), int(about["state"]["first_seq"])
    largest = int(about["config"].get("max_msg_size", -1))
    floor = max(floor if floor <= last else 0, first - 1)
    number, some, most = last, 1, min(_AT_ONCE, max(_ROOM // wire.max_payload, 1))
    held: set[Mark] = set()
    while number > floor:
        upto = max(number - some, floor)
        questions: list[tuple[str, Mapping[str, Any] | None]] = [
            (f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": n}) for n in range(number, upto, -1)
        ]
        for answer in wire.ask_many(questions):
            mark = _ours(answer, sender)
            if mark is not None and is_chained:
                return Tail(last, mark, largest=largest)
            held |= {mark} if mark is not None else set()
        number, some = upto, most
    return Tail(last, None, frozenset(held), largest)


def end(wire: Wire, stream: str) -> int:
    """The number of its last message."""
    return int(checked(wire.ask(f"$JS.API.STREAM.INFO.{stream}"))["state"]["last_seq"])


def like(wire: Wire, stream: str) -> dict[str, int]:
    """How another is made that is to last as long as this one, whichever server of a cluster is gone."""
    return {"num_replicas": int(checked(wire.ask(f"$JS.API.STREAM.INFO.{stream}"))["config"]["num_replicas"])}


def _ours(answer: dict[str, Any], sender: Sender) -> Mark | None:
    if answer.get("error", {}).get("err_code") == _NO_MESSAGE:
        return None  # it is deleted, or too old by now
    said = headers(base64.b64decode(checked(answer)["message"].get("hdrs", "")))
    if said.get(frames.SINK) != sender.sink or int(said.get(frames.REPLAY, 0)) != sender.replays:
        return None
    return Position.parse(said[frames.POSITION]), frames.SCHEMA not in said


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer that is no error."""
    if (error := answer.get("error")) is not None:
        # From 500 on it is the server's own: a cluster that has no leader at the moment, or no room.
        failure = SinkError if int(error.get("code", 0)) >= 500 else SinkRefused
        raise failure(f"JetStream: {error.get('description')}", "what the server says of it stands in its own log")
    return answer


def kept_for(seconds: int) -> dict[str, int]:
    """How a stream keeps its messages for so long."""
    return {"max_age": seconds * 10**9, "duplicate_window": min(_DUPLICATE_WINDOW_S, seconds) * 10**9}


def _covers(subject: str, wanted: str) -> bool:
    """Whether a stream's subject takes everything that another does."""
    has, needs = subject.split("."), wanted.split(".")
    for place, own in enumerate(has):
        if own == ">":
            return True
        if place >= len(needs) or (own != needs[place] and own != "*") or needs[place] == ">":
            return False
    return len(has) == len(needs)
