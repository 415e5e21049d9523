"""Publishes messages as entries of streams, in one transaction with the progress that they lead to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.delivery.contract import REWIND
from tailrace.errors import SinkDiverged, SinkRefused
from tailrace.log.decoding import ChangePositions
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.piece import join
from tailrace.sinks.messages.progress import Progress
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.sinks.valkey.command import CommandBatch, Piece, argument, concatenate, head, require_sizes
from tailrace.sinks.valkey.entry_id import EntryId, entry_ids
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.sink_state import SinkState, Writer
from tailrace.sinks.valkey.valkey_error import ServerError, as_sink_error

I64 = npt.NDArray[np.int64]

VALUE: Final = "value"
KEY: Final = "key"


class EntryTransport:
    """Adds entries to the streams of one sink. It is the sink's only writer until another one connects."""

    def __init__(self, name: str, options: ValkeyOptions) -> None:
        self._name = name
        self._client = ValkeyClient(options, f"tailrace-{name}")
        self._state = SinkState(self._client, name)
        self._writer = Writer(self._client, self._state, name)
        self._progress = self._state.progress()
        self._last: dict[str, EntryId] = {}
        """The last id in each stream that was used."""

    def close(self) -> None:
        self._client.close()

    def progress(self) -> Progress | None:
        return self._progress

    def publish(self, messages: EntryCommands, after: Progress) -> None:
        """Add entries and store the progress in one transaction."""
        self._writer.watch()
        streams = messages.streams
        names = streams.dictionary.to_pylist()
        self._learn([name for name in names if name not in self._last])
        ids, last = entry_ids(messages.at, streams.indices.to_numpy(), [self._last[name] for name in names])
        batch = CommandBatch()
        batch.add_encoded(messages.with_ids(ids), len(ids))
        pairs = zip(names, map(str, last), strict=True)
        batch.add("HSET", self._state.keys.streams, *[text for pair in pairs for text in pair])
        self._state.add_progress(batch, after)
        self._writer.run(batch, str(messages.at.position(0)))
        self._last |= dict(zip(names, last, strict=True))
        self._progress = after

    def _learn(self, names: Sequence[str]) -> None:
        """Read the last id of streams that were not used yet, and refuse those that somebody else writes to."""
        if not names:
            return
        batch = CommandBatch()
        batch.add("HMGET", self._state.keys.streams, *names)
        for name in names:
            batch.add("XINFO", "STREAM", name)
        recorded, *found = self._client.pipeline(batch)
        if isinstance(recorded, ServerError):
            raise as_sink_error(recorded, "HMGET")
        for name, text, answer in zip(names, recorded, found, strict=True):
            own = EntryId() if text is None else EntryId.parse(text)
            at_server = self._last_id(name, answer)
            if at_server is not None and text is None:
                raise SinkRefused(
                    f"stream {name} exists already, and sink {self._name} did not create it",
                    "Remove it, or use another template in `key`.",
                )
            if at_server is not None and at_server != own:
                raise SinkDiverged(
                    f"sink {self._name}: somebody else wrote to the stream {name}",
                    f"Remove the stream (DEL), then {REWIND.format(self._name)}",
                )
            self._last[name] = own

    def _last_id(self, name: str, answer: object) -> EntryId | None:
        """The last id in a stream; None if it does not exist."""
        if isinstance(answer, ServerError):
            if re.search("no such key", str(answer), re.IGNORECASE):
                return None
            if answer.code == "WRONGTYPE":
                raise SinkRefused(f"the key {name} is not a stream", "Remove it, or use another template in `key`.")
            raise as_sink_error(answer, "XINFO")
        assert isinstance(answer, list)
        info = dict(zip(answer[::2], answer[1::2], strict=True))
        return EntryId.parse(info[b"last-generated-id"])


@dataclass(frozen=True)
class EntryCommands:
    """The command that adds each message to its stream. Only the ids are missing: they depend on the streams."""

    at: ChangePositions
    streams: pa.DictionaryArray
    begin: pa.Array
    """What precedes the id."""
    end: pa.Array
    """What follows it."""

    def with_ids(self, ids: pa.Array) -> memoryview:
        """Return the whole commands, one after the other."""
        return concatenate(join([self.begin, argument(ids), self.end], len(ids)))


def entry_commands(messages: OutgoingMessages, max_entries: int = 0) -> EntryCommands:
    """Return the commands of messages, with all headers. 0: streams retain everything."""
    require_sizes([messages.values], messages.at.position, "a stream")
    messages = messages.with_position_headers()
    count = len(messages)
    columns = {VALUE: messages.values, **({KEY: messages.keys} if messages.keys is not None else {})}
    fields = np.zeros(count, np.int64)
    pieces: list[Piece] = []
    for name, values in {**columns, **messages.headers}.items():
        fields += values.is_valid().to_numpy(zero_copy_only=False)
        pair = [argument(name.encode()), argument(values)]
        pieces += [join(pair, count).fill_null(b"")] if values.null_count else pair
    limit = [b"MAXLEN", b"~", str(max_entries).encode()] if max_entries else []
    start: list[Piece] = [argument(b"XADD"), argument(messages.destinations), *map(argument, limit)]
    size = len(start) + 1 + 2 * fields
    begin = join([head(pa.array(size)), *start], count)
    return EntryCommands(messages.at, messages.destinations.dictionary_encode(), begin, join(pieces, count))
