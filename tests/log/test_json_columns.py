"""Columns of JSON equal the JSON of single changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.capturing import CaptureThread, configured, current_lsn
from tests.fixtures.postgres import Database
from tests.workload import Workload

from tailrace.change import Column, Position, Relation, Type
from tailrace.images import Images
from tailrace.log import change_text, planner
from tailrace.log import json_columns as columns
from tailrace.log.decoding import UPDATE, ChangeFilter, ChangePositions, TableChanges, chunks, no_images, with_last
from tailrace.log.reader import LogReader
from tailrace.store import Store


@pytest.mark.parametrize("seed", [1, 2])
def test_records_equal_the_json_of_single_changes(database: Database, tmp_path: Path, seed: int) -> None:
    """With every type, TOAST, all kinds of keys, TRUNCATE, messages, added and dropped columns, and odd names."""
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    store = Store.open(str(tmp_path))
    workload = Workload(database.connect, seed, ddl=True, exclusive=0.05)
    workload.create()
    with CaptureThread(configured(database, segment_bytes=64 * 1024), store) as running, database.connect() as source:
        workload.run(150)
        workload.stop()
        running.wait_for(current_lsn(source))
    reader = LogReader(store)
    expected = [(change.position, change_text.to_json(change)) for change in reader.changes()]
    batch = planner.next_batch(reader, planner.start_offset(reader, None))
    found: dict[Position, str] = {}
    for chunk in with_last(chunks(reader, batch.slices, ChangeFilter(), as_text=True)):
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


@pytest.mark.parametrize("unsent", [[False, True, False], [True, True, True], [True, False, True]])
def test_rows_with_all_or_no_values_unsent(unsent: list[bool]) -> None:
    column = Column("body", Type(25, "pg_catalog", "text"))
    relation = Relation(1, "public", "t", "d", (column,))
    texts = pa.array([None if missing else "x" for missing in unsent], pa.string())
    images = Images(pa.RecordBatch.from_arrays([texts], ["body"]), np.ones(3, np.bool_), {0: np.array(unsent)}, None)
    found = columns.json_objects(images, relation).to_pylist()
    assert found == ["{}" if missing else '{"body": "x"}' for missing in unsent]
    none = np.zeros(3, np.int64)
    at = ChangePositions(none, none, none, none, none, np.zeros(3, np.bool_))
    changes = TableChanges(relation, at, np.full(3, UPDATE, np.uint8), no_images(relation, 3, True), at.is_last, images)
    assert columns.unchanged_columns(changes).to_pylist() == ['["body"]' if missing else "[]" for missing in unsent]
