"""The mode `invalidate`: deletes the keys of changed rows, or publishes them on a channel, for caches.

Keys may be deleted or published again after a failure, which does no harm. So the sink keeps nothing at the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from tailrace.change import Relation
from tailrace.delivery.contract import Part
from tailrace.delivery.sink_settings import SinkContext
from tailrace.errors import ConfigError, PoisonError
from tailrace.finding import Finding
from tailrace.log.decoding import DELETE, UPDATE, TableChanges
from tailrace.sinks.messages.batching import merge_small
from tailrace.sinks.messages.destination_registry import PartRegistry
from tailrace.sinks.messages.message_sink import MessageSink
from tailrace.sinks.messages.piece import join
from tailrace.sinks.messages.progress import Progress
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.messages.row_image import ColumnTexts, Mask, known_old, new_values, old_values
from tailrace.sinks.valkey.check import check_server
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.sinks.valkey.command import CommandBatch, argument, concatenate, head
from tailrace.sinks.valkey.key_template import KeyTemplate
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.valkey_error import ServerError, as_sink_error

_SCANNED: Final = 1000


@dataclass(frozen=True)
class Invalidation:
    keys: pa.Array
    """Distinct."""
    patterns: tuple[str, ...]
    """Of tables that were emptied."""


class InvalidationTransport:
    def __init__(self, name: str, options: ValkeyOptions) -> None:
        self._channel = options.channel
        self._client = ValkeyClient(options, f"tailrace-{name}")

    def close(self) -> None:
        self._client.close()

    def progress(self) -> Progress | None:
        return None

    def publish(self, messages: Invalidation, after: Progress) -> None:  # noqa: ARG002
        batch = CommandBatch()
        if self._channel:
            texts = pa.concat_arrays([messages.keys, pa.array(messages.patterns, pa.string())])
            pieces = [head(3), argument(b"PUBLISH"), argument(self._channel.encode()), argument(texts)]
            batch.add_encoded(concatenate(join(pieces, len(texts))), len(texts))
        else:
            for pattern in messages.patterns:
                self._delete_matching(pattern)
            batch.add_many("UNLINK", values=messages.keys)
        self._run(batch)

    def _delete_matching(self, pattern: str) -> None:
        cursor = b"0"
        while True:
            cursor, keys = self._client.run("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)
            batch = CommandBatch()
            batch.add_many("UNLINK", values=keys)
            self._run(batch)
            if cursor == b"0":
                return

    def _run(self, batch: CommandBatch) -> None:
        for answer in self._client.pipeline(batch):
            if isinstance(answer, ServerError):
                raise as_sink_error(answer, "an invalidation")


class InvalidationSink(MessageSink[ValkeyOptions]):
    Options: ClassVar[type] = ValkeyOptions
    start: ClassVar[str] = "latest"
    loads_tables: ClassVar[bool] = False
    collision_hint: ClassVar[str] = "Use another template in `key`."

    def __init__(self, name: str, options: ValkeyOptions, context: SinkContext) -> None:
        super().__init__(name, options.validate(), context)
        if context.common.start == "snapshot":
            raise ConfigError("mode 'invalidate' delivers only changes", "use earliest, latest, an LSN or a time")

    def template(self) -> DestinationTemplate:
        return self._options.template(self._database).names

    def connect(self) -> InvalidationTransport:
        return InvalidationTransport(self.name, self._options)

    def check(self) -> Iterator[Finding]:
        yield from check_server(self.name, self._options)

    def _check_collisions(self, published: Iterable[Relation]) -> None:
        """Two tables may share keys: a cache entry may depend on both."""

    def _batches(
        self,
        part: Part,
        progress: Progress,
        tables: PartRegistry,  # noqa: ARG002
    ) -> Iterator[tuple[Invalidation, Progress]]:
        template = self._options.template(self._database)
        for chunk in merge_small(part.chunks):
            runs = [run for run in chunk if isinstance(run, TableChanges) and len(run)]
            keys = [found for run in runs if not run.is_truncate for found in changed_keys(run, template)]
            patterns = {template.pattern(run.target) for run in runs if run.is_truncate}
            if keys or patterns:
                distinct = pa.concat_arrays([*keys, pa.array([], pa.string())]).unique()
                yield Invalidation(distinct, tuple(sorted(patterns))), progress


def changed_keys(changes: TableChanges, template: KeyTemplate) -> Iterator[pa.Array]:
    """Yield the keys of rows after changes and before them. A row in which the template has NULL has no key."""
    is_delete, is_update = changes.operation == DELETE, changes.operation == UPDATE
    images: tuple[tuple[Mask, ColumnTexts], ...] = (
        (~is_delete, new_values),
        (is_delete | (is_update & changes.old.present), old_values),
    )
    indexes = template.column_indexes(changes.relation)
    _require_old(changes, indexes)
    for rows, values in images:
        if not rows.any():
            continue
        columns = {}
        for index in indexes:
            columns[index], known = values(changes, index)
            if known is not None:
                _require(changes, index, rows & ~known)
        found = template.keys(changes.relation, changes.target, columns.__getitem__, len(changes))
        yield found.filter(pa.array(rows)).drop_null()


def _require_old(changes: TableChanges, indexes: Sequence[int]) -> None:
    """An update changes the replica identity only if PostgreSQL sends the old one. Of other columns it must send it."""
    for index in indexes:
        if not changes.relation.columns[index].is_identity:
            _require(changes, index, (changes.operation == UPDATE) & ~known_old(changes, index))


def _require(changes: TableChanges, index: int, unknown: Mask) -> None:
    if not unknown.any():
        return
    positions = tuple(str(changes.at.position(int(row))) for row in np.flatnonzero(unknown))
    raise PoisonError(
        f"{changes.relation.qualified_name}, {positions[0]}: PostgreSQL did not send a value of column"
        f" {changes.relation.columns[index].name}, which the keys depend on",
        "ALTER TABLE … REPLICA IDENTITY FULL makes it send old values.",
        positions,
    )
