"""A history of a database with merges: a version for each merge, with the operand and the time that it was valid."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.capture.slatedb.database_writer import MERGE_OPERATOR, DatabaseWriter, RandomWrites, append
from tests.capture.slatedb.test_capture import Scene, directory, scene  # noqa: F401 (fixtures)
from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.destinations import History
from tests.fixtures.postgres import Database

from tailrace import WalReader
from tailrace.change import Lsn
from tailrace.log.snapshot import SnapshotReader
from tailrace.slatedb.row_entry import EntryKind


class Version(NamedTuple):
    key: bytes
    value: bytes
    operand: bytes | None
    operation: str
    valid_from: str
    """For a row of the snapshot, the LSN alone: its ordinal is its number among the rows."""
    valid_to: str | None
    from_time: datetime | None
    """None for a row of the snapshot."""
    to_time: datetime | None


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 6))])
def test_a_history_has_a_version_for_each_merge(
    seed: int,
    scene: Scene,  # noqa: F811
    directory: Path,  # noqa: F811
    database: Database,
) -> None:
    merging = scene.with_source(merge_operator=MERGE_OPERATOR)
    driver = DeliveryDriver(History(database), merging.settings.store)
    writes = RandomWrites(seed, 10, has_ttl=False, has_merges=True)
    with DatabaseWriter(directory) as writer:
        writes.run(writer, 20)
        writer.merge(b"in tables", b"1")
        writer.flush_table()
        for _ in range(3):
            writer.merge(b"in tables", b"2")
            writes.run(writer, 20)
            merging.capture()
            merging.deliver(driver)
        (snapshot,) = SnapshotReader(merging.store).list()
        expected = _versions(directory.as_uri(), snapshot.lsn)
        assert {v.key: v.value for v in expected if v.valid_to is None} == writer.scan()
    assert _delivered(database) == sorted(expected, key=_order)


def _versions(url: str, begin: Lsn) -> list[Version]:
    """What the WAL adds up to, entry by entry. The rows before `begin` are of the snapshot."""
    entries = [entry for file in WalReader("", url).list() for entry in file.iterator() or ()]
    current: dict[bytes, Version] = {}
    ended: list[Version] = []
    ordinal = last_seq = 0
    for entry in entries:
        ordinal = ordinal + 1 if entry.seq == last_seq else 0
        last_seq = entry.seq
        assert entry.create_ts is not None
        position, time = f"{Lsn(entry.seq)}:{ordinal}", datetime.fromtimestamp(entry.create_ts / 1000, UTC)
        before = current.pop(entry.key, None)
        if before is not None and entry.seq >= begin:
            ended.append(before._replace(valid_to=position, to_time=time))
        if entry.kind is EntryKind.DELETE:
            continue
        assert entry.value is not None
        is_merge = entry.kind is EntryKind.MERGE
        value = append(entry.key, before.value if before else None, entry.value) if is_merge else entry.value
        version = Version(entry.key, value, entry.value if is_merge else None, "UPDATE", position, None, time, None)
        if entry.seq < begin:
            version = version._replace(operand=None, operation="SNAPSHOT", valid_from=str(begin), from_time=None)
        current[entry.key] = version
    return ended + list(current.values())


def _delivered(database: Database) -> list[Version]:
    with database.connect() as connection:
        rows = connection.execute(
            "SELECT key, value, operand, _operation, "
            "CASE _operation WHEN 'SNAPSHOT' THEN split_part(_valid_from_position, ':', 1) "
            "ELSE _valid_from_position END, _valid_to_position, "
            "CASE WHEN _operation <> 'SNAPSHOT' THEN _valid_from END, _valid_to FROM slatedb.users"
        ).fetchall()
    versions = (
        Version(bytes(key), bytes(value), None if operand is None else bytes(operand), *others)
        for key, value, operand, *others in rows
    )
    return sorted(versions, key=_order)


def _order(version: Version) -> tuple[bytes, str]:
    return version.key, version.valid_from
