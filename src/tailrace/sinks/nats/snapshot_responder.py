"""Snapshots on request: publishes a table's rows in chunks when a client publishes to `snapshot.request.<table>`.

The rows are the newest state in the log, a snapshot and the changes since, so the source is not involved. If the
request says `fresh`, or the table has no snapshot yet, capture is asked for one first.

A thread answers the requests one after the other while the sink continues. Requests for the same table that wait
together share one answer. A later request does not share an answer that is already being published: its state may
precede the time at which the client began to listen. Spark's executors publish large tables.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from tailrace import settings
from tailrace.change import Relation
from tailrace.delivery.sink_settings import SinkSettings
from tailrace.delivery.task import Executor, run_in_process
from tailrace.delivery.transforms import Shaping
from tailrace.errors import GapError, SinkError, SnapshotError, TailraceError
from tailrace.log import published_table
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.log.snapshot_request import SnapshotRequest
from tailrace.retry import Backoff
from tailrace.sinks.messages.payload_encoding import ENCODINGS
from tailrace.sinks.nats import jetstream, schema_bucket
from tailrace.sinks.nats.client import NatsClient
from tailrace.sinks.nats.compression import train_dictionary
from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.snapshot_task import STOPPING, SnapshotCounts, SnapshotTask, check_stored, split
from tailrace.sinks.nats.subject import token
from tailrace.state import table_state
from tailrace.store import Store

_log = logging.getLogger("tailrace.deliver")

REQUEST_SUBJECT: Final = "snapshot.request"
_STREAM: Final = "INIT"
_RETENTION_S: Final = 7 * 24 * 3600
_FRESH: Final = b"fresh"
"""The payload of a request for a new snapshot from the source."""
_POLL_S: Final = 0.2
_COLLECT_S: Final = 0.05
"""Consumers that start together send their requests shortly after one another."""
_CAPTURE_POLL_S: Final = 1.0
_CAPTURE_TIMEOUT: Final = timedelta(seconds=30)
"""Capture, if it runs, looks for requests every few seconds."""


@dataclass(frozen=True)
class RequestedTable:
    relation: Relation
    target: tuple[str, str]
    has_snapshot: bool
    is_published: bool
    """As last reported by capture."""


@dataclass
class TableRequest:
    name: str
    """As in subjects."""
    replies: list[str] = field(default_factory=list)
    is_fresh: bool = False


@dataclass
class _PendingRequest:
    """A request that waits until capture has taken a snapshot."""

    table: RequestedTable
    request: TableRequest
    snapshot_request: SnapshotRequest


class SnapshotResponder:
    """Answers snapshot requests from `start` to `stop`."""

    def __init__(
        self,
        options: NatsOptions,
        name: str,
        store: settings.StoreSettings,
        common: SinkSettings,
        executor: Executor = run_in_process,
        parallelism: Callable[[], int] = lambda: 1,
    ) -> None:
        self._options = options
        self._name = name
        self._store_settings = store
        self._common = common
        self._executor = executor
        self._parallelism = parallelism
        self._store = Store.open(store.url, store.options)
        self._reader = LogReader(self._store)
        self._snapshots = SnapshotReader(self._store)
        self._shaping = Shaping(common, "")
        self._encoding = ENCODINGS[options.encoding]
        self._last_timestamp = 0
        self._pending: dict[str, _PendingRequest] = {}
        self._next_check = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"requests {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                self._listen()
            except SinkError as error:  # the sink meets and reports it too
                _log.debug("sink %s: snapshot requests: %s", self._name, error)
                self._stopping.wait(backoff.next())
            except TailraceError as error:
                _log.warning("sink %s: a snapshot request was not answered: %s", self._name, error.with_hint)
                self._stopping.wait(backoff.next())

    def _listen(self) -> None:
        client = NatsClient(self._options, f"{self._name} requests", f"{REQUEST_SUBJECT}.>")
        try:
            config = {**jetstream.retention(_RETENTION_S), **jetstream.replicas_like(client, self._options.stream)}
            jetstream.ensure_stream(client, _STREAM, ["init.>"], config, create=self._options.create)
            while not self._stopping.is_set():
                for request in self._receive(client):
                    self._handle(client, request)
                if time.monotonic() >= self._next_check:
                    self._check_pending(client)
                    self._next_check = time.monotonic() + _CAPTURE_POLL_S
        finally:
            client.close()

    def _receive(self, client: NatsClient) -> Collection[TableRequest]:
        """Return the requests received by now, one per table with all of its reply subjects."""
        requests: dict[str, TableRequest] = {}
        message = client.next_message(_POLL_S)
        deadline = time.monotonic() + _POLL_S
        while message is not None:
            name = message.subject.decode()[len(REQUEST_SUBJECT) + 1 :]
            request = requests.setdefault(name, TableRequest(name))
            request.replies += [message.reply.decode()] if message.reply else []
            request.is_fresh |= bytes(message.payload).strip() == _FRESH
            message = client.next_message(_COLLECT_S if time.monotonic() < deadline else 0)
        return requests.values()

    def _handle(self, client: NatsClient, request: TableRequest) -> None:
        if (pending := self._pending.get(request.name)) is not None:
            request.replies += pending.request.replies
            if pending.snapshot_request.is_fresh or not request.is_fresh:
                pending.request.replies = request.replies
                return
        table = self._table(client, request.name)
        if table is None and schema_bucket.find_table(client, self._options.bucket, request.name) is not None:
            return  # a table of another sink, which answers
        if table is None:
            error = TailraceError(f"there is no table {request.name}", "Use the name as it is in subjects.")
            self._answer(client, request, error)
        elif not table.is_published:
            message = f"{table.relation.qualified_name} is no longer published: it was dropped, or removed"
            self._answer(client, request, TailraceError(message, "The log no longer has the table's current state."))
        elif request.is_fresh or not table.has_snapshot:
            snapshot_request = SnapshotRequest(self._name, table.relation.oid, request.is_fresh)
            snapshot_request.save(self._store)
            self._pending[request.name] = _PendingRequest(table, request, snapshot_request)
        else:
            self._answer(client, request, table)

    def _check_pending(self, client: NatsClient) -> None:
        """Answer the requests for which capture has finished or failed."""
        for pending in list(self._pending.values()):
            snapshot_request = pending.snapshot_request.reload(self._store)
            if snapshot_request.lsn is not None:
                self._answer(client, pending.request, pending.table)
            elif snapshot_request.error is not None:
                self._answer(client, pending.request, TailraceError(snapshot_request.error, snapshot_request.hint))
            elif not snapshot_request.is_seen and datetime.now(UTC) - snapshot_request.requested_at > _CAPTURE_TIMEOUT:
                message = "capture does not answer the request for a snapshot"
                error = TailraceError(message, "Does capture run, with snapshot.on_start = true?")
                self._answer(client, pending.request, error)
            else:
                continue
            del self._pending[pending.request.name]
            snapshot_request.delete(self._store)

    def _answer(self, client: NatsClient, request: TableRequest, found: RequestedTable | TailraceError) -> None:
        """Publish the table, or the error."""
        try:
            if isinstance(found, TailraceError):
                raise found
            answer = self._publish(client, found)
        except SinkError:
            raise  # the connection failed: the client has to request again
        except TailraceError as error:
            _log.warning("sink %s: no snapshot of %s: %s", self._name, request.name, error.with_hint)
            answer = self._encoding.encode({"table": request.name, "error": str(error), "hint": error.hint})
            client.publish(f"init.error.{request.name}", answer)
        for reply in request.replies:
            client.send(reply, answer)

    def _table(self, client: NatsClient, name: str) -> RequestedTable | None:
        """Return the table with this name: of several, the one that is still published; or a table that the log has
        under this name, and that had another name when its snapshot was taken."""
        published = {relation.oid for relation in published_table.load(self._store)}
        unpublished: RequestedTable | None = None
        # Lazily: the log is searched only if no snapshot has the name.
        for relation, has_snapshot in itertools.chain(
            published_table.known_tables(self._snapshots), self._renamed_tables(client, name)
        ):
            shaped = self._shaping.load(relation)
            if shaped is None or self._token(shaped[1]) != name:
                continue
            if not published or relation.oid in published:
                return RequestedTable(relation, shaped[1], has_snapshot, is_published=True)
            unpublished = unpublished or RequestedTable(relation, shaped[1], has_snapshot, is_published=False)
        return unpublished

    def _renamed_tables(self, client: NatsClient, name: str) -> Iterator[tuple[Relation, bool]]:
        if (table := schema_bucket.find_table(client, self._options.bucket, name)) is None:
            return
        try:
            found = table_state.find(self._reader, *table)
        except (GapError, SnapshotError):
            return  # the log does not have it
        yield found.relation, True

    def _token(self, target: tuple[str, str]) -> str:
        return ".".join(map(token, self._options.names(target)))

    def _publish(self, client: NatsClient, table: RequestedTable) -> bytes:
        """Publish the chunks, then the metadata. Returns the metadata."""
        state = table_state.find(self._reader, table.relation.schema, table.relation.name)
        timestamp = max(int(time.time()), self._last_timestamp + 1)
        self._last_timestamp = timestamp  # makes the snapshot id unique
        name, id = self._token(table.target), f"snap-{timestamp}"
        task = SnapshotTask(
            self._options,
            self._name,
            self._store_settings,
            self._common,
            state,
            table.target,
            name,
            id,
            is_stopping=self._stopping.is_set,
        )
        if self._options.zstd:
            dictionary = train_dictionary(next(task.rows(), None))
            task = replace(task, dictionary=dictionary)
            if dictionary:
                check_stored(client.publish(f"init.dict.{name}.{id}", dictionary))
        tasks = split(task, self._parallelism())
        published = self._run_tasks(client, tasks) if len(tasks) > 1 else [task.publish(client)]
        chunks = max(counts.chunks for counts in published)
        for part, counts in zip(tasks, published, strict=True):
            part.publish_empty_chunks(client, counts, chunks)
        rows = sum(counts.rows for counts in published)
        metadata = self._encoding.encode(
            {
                "snapshot_id": id,
                "lsn": str(state.lsn),
                "timestamp": timestamp,
                "batch_count": len(tasks) * chunks,
                "row_count": rows,
                "table": table.target[1],
            }
        )
        check_stored(client.publish(f"init.meta.{name}", metadata))
        _log.info("sink %s: published %s rows of %s as of %s as %s", self._name, f"{rows:,}", name, state.lsn, id)
        return metadata

    def _run_tasks(self, client: NatsClient, tasks: Sequence[SnapshotTask]) -> list[SnapshotCounts]:
        """Run as many tasks at a time as there is parallelism, and check between them whether the sink stops."""
        published: list[SnapshotCounts] = []
        for first in range(0, len(tasks), parallelism := max(self._parallelism(), 1)):
            if self._stopping.is_set():
                raise SinkError(*STOPPING)
            published += [result.receipt for result in self._executor(tasks[first : first + parallelism])]
            client.keep_alive()
        return published
