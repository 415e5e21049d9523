"""Dead letters: changes that a destination can never accept, stored with the reason and left out of delivery.

    cursors/<sink>/dead_letters/<position>.json     the change, the reason, and when it became a dead letter
    cursors/<sink>/dead_letters/<position>.replay   an operator's request to deliver it again

A replayed dead letter is removed once the destination has the change. If the destination rejects it again, it stays,
with the new reason.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tailrace import stored_json
from tailrace.change import Change, Lsn, Position
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import ConfigError, CorruptError, GapError, PoisonError, SinkRefused
from tailrace.log.change_text import to_json
from tailrace.log.reader import LogReader
from tailrace.log.retention import CURSORS
from tailrace.log.timestamp import format_timestamp
from tailrace.store import Store

_log = logging.getLogger("tailrace.deliver")

_DIRECTORY: Final = "dead_letters"
_LETTER: Final = ".json"
_REPLAY: Final = ".replay"


@dataclass(frozen=True)
class DeadLetter:
    """One change that a sink could not deliver."""

    sink: str
    position: Position
    reason: str
    recorded_at: str
    """An ISO time; empty if it was stored by a version that did not record it."""
    change: Mapping[str, Any]
    """The fields of `tailrace log cat --json`, with numbers as text."""
    is_replay_requested: bool

    @property
    def table(self) -> str:
        """The table's name; empty for a logical message."""
        schema, table = self.change.get("schema"), self.change.get("table")
        return f"{schema}.{table}" if table is not None else ""

    @property
    def summary(self) -> dict[str, Any]:
        """What is known of it except the change's values, as JSON."""
        return {
            "sink": self.sink,
            "position": str(self.position),
            "operation": self.change["operation"],
            "table": self.table or None,
            "recorded_at": self.recorded_at or None,
            "is_replay_requested": self.is_replay_requested,
            "reason": self.reason,
        }

    @property
    def relation_id(self) -> int | None:
        found = self.change.get("relation_id")
        return None if found is None else int(found)


class DeadLetters:
    """The dead letters of one sink, for the process that delivers to it."""

    def __init__(self, reader: LogReader, sink: str) -> None:
        self._reader = reader
        self._sink = sink
        self._prefix = f"{CURSORS}/{sink}/{_DIRECTORY}"
        self.positions: frozenset[Position] = frozenset()
        self.requested: tuple[Position, ...] = ()
        """Those that an operator asked to deliver again, in log order."""

    def load(self) -> None:
        """Read which dead letters there are, and which of them are to be delivered again."""
        keys = [info.key for info in self._reader.store.list(self._prefix)]
        self.positions = frozenset(_position(key) for key in keys if key.endswith(_LETTER))
        requested = {_position(key) for key in keys if key.endswith(_REPLAY)}
        self.requested = tuple(sorted(requested & self.positions))

    def get(self, position: Position) -> DeadLetter:
        found = get(self._reader.store, self._sink, position)
        assert found is not None, f"{position} is in `positions`"
        return found

    def put(self, error: PoisonError) -> None:
        """Store the changes that an error names, with the reason."""
        for text in error.positions:
            position = Position.parse(text)
            change = find_change(self._reader, position)
            if change is None:
                raise SinkRefused(f"{error}: there is no change at {text}", error.hint) from error
            raw = {
                "reason": error.message,
                "recorded_at": format_timestamp(datetime.now(UTC)),
                "change": json.loads(to_json(change), parse_float=str, parse_int=str),
            }
            key = _key(self._sink, position, _LETTER)
            self._reader.store.replace(key, json.dumps(raw, ensure_ascii=False).encode())
            _log.error("sink %s: the change at %s became the dead letter %s: %s", self._sink, text, key, error)
            self.positions |= {position}
            self.refuse_replay([position])

    def remove(self, positions: Iterable[Position]) -> None:
        """Remove dead letters that the destination has now."""
        removed = list(positions)
        for position in removed:
            # The request goes last: after a crash in between, it names no dead letter and has no effect.
            self._reader.store.delete(_key(self._sink, position, _LETTER))
            self._reader.store.delete(_key(self._sink, position, _REPLAY))
            _log.info("sink %s: the dead letter at %s is delivered", self._sink, position)
        self.positions -= set(removed)
        self._forget_requests(removed)

    def refuse_replay(self, positions: Iterable[Position]) -> None:
        """Withdraw requests; the dead letters stay."""
        refused = list(positions)
        for position in refused:
            if position in self.requested:
                self._reader.store.delete(_key(self._sink, position, _REPLAY))
        self._forget_requests(refused)

    def _forget_requests(self, positions: Iterable[Position]) -> None:
        forgotten = set(positions)
        self.requested = tuple([position for position in self.requested if position not in forgotten])


