"""The audit sink and the Spark source attach the same context to each change."""

from __future__ import annotations

import json
from pathlib import Path

from tests.audit.trail_follower import trailing
from tests.fixtures.postgres import Database

from tailrace.log import planner
from tailrace.log.decoding import ChangeFilter
from tailrace.log.reader import LogReader
from tailrace.spark.reading import LogPartition, batches
from tailrace.store import Store

_OTHER = "SELECT pg_logical_emit_message(true, 'other', 'x')"
_ALONE = "SELECT pg_logical_emit_message(false, '_bemi', '\"alone\"')"


def _message(context: str) -> str:
    return f"SELECT pg_logical_emit_message(true, '_bemi', '\"{context}\"')"


def test_the_audit_sink_and_the_spark_source_agree(database: Database, destination: Database, tmp_path: Path) -> None:
    transactions = {
        "change, A, change, B": "A B",
        "change, A, change, B, change": "A B B",
        "A, change, B, change, change": "A B B",
        "A, B, change, C, change": "B C",
        "A, change, change": "A A",
        "change, A, change": "A A",
        "change, change, A": "A A",
        "other, A, change, B, other, change": "A B",
        "other, change, A, other, change, B": "A B",
        "change, A, alone, change, B": "A B",
        "other, change, other": "-",
        "change, change": "- -",
    }
    expected = [
        None if context == "-" else context for contexts in transactions.values() for context in contexts.split()
    ]
    database.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int)")
    statements = {"change": "INSERT INTO t DEFAULT VALUES", "other": _OTHER, "alone": _ALONE}
    with trailing(database, destination, tmp_path) as audited:
        for transaction in transactions:
            own = [statements.get(word) or _message(word) for word in transaction.split(", ")]
            audited.execute(f"BEGIN; {'; '.join(own)}; COMMIT")
        audit = [row["context"] for row in sorted(audited.rows("t"), key=lambda row: int(row["primary_key"]))]
        spark = _spark_contexts(audited.log.store)
    assert audit == expected
    assert spark == expected


def _spark_contexts(store: Store) -> list[str | None]:
    reader = LogReader(store)
    batch = planner.batch_between(reader, planner.start_offset(reader, None), planner.latest_offset(reader))
    rows = [
        row for found in batches(reader, LogPartition(batch.slices, ChangeFilter(), None)) for row in found.to_pylist()
    ]
    return [row["context"] and json.loads(row["context"]) for row in rows if row["table"] == "t"]
