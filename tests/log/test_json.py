"""Columns of JSON are, text for text, what is rendered change by change."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.capturing import CaptureThread, configured, current_lsn
from tests.fixtures.postgres import Database
from tests.workload import Workload

from tailrace.change import Position
from tailrace.log import json as columns
from tailrace.log import plan, rendering
from tailrace.log.decoding import Admission, chunks, with_last
from tailrace.log.reader import LogReader
from tailrace.store import Store


@pytest.mark.parametrize("seed", [1, 2])
def test_records_are_those_of_the_renderer(database: Database, tmp_path: Path, seed: int) -> None:
    """Every type, TOAST, keys of every kind, TRUNCATE, messages, columns that come and go, odd names."""
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    store = Store.open(str(tmp_path))
    workload = Workload(database.connect, seed, ddl=True, exclusive=0.05)
    workload.create()
    with CaptureThread(configured(database, segment_bytes=64 * 1024), store) as running, database.connect() as source:
        workload.run(150)
        workload.stop()
        running.wait_for(current_lsn(source))
    reader = LogReader(store)
    expected = [(change.position, rendering.to_json(change)) for change in reader.changes()]
    batch = plan.following(reader, plan.begin(reader, None))
    found: dict[Position, str] = {}
    for chunk in with_last(chunks(reader, batch.slices, Admission(), as_text=True)):
        for part in chunk:
            records = columns.records(part)
            assert records.type == pa.string()
            assert not records.null_count
            found |= {part.at.position(row): text.as_py() for row, text in enumerate(records)}
    assert len(expected) > 500
    positions = [position for position, _ in expected]
    assert sorted(found) == positions
    for index, (position, text) in enumerate(expected):
        is_last = index + 1 == len(expected) or positions[index + 1].commit_lsn != position.commit_lsn
        assert found[position] == text[:-1] + f', "is_last": {json.dumps(is_last)}' + "}"
