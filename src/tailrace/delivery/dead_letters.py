"""Dead letters: changes that a destination can never accept, stored with the reason and left out of delivery."""

from __future__ import annotations

import json
import logging
from typing import Final

from tailrace.change import Lsn, Position
from tailrace.errors import PoisonError, SinkRefused
from tailrace.log.change_text import to_json
from tailrace.log.reader import LogReader
from tailrace.log.retention import CURSORS

_log = logging.getLogger("tailrace.deliver")

_DIRECTORY: Final = "dead_letters"


class DeadLetters:
    """The dead letters of one sink."""

    def __init__(self, reader: LogReader, sink: str) -> None:
        self._reader = reader
        self._sink = sink
        self._prefix = f"{CURSORS}/{sink}/{_DIRECTORY}"
        self.positions: frozenset[Position] = frozenset()

    def load(self) -> None:
        found = set()
        for info in self._reader.store.list(self._prefix):
            lsn, _, ordinal = info.key.rpartition("/")[2].removesuffix(".json").partition("-")
            found.add(Position(Lsn(int(lsn, 16)), int(ordinal)))
        self.positions = frozenset(found)

    def put(self, error: PoisonError) -> None:
        """Store the changes that an error names, with the reason."""
        for text in error.positions:
            position = Position.parse(text)
            change = next(iter(self._reader.changes(position)), None)
            if change is None or change.position != position:
                raise SinkRefused(f"{error}: there is no change at {text}", error.hint) from error
            raw = {"reason": error.message, "change": json.loads(to_json(change), parse_float=str, parse_int=str)}
            key = f"{self._prefix}/{position.commit_lsn:016X}-{position.ordinal:012d}.json"
            self._reader.store.replace(key, json.dumps(raw, ensure_ascii=False).encode())
            _log.error("sink %s: the change at %s became the dead letter %s: %s", self._sink, text, key, error)
            self.positions |= {position}
