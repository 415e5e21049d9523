"""Spark on the log of a SlateDB database: changes, typed rows, and the state at any position."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.capture.slatedb.database_writer import DatabaseWriter
from tests.capture.slatedb.test_capture import Scene, directory, scene  # noqa: F401 (fixtures)
from tests.capturing import CaptureThread
from tests.spark.logs import as_json, load, stream
from tests.spark.test_source_stream import Run, in_order

from tailrace.capture.slatedb.bootstrap import SlateDbBootstrap
from tailrace.change import Lsn
from tailrace.log import change_text
from tailrace.settings.slatedb import ValueSettings

VALUES = ValueSettings("json", {"name": "text", "age": "int4"})


def write(writer: DatabaseWriter, chance: random.Random) -> None:
    for _ in range(30):
        key = b"\xff%d" % chance.randrange(20)
        if chance.random() < 0.3:
            writer.delete(key)
        else:
            writer.put(key, json.dumps({"name": "Bo\u00e9", "age": chance.randrange(99)}).encode())
    writer.flush()


def test_spark_reads_changes_rows_and_states(
    scene: Scene,  # noqa: F811
    directory: Path,  # noqa: F811
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    own = scene.with_source(value=VALUES)
    chance = random.Random(3)
    scans: dict[Lsn, dict[bytes, bytes]] = {}
    with DatabaseWriter(directory) as writer:
        write(writer, chance)
        writer.flush_table()
        with CaptureThread(own.settings, own.store, snapshots=SlateDbBootstrap(own.settings, own.store)) as run:
            run.wait(lambda: own.has_snapshot())
            with Run(stream(spark, own.store), tmp_path / "checkpoint") as streamed:
                for _ in range(2):
                    write(writer, chance)
                    end = own.written_lsn()
                    run.wait_for(end)
                    scans[end] = writer.scan()
                changes = list(own.reader().changes())
                rows = streamed.wait_for(len(changes))
    expected = [change_text.to_json(change) for change in changes]
    assert in_order(rows) == expected
    batch = load(spark, own.store).orderBy("commit_lsn", "ordinal").collect()
    assert [as_json(row) for row in batch] == expected

    typed = load(spark, own.store, table="slatedb.users").orderBy("_commit_lsn", "_ordinal").collect()
    assert [
        (row._operation, bytes((row._before if row._operation == "DELETE" else row).key), row.name, row.age)
        for row in typed
    ] == [
        (
            str(change.operation),
            *((change.after["key"], change.after["name"], change.after["age"]) if change.after else _key(change)),
        )
        for change in changes
    ]

    for end, scan in scans.items():
        state = load(spark, own.store, table="slatedb.users", snapshot="true", as_of=str(end)).collect()
        assert {bytes(row.key): (bytes(row.value), row.name, row.age) for row in state} == {
            key: (value, *json.loads(value).values()) for key, value in scan.items()
        }


def _key(change: Any) -> tuple[bytes, None, None]:
    return change.key["key"], None, None
