"""Damaged records in the store: each gets an error that says so, or gives values of the types that it should have."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.mutation import ROUNDS, json_mutations, json_text, mutations
from tests.log.stream import SOURCE, relation

from tailrace import stored_json
from tailrace.change import Lsn, Position
from tailrace.delivery import control, cursors, dead_letters, repair, status
from tailrace.delivery.contract import Load, State, Step
from tailrace.delivery.cursors import StoredState
from tailrace.delivery.repair import RepairOutcome
from tailrace.delivery.status import SinkStatus
from tailrace.errors import TailraceError
from tailrace.lake import point
from tailrace.lake.metadata import TableMetadata
from tailrace.lake.point import Point, PointTable
from tailrace.log import checked_json, published_table, schema_record, seen_table, snapshot_request, source_record
from tailrace.log.planner import Offset
from tailrace.log.schema_record import RecordedColumn, RecordedTable, SchemaRecord
from tailrace.log.snapshot import SnapshotChunk, TableSnapshot
from tailrace.log.snapshot_request import SnapshotRequest
from tailrace.log.trim import Trim
from tailrace.ops import prometheus
from tailrace.ops.status import Overview
from tailrace.recovery.backup_record import BackupRecord, Tablespace
from tailrace.recovery.drill_record import DrillRecord, TableDifference
from tailrace.recovery.wal_archive import ArchivePosition, System
from tailrace.sinks.messages import destination_registry
from tailrace.sinks.messages.destination_registry import DestinationRegistry, RegisteredTable
from tailrace.sinks.webhook import attempt_record
from tailrace.sinks.webhook.attempt_record import AttemptRecord
from tailrace.store import Store
from tailrace.verify.record import VerificationRecord, load_records

SINK = "lake"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TABLE = relation(16384, version=2)
STATE = State(Lsn(77), {16384: Lsn(5)})
LETTER = Position(Lsn(70), 2)
STATUS = SinkStatus.initial(SINK, "iceberg", "running")
STEP = Step(STATE, State(Lsn(99)), Offset(1, Lsn(77)), Offset(3, Lsn(99)), 2, (Load(TABLE, ("s", "t"), "id", Lsn(80)),))
COLUMN = RecordedColumn("id", 1, "integer", 23, True, None, "1", "", "", None, None, None, None, (2,))
DEFINITION = RecordedTable(
    16384, "public", "t", "r", (COLUMN,), (), (), (), (), None, (), (), "d", None, "a comment", ("a policy",)
)
BACKUP = BackupRecord(
    *("id", "7", 180000, 1, Lsn(1), Lsn(9), NOW, NOW, None, 1 << 20, 8192, 100, 50, 3, "role"), (Tablespace(1, "/x"),)
)
METADATA = {
    "schemas": [{"schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "int"}]}],
    "current-schema-id": 0,
    "current-snapshot-id": 7,
    "snapshots": [{"snapshot-id": 7, "timestamp-ms": 1, "sequence-number": 1, "summary": {"total-records": "4"}}],
}
LETTER_TEXT = {"reason": "x", "recorded_at": "", "change": {"operation": "INSERT", "relation_id": "1", "table": "t"}}


@dataclass(frozen=True)
class Record:
    """How a record is saved, and how it is read and used."""

    save: Callable[[Store], object]
    load: Callable[[Store], Any]


def _show(store: Store) -> Any:
    found = status.load(store, SINK)
    if found is not None:
        prometheus.render(Overview(sinks=[found]))
        Overview(sinks=[found]).to_json()
    return found


def _raw(key: str, value: Any) -> Callable[[Store], None]:
    return lambda store: store.replace(key, json_text(value))


def _parse_metadata(store: Store) -> Any:
    found = TableMetadata.parse(store.get("m") or b"", "m")
    return found, found.size(7), found.columns(7), found.added_columns(7), found.ancestry(7)


RECORDS = {
    "source": Record(
        lambda store: source_record.save(store, SOURCE, Lsn(1)),
        lambda store: (source_record.load(store), source_record.slot(store), source_record.begins_at(store)),
    ),
    "control": Record(lambda store: control.reload(store, SINK, ["a.*"]), lambda store: control.load(store, SINK)),
    "state": Record(
        lambda store: cursors.save(store, SINK, StoredState(STATE, STEP, 1, ("a",), 3)),
        lambda store: cursors.load(store, SINK),
    ),
    "position": Record(
        lambda store: cursors.publish(store, SINK, Lsn(7)), lambda store: cursors.published(store, SINK)
    ),
    "status": Record(lambda store: status.save(store, STATUS), _show),
    "snapshot request": Record(SnapshotRequest(SINK, 16384, True).save, snapshot_request.pending_requests),
    "trim": Record(Trim(7, "0" * 64, LETTER).save, Trim.load),
    "published tables": Record(lambda store: published_table.save(store, [TABLE]), published_table.load),
    "seen tables": Record(lambda store: seen_table.save(store, [1, 2]), seen_table.load),
    "dead letter": Record(
        _raw(f"cursors/{SINK}/dead_letters/{LETTER.commit_lsn:016X}-{LETTER.ordinal:012d}.json", LETTER_TEXT),
        lambda store: [letter.summary for letter in dead_letters.load_all(store, SINK)],
    ),
    "outcome of a repair": Record(
        lambda store: repair.save_outcome(store, SINK, "1", RepairOutcome(3)),
        lambda store: repair.load_outcome(store, SINK, "1"),
    ),
    "verification": Record(
        VerificationRecord(SINK, NOW, Lsn(5), 1, 2, 3, 4, 5.0).save, lambda store: list(load_records(store))
    ),
    "attempts": Record(
        lambda store: attempt_record.save(store, SINK, AttemptRecord({"a"}, {"b": 1}, {"c": 2})),
        lambda store: attempt_record.load(store, SINK),
    ),
    "destinations": Record(
        lambda store: destination_registry.save(
            store, SINK, DestinationRegistry("", {1: RegisteredTable(1, ("s", "t"), ("s", "t"), "d")})
        ),
        lambda store: destination_registry.load(store, SINK, ""),
    ),
    "point": Record(
        lambda store: point.publish(
            store, Point(SINK, Lsn(9), NOW, NOW, "d", (PointTable("s", "t", "mirror", 1, Lsn(2), "x", "y", 7),))
        ),
        lambda store: point.load(store, SINK),
    ),
    "relation of a lake": Record(
        lambda store: point.save_relation(store, SINK, TABLE),
        lambda store: point.load_relation(store, SINK, TABLE.digest),
    ),
    "metadata of a lake": Record(_raw("m", METADATA), _parse_metadata),
    "verified backup": Record(lambda store: BACKUP.mark_verified(store, NOW), BACKUP.verified_at),
    "drill": Record(
        DrillRecord(NOW, "equal", Lsn(7), "b", 1, 2, 3.0, 4.0, (TableDifference("t", "1", "missing"),)).save,
        DrillRecord.last,
    ),
}
CHECKED = {
    "archive": Record(System("7", 1 << 24).save, System.load),
    "end of the archive": Record(ArchivePosition(1, Lsn(7), NOW).save, ArchivePosition.load),
    "backup": Record(
        lambda store: store.replace("b", BACKUP.to_json()),
        lambda store: BackupRecord.from_json(store.get("b") or b"", "b"),
    ),
    "snapshot": Record(
        lambda store: store.replace(
            "s", TableSnapshot("id", TABLE, Lsn(7), SOURCE, NOW, 3, (SnapshotChunk("c", 3, 9, "0"),)).to_json().encode()
        ),
        lambda store: TableSnapshot.from_json(store.get("s") or b"", "s"),
    ),
    "definitions": Record(
        lambda store: schema_record.save(store, SchemaRecord(Lsn(7), NOW, 5, (DEFINITION,))),
        lambda store: list(schema_record.load_all(store)),
    ),
}


@pytest.mark.parametrize("name", [*RECORDS, *CHECKED])
def test_damaged_records(tmp_path: Path, name: str) -> None:
    record = (RECORDS | CHECKED)[name]
    store = Store.open(f"memory://{tmp_path}")
    record.save(store)
    (key,) = [info.key for info in store.list("")]
    data = store.get(key)
    assert data is not None
    original = record.load(store)
    raw = stored_json.parse(data)
    if name in CHECKED:
        del raw["sha256"]
    refused = 0
    for damaged in chain(mutations(zlib.crc32(key.encode()), data), _forged(raw, is_checked=name in CHECKED)):
        store.replace(key, damaged)
        try:
            found = record.load(store)
        except TailraceError:
            refused += 1
        else:
            assert found is None or type(found) is type(original), damaged[:1000]
    assert refused > ROUNDS // 2


def _forged(raw: Any, *, is_checked: bool) -> Iterator[bytes]:
    """Copies with odd parts. Whoever writes one on purpose knows how to make its checksum."""
    for odd in json_mutations(len(json_text(raw)), raw):
        yield checked_json.dump(odd).encode() if is_checked and isinstance(odd, dict) else json_text(odd)
