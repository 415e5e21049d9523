"""Streams in Valkey: ids, tombstones, foreign entries, and limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures.postgres import Database
from tests.sinks.valkey_scene import ValkeyScene

from tailrace.change import Position
from tailrace.embedded.valkey import ValkeyServer
from tailrace.errors import SinkDiverged, SinkRefused
from tailrace.log.decoding import ChangePositions
from tailrace.sinks.valkey.entry_id import EntryId, entry_ids

_SETTINGS: dict[str, Any] = {"mode": "stream", "key": "s:{table}"}


@pytest.fixture
def scene(database: Database, valkey_server: ValkeyServer, tmp_path: Path) -> ValkeyScene:
    made = ValkeyScene(database, valkey_server, tmp_path)
    made.capture("CREATE TABLE t (id int PRIMARY KEY, n int)", snapshot=None)
    return made


def _entries(scene: ValkeyScene, stream: str = "s:t") -> list[tuple[EntryId, dict[str, bytes]]]:
    found: Any = scene.client.xrange(stream)
    return [(EntryId.parse(id), {name.decode(): value for name, value in fields.items()}) for id, fields in found]


def test_ids_are_positions_and_a_rewind_continues_above_them(scene: ValkeyScene) -> None:
    scene.capture(
        "INSERT INTO t VALUES (1, 1), (2, 2)", "UPDATE t SET id = 3 WHERE id = 1", "DELETE FROM t WHERE id = 2"
    )
    settings = {**_SETTINGS, "envelope": "row"}
    scene.deliver(**settings)
    entries = _entries(scene)
    positions = [Position.parse(fields["Tailrace-Position"].decode()) for _, fields in entries]
    # A key that changed is a tombstone and a row, at the same position.
    assert [id.second for id, _ in entries] == [0, 8, 0, 1, 0]
    assert [id.first for id, _ in entries] == [position.commit_lsn for position in positions]
    assert [("value" in f, json.loads(f["key"])["id"]) for _, f in entries] == [
        *((True, 1), (True, 2)),
        *((False, 1), (True, 3)),
        (False, 2),
    ]
    with scene.stepper(**settings) as one:
        one.rewind("snapshot")
    scene.deliver(**settings)
    again = _entries(scene)[len(entries) :]
    assert [(id.first - (1 << 56), id.second) for id, _ in again] == [(id.first, id.second) for id, _ in entries]
    assert [fields for _, fields in again] == [fields for _, fields in entries]


def test_entries_of_others_are_noticed(scene: ValkeyScene) -> None:
    scene.client.xadd("s:t", {"a": "b"})
    scene.capture("INSERT INTO t VALUES (1, 1)")
    with pytest.raises(SinkRefused, match="exists already"):
        scene.deliver(**_SETTINGS)
    scene.client.delete("s:t")
    scene.deliver(**_SETTINGS)
    scene.client.xadd("s:t", {"a": "b"})
    scene.capture("INSERT INTO t VALUES (2, 2)")
    with pytest.raises(SinkDiverged, match="somebody else wrote") as caught:
        scene.deliver(**_SETTINGS)
    assert "DEL" in caught.value.hint
    scene.client.delete("s:t")  # as the hint says, or to save memory
    scene.deliver(**_SETTINGS)
    assert [json.loads(fields["value"])["data"] for _, fields in _entries(scene)] == [{"id": 2, "n": 2}]
    scene.client.delete("s:t")
    scene.client.set("s:t", "not a stream")
    scene.capture("INSERT INTO t VALUES (3, 3)")
    with pytest.raises(SinkRefused, match="is not a stream"):
        scene.deliver(**_SETTINGS)


def test_a_stream_retains_about_as_many_entries_as_it_may(scene: ValkeyScene) -> None:
    scene.capture("INSERT INTO t SELECT g, g FROM generate_series(1, 1000) g")
    scene.deliver(**_SETTINGS, stream_max_entries=100)
    assert 100 <= scene.client.xlen("s:t") <= 300
    assert json.loads(_entries(scene)[-1][1]["value"])["data"] == {"id": 1000, "n": 1000}


def test_ids_rise_in_each_stream() -> None:
    lsns, ordinals = np.array([5, 5, 7, 7, 7]), np.array([0, 1, 0, 0, 0])
    none = np.zeros(5, np.int64)
    at = ChangePositions(lsns, ordinals, none, none, none, np.zeros(5, np.bool_))
    ids, last = entry_ids(at, np.array([0, 1, 0, 0, 1]), [EntryId(), EntryId((3 << 56) + 5, 8)])
    third = 4 << 56
    assert ids.to_pylist() == ["5-0", f"{third + 5}-8", "7-0", "7-1", f"{third + 7}-0"]
    assert last == [EntryId(7, 1), EntryId(third + 7, 0)]