def find_change(reader: LogReader, position: Position) -> Change | None:
    """Return the change at a position; None if the log does not have it (any more)."""
    try:
        change = next(iter(reader.changes(position)), None)
    except GapError:
        return None
    return change if change is not None and change.position == position else None


def load_all(store: Store, sink: str | None = None) -> Iterator[DeadLetter]:
    """Yield the dead letters of one sink or of all, each sink's in log order.

    Args:
        store: The store of the log.
        sink: The sink's name; None for all sinks that ever had one.
    """
    keys = sorted(info.key for info in store.list(CURSORS if sink is None else f"{CURSORS}/{sink}/{_DIRECTORY}"))
    requested = {key for key in keys if key.endswith(_REPLAY)}
    for key in keys:
        parts = key.split("/")
        if len(parts) == 4 and parts[2] == _DIRECTORY and key.endswith(_LETTER):
            data = store.get(key)
            if data is not None:  # not replayed meanwhile
                yield _parse(data, parts[1], key, key.removesuffix(_LETTER) + _REPLAY in requested)


def get(store: Store, sink: str, position: Position) -> DeadLetter | None:
    """Return the dead letter of a sink at a position; None if there is none."""
    key = _key(sink, position, _LETTER)
    data = store.get(key)
    if data is None:
        return None
    return _parse(data, sink, key, store.head(_key(sink, position, _REPLAY)) is not None)


def find(store: Store, sink: str, position: Position) -> DeadLetter:
    """Return the dead letter of a sink at a position; SinkRefused if there is none."""
    letter = get(store, sink, position)
    if letter is None:
        raise SinkRefused(
            f"sink {sink} has no dead letter at {position}", f"`tailrace deadletter list {sink}` lists them"
        )
    return letter


def request_replay(store: Store, letter: DeadLetter) -> None:
    """Ask the process that delivers to the sink to deliver a dead letter again."""
    store.replace(_key(letter.sink, letter.position, _REPLAY), b"")


def check_replayable(configured: ConfiguredSink, reader: LogReader, letters: Iterable[DeadLetter]) -> None:
    """Raise an error if a sink cannot deliver all of the dead letters again."""
    name, sink = configured.name, configured.sink
    if sink.keeps_tables:
        return
    if not sink.replays_dead_letters:
        raise ConfigError(
            f"sink {name} cannot deliver a single change again", "`tailrace deadletter show` prints the change"
        )
    for letter in letters:
        if find_change(reader, letter.position) is None:
            raise GapError(
                f"the log no longer has the change at {letter.position}: it cannot be replayed",
                f"`tailrace deadletter show {name} {letter.position}` prints the change",
            )


def _key(sink: str, position: Position, suffix: str) -> str:
    return f"{CURSORS}/{sink}/{_DIRECTORY}/{position.commit_lsn:016X}-{position.ordinal:012d}{suffix}"


def _position(key: str) -> Position:
    lsn, _, ordinal = key.rpartition("/")[2].partition(".")[0].partition("-")
    return Position(Lsn(int(lsn, 16)), int(ordinal))


def _parse(data: bytes, sink: str, key: str, is_replay_requested: bool) -> DeadLetter:
    try:
        raw = stored_json.parse(data)
        change = {str(name): value for name, value in raw["change"].items()}
        position, recorded_at = _position(key), str(raw.get("recorded_at", ""))
        found = DeadLetter(sink, position, str(raw["reason"]), recorded_at, change, is_replay_requested)
        found.summary, found.relation_id  # noqa: B018 (raises if the change lacks what they need)
        return found
    except stored_json.ERRORS as error:
        raise CorruptError(f"{key} is not a dead letter", "restore it from a copy of the store") from error
