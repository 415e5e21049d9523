"""What the contract claims of order and transactions, asserted on what a recorder was given."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.contract import recorder
from tests.contract.recorder import Told, Written

from tailrace.change import Image, Lsn, Position, Relation
from tailrace.log.plan import Offset

Key = tuple[int, tuple[Any, ...]]


def assert_parts_follow_the_log(directory: Path) -> None:
    """Parts of a step are ranges one after the other, and chunks of a part too; so is each step after the last."""
    last = Position(Lsn(0), 0)
    for part in _of_the_log(directory):
        for chunk in _chunks(part):
            positions = [one.position for one in chunk]
            assert last < min(positions), f"{min(positions)} comes after {last}"
            last = max(positions)
            for own in _by_table(chunk).values():
                assert own == sorted(own), "a table's changes are in order"


def assert_staged_in_order(directory: Path) -> None:
    """What is seen at once is staged in the order in which it is to be seen."""
    files = recorder.kept(directory).files
    times = {name: place for place, name in enumerate(recorder.staged(directory))}
    assert [times[name] for name in files] == sorted(times[name] for name in files)


def assert_whole_transactions(directory: Path) -> None:
    """No part ends inside a transaction."""
    for step, parts in _steps(directory).items():
        found = Counter(lsn for part in parts for lsn in {one.position.commit_lsn for one in part.told})
        assert not [lsn for lsn, times in found.items() if times > 1], f"a transaction in two parts, in the step {step}"


def assert_last_once(directory: Path) -> None:
    """`is_last` is said of the highest position of each transaction, and of no other."""
    highest: dict[Lsn, Position] = {}
    marked = []
    for part in _of_the_log(directory):
        for one in part.told:
            lsn = one.position.commit_lsn
            highest[lsn] = max(highest.get(lsn, one.position), one.position)
            marked += [one.position] if one.is_last else []
    assert sorted(marked) == sorted(highest.values())


def assert_keys_kept_together(directory: Path) -> None:
    """All changes of a key are in one part, in order; those of a table whose keys change, or that is emptied, too."""
    spread = 0
    for parts in _steps(directory).values():
        homes: defaultdict[Key, set[int]] = defaultdict(set)
        tables: defaultdict[int, set[int]] = defaultdict(set)
        together: set[int] = set()
        for part in parts:
            for oid, positions in _by_table(part.told).items():
                tables[oid].add(part.number)
                assert positions == sorted(positions)
            for one in part.told:
                keys = _keys(one)
                together |= {key[0] for key in keys if len(keys) > 1}
                if one.relation is not None and one.operation == "TRUNCATE":
                    together.add(one.relation.oid)
                for key in keys:
                    homes[key].add(part.number)
        assert all(len(numbers) == 1 for numbers in homes.values())
        assert all(len(tables[oid]) == 1 for oid in together)
        spread += any(len(numbers) > 1 for numbers in tables.values())
    assert spread, "some table was delivered in several parts"


def _of_the_log(directory: Path) -> list[Written]:
    """Without loads, and what happened to a table before it was loaded."""
    return [part for part in recorder.written(directory) if not part.step.loads]


def _steps(directory: Path) -> dict[Offset, list[Written]]:
    found: defaultdict[Offset, list[Written]] = defaultdict(list)
    for part in _of_the_log(directory):
        found[part.step.end].append(part)
    return found


def _chunks(part: Written) -> list[list[Told]]:
    found: defaultdict[int, list[Told]] = defaultdict(list)
    for one in part.told:
        found[one.chunk].append(one)
    return [found[number] for number in sorted(found)]


def _by_table(told: Iterable[Told]) -> dict[int, list[Position]]:
    found: defaultdict[int, list[Position]] = defaultdict(list)
    for one in told:
        found[one.relation.oid if one.relation else 0].append(one.position)
    return found


def _keys(one: Told) -> set[Key]:
    """Before and after; one where the key stays."""
    if one.relation is None or not one.relation.key:
        return set()
    return {(one.relation.oid, _key(one.relation, image)) for image in (one.old, one.new) if image is not None}


def _key(relation: Relation, image: Image) -> tuple[Any, ...]:
    return tuple(value for column, value in zip(relation.columns, image, strict=True) if column.name in relation.key)
