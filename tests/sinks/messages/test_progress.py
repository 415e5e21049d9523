"""Progress: whatever was interrupted and however it is repeated, each change is published once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.pgoutput import build
from tests.sinks.messages import runs

from tailrace.change import Lsn, Position, Relation
from tailrace.delivery.contract import Load, Part, State, Step
from tailrace.log.decoding import SNAPSHOT, ChangePositions, Chunk, LogicalMessages, TableChanges
from tailrace.log.planner import Offset
from tailrace.sinks.messages.progress import LoadProgress, PartProgress, Progress

ORDERS = replace(runs.table(("id", "int4")), oid=1)
ITEMS = replace(runs.table(("id", "int4"), name="items"), oid=2)


def _at(positions: Sequence[Position]) -> ChangePositions:
    count = len(positions)
    return ChangePositions(
        np.array([p.commit_lsn for p in positions], np.int64),
        np.array([p.ordinal for p in positions], np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.bool_),
    )


def _parse(texts: Iterable[str]) -> list[Position]:
    return [Position.parse(text) for text in texts]


def _run(relation: Relation, *positions: str, is_snapshot: bool = False) -> TableChanges:
    run = runs.changes(relation, *[build.insert((b"1",), relation.oid)] * len(positions))
    run = replace(run, at=_at(_parse(positions)))
    return replace(run, operation=np.full(len(run), SNAPSHOT, np.uint8)) if is_snapshot else run


def _messages(*positions: str) -> LogicalMessages:
    return replace(runs.logical_messages(*[("app", b"x")] * len(positions)), at=_at(_parse(positions)))


def _part(*loads: tuple[Relation, str], replays: Sequence[str] = ()) -> Part:
    made = tuple(Load(relation, (relation.schema, relation.name), id, Lsn(0x100)) for relation, id in loads)
    state = State(Lsn(0x100))
    step = Step(state, state, Offset(0, Lsn(0)), Offset(1, Lsn(0x900)), 1, made, tuple(_parse(replays)))
    return Part(step, 0, iter(()))


def _positions(chunk: Chunk) -> list[str]:
    return [str(run.at.position(row)) for run in chunk for row in range(len(run))]


def test_json_round_trip() -> None:
    one = Position(Lsn(0x1A2B3C4), 17)
    progress = Progress(
        "7/shop", 3, one, {"A-1": LoadProgress(one, None), "B-2": LoadProgress(None, one)}, frozenset([one])
    )
    assert Progress.from_json(progress.to_json()) == progress
    assert Progress.from_json(Progress("", 0).to_json()) == Progress()
    for text in ("", "7", "{}", '{"source": "", "replays": 0, "log": "x", "loads": {}, "dead_letters": []}', "\xff"):
        with pytest.raises(ValueError, match="not the progress of a sink"):
            Progress.from_json(text)


def test_a_repeated_step_continues_inside_a_transaction() -> None:
    part = PartProgress(Progress(log=Position(Lsn(0x200), 1)), _part())
    chunk: Chunk = [
        _run(ORDERS, "0/100:0", "0/200:0", "0/200:2", "0/300:0"),
        _run(ITEMS, "0/200:1", "0/200:3"),
        _messages("0/200:4"),
    ]
    missing, after = part.select_missing(chunk)
    assert _positions(missing) == ["0/200:2", "0/300:0", "0/200:3", "0/200:4"]
    assert after.log == Position(Lsn(0x300), 0)
    # The progress is beyond what follows, and stays there.
    missing, again = part.select_missing([_run(ITEMS, "0/200:3"), _run(ORDERS)])
    assert missing == []
    assert again == after == part.progress


def test_rows_and_changes_of_a_load_may_have_the_same_positions() -> None:
    """A snapshot's LSN may be the commit LSN of a transaction that the snapshot does not contain."""
    part = PartProgress(Progress(), _part((ORDERS, "first"), (ITEMS, "second")))
    for chunk in (
        [_run(ORDERS, "0/100:0", "0/100:1", is_snapshot=True)],
        [_run(ITEMS, "0/100:0", "0/100:1", "0/100:2", is_snapshot=True)],
        [_run(ORDERS, "0/100:0", "0/200:0"), _run(ITEMS, "0/100:1")],
    ):
        missing, after = part.select_missing(chunk)
        assert _positions(missing) == _positions(chunk)
    assert after.log is None, "the changes of a load are not those of the log"
    assert after.loads == {
        "first": LoadProgress(Position(Lsn(0x100), 1), Position(Lsn(0x200), 0)),
        "second": LoadProgress(Position(Lsn(0x100), 2), Position(Lsn(0x100), 1)),
    }
    # Repeated after its first two transactions.
    part = PartProgress(
        replace(after, loads={"first": LoadProgress(Position(Lsn(0x100), 0))}),
        _part((ORDERS, "first"), (ITEMS, "second")),
    )
    missing, _ = part.select_missing([_run(ORDERS, "0/100:0", "0/100:1", is_snapshot=True)])
    assert _positions(missing) == ["0/100:1"]
    missing, _ = part.select_missing([_run(ORDERS, "0/100:0"), _run(ITEMS, "0/100:0")])
    assert _positions(missing) == ["0/100:0", "0/100:0"]


