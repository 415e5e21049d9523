"""Asserts what the contract guarantees about order and transactions, on the parts that a recorder received."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.contract import recorder
from tests.contract.recorder import RecordedChange, WrittenPart

from tailrace.change import Lsn, Position
from tailrace.log.planner import Offset

Key = tuple[int, tuple[Any, ...]]


def assert_parts_follow_the_log(directory: Path) -> None:
    """Assert that steps, their parts and the parts' chunks are successive ranges of the log."""
    last = Position(Lsn(0), 0)
    for part in _parts_of_the_log(directory):
        for chunk in _chunks(part):
            positions = [one.position for one in chunk]
            assert last < min(positions), f"{min(positions)} comes after {last}"
            last = max(positions)
            for own in _by_table(chunk).values():
                assert own == sorted(own), "a table's changes are out of order"


def assert_staged_in_order(directory: Path) -> None:
    """Assert that parts that are visible as soon as they are staged were staged in log order."""
    files = recorder.load_state(directory).files
    times = {name: place for place, name in enumerate(recorder.staged_names(directory))}
    assert [times[name] for name in files] == sorted(times[name] for name in files)


def assert_whole_transactions(directory: Path) -> None:
    """Assert that no part ends inside a transaction."""
    for step, parts in _steps(directory).items():
        found = Counter(lsn for part in parts for lsn in {one.position.commit_lsn for one in part.changes})
        assert not [lsn for lsn, times in found.items() if times > 1], f"a transaction in two parts, in the step {step}"


def assert_last_is_marked(directory: Path, *, in_each_part: bool = False) -> None:
    """Assert that `is_last` is set at the highest position of each transaction, and nowhere else.

    With `in_each_part`, a transaction that is divided has such a position in each of its parts.
    """
    highest: dict[tuple[int, Lsn], Position] = {}
    marked = []
    for number, part in enumerate(_parts_of_the_log(directory)):
        for one in part.changes:
            key = (number if in_each_part else 0, one.position.commit_lsn)
            highest[key] = max(highest.get(key, one.position), one.position)
            marked += [one.position] if one.is_last else []
    assert sorted(marked) == sorted(highest.values())


def _parts_of_the_log(directory: Path) -> list[WrittenPart]:
    """The parts of steps that load no table."""
    parts = [part for part in recorder.written_parts(directory) if not part.step.loads]
    assert parts, "there is nothing to check"
    return parts


def _steps(directory: Path) -> dict[Offset, list[WrittenPart]]:
    found: defaultdict[Offset, list[WrittenPart]] = defaultdict(list)
    for part in _parts_of_the_log(directory):
        found[part.step.end].append(part)
    return found


def _chunks(part: WrittenPart) -> list[list[RecordedChange]]:
    found: defaultdict[int, list[RecordedChange]] = defaultdict(list)
    for one in part.changes:
        found[one.chunk].append(one)
    return [found[number] for number in sorted(found)]


def _by_table(changes: Iterable[RecordedChange]) -> dict[int, list[Position]]:
    found: defaultdict[int, list[Position]] = defaultdict(list)
    for one in changes:
        found[one.relation.oid if one.relation else 0].append(one.position)
    return found