def test_progress_of_finished_loads_is_forgotten() -> None:
    """Another load of the table, from another snapshot, begins with the first row."""
    done = Progress(log=Position(Lsn(0x80), 0), loads={"first": LoadProgress(Position(Lsn(0x100), 9))})
    assert PartProgress(done, _part()).progress.loads == {}
    part = PartProgress(done, _part((ORDERS, "second")))
    missing, after = part.select_missing([_run(ORDERS, "0/100:0", is_snapshot=True)])
    assert _positions(missing) == ["0/100:0"]
    assert after.loads.keys() == {"second"}
    assert after.log == done.log


def test_dead_letters_are_delivered_once() -> None:
    """Those of several transactions, each in a part of its own, below the position that the log has reached."""
    letters = ["0/100:3", "0/200:0", "0/200:5"]
    part = PartProgress(Progress(log=Position(Lsn(0x900), 0)), _part(replays=letters))
    missing, first = part.select_missing([_run(ORDERS, "0/100:3")])
    assert _positions(missing) == ["0/100:3"]
    part = PartProgress(Progress.from_json(first.to_json()), _part(replays=letters))
    missing, after = part.select_missing([_run(ORDERS, "0/100:3", "0/200:0"), _run(ITEMS, "0/200:5")])
    assert _positions(missing) == letters[1:]
    assert after.log == first.log == Position(Lsn(0x900), 0)
    # A dead letter may be one again, after a rewind or with the next request.
    assert PartProgress(after, _part(replays=letters[:1])).progress.dead_letters == {Position.parse(letters[0])}
    assert PartProgress(after, _part()).progress.dead_letters == frozenset()


@pytest.mark.parametrize("seed", range(20))
def test_each_change_once_however_often_it_is_interrupted(seed: int) -> None:
    """In batches of any size, some of which were published before the process ended."""
    rng = random.Random(seed)
    positions = [f"0/{lsn:X}:{ordinal}" for lsn in range(0x100, 0x110) for ordinal in range(rng.randint(1, 6))]
    tables = [rng.choice([ORDERS, ITEMS]) for _ in positions]
    published: list[str] = []
    stored = Progress()
    while True:
        part = PartProgress(Progress.from_json(stored.to_json()), _part())
        at = 0
        while at < len(positions):
            size = rng.randint(1, 20)
            batch = list(zip(positions, tables, strict=True))[at : at + size]
            chunk: Chunk = [
                _run(table, *(position for position, its in batch if its is table))
                for table in rng.sample([ORDERS, ITEMS], 2)
            ]
            missing, after = part.select_missing(chunk)
            if rng.random() < 0.2:
                break
            published += sorted(_positions(missing), key=Position.parse)
            stored = after
            at += size
        else:
            break
    assert Counter(published) == Counter(positions)
    assert published == positions
