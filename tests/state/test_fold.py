"""The net effect of a run equals the effect of its changes applied one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.pgoutput import build

from tailrace.change import UNCHANGED, Column, Image, Relation
from tailrace.errors import DecodeError
from tailrace.log.decoding import ChangePositions, TableChanges
from tailrace.pgoutput.decoder import decode
from tailrace.state.fold import NetChanges, copied_rows, final_images, fold, fold_copies, has_key, join_runs, row_codes

_TEXT = build.type_("text")
KEY = ("b", "a")  # not in the order of the columns
Row = tuple[bytes | None, ...]


def relation(identity: str = "d", key: tuple[str, ...] = KEY) -> Relation:
    names = ("a", "n", "b", "body")
    is_full = identity == "f"
    return Relation(
        build.OID, "public", "t", identity, tuple(Column(n, _TEXT, -1, is_full or n in key) for n in names), key
    )


def changes_of(relation: Relation, payloads: list[bytes]) -> TableChanges:
    count = len(payloads)
    decoded = decode(relation, pa.array(payloads, pa.binary()), as_text=True)
    numbers = np.arange(count)
    at = ChangePositions(numbers, numbers, numbers, numbers, numbers, np.zeros(count, np.bool_))
    operation = np.array([p[0] for p in payloads], np.uint8)
    return TableChanges(relation, at, operation, decoded.old, decoded.old_is_key, decoded.new)


@dataclass
class Table:
    """A model of a table that records the messages PostgreSQL would send."""

    relation: Relation
    rows: list[Row]
    payloads: list[bytes] = field(default_factory=list)

    def of(self, key: Row) -> list[int]:
        return [i for i, row in enumerate(self.rows) if key_of(row) == key]

    def insert(self, row: Row) -> None:
        self.rows.append(row)
        self.payloads.append(build.insert(row))

    def delete(self, place: int) -> None:
        row = self.rows.pop(place)
        self.payloads.append(build.delete(*self._old(row)))

    def update(self, place: int, row: Row, *, is_body_sent: bool) -> None:
        before = self.rows[place]
        if not is_body_sent:
            row = (*row[:3], before[3])
        self.rows[place] = row
        new: Image = row if is_body_sent else (*row[:3], UNCHANGED)
        if self.relation.identity == "f" or key_of(before) != key_of(row):
            self.payloads.append(build.update(new, *self._old(before)))
        else:
            self.payloads.append(build.update(new))

    def _old(self, row: Row) -> tuple[Image, bytes]:
        if self.relation.identity == "f":
            return row, b"O"
        identity = [v if c.is_identity else None for v, c in zip(row, self.relation.columns, strict=True)]
        return tuple(identity), b"K"


def key_of(row: Row) -> Row:
    return row[2], row[0]


def texts(batch: pa.RecordBatch) -> list[Row]:
    columns = [[None if v is None else v.encode() for v in column.to_pylist()] for column in batch.columns]
    return list(zip(*columns, strict=True))


def apply_net_effect(changes: TableChanges, folded: NetChanges, before: list[Row]) -> Counter[Row]:
    """Apply the net effect as a consumer does: remove deleted and moved rows, then add inserted and moved ones."""
    rows = {key_of(row): row for row in before}
    assert len(rows) == len(before)
    olds, news = texts(changes.old.batch), texts(changes.new.batch)
    was: list[Row | None] = [None] * len(folded)
    for entry, origin in enumerate(folded.origin.tolist()):
        if origin >= 0:
            image = olds[origin] if changes.old.present[origin] else news[origin]
            was[entry] = rows.pop(key_of(image))
    there = np.flatnonzero(~folded.is_deleted)
    final = final_images(changes, folded, there)
    for place, (entry, row) in enumerate(zip(there.tolist(), texts(final.batch), strict=True)):
        old = was[entry]
        for column, mask in final.unchanged.items():
            if mask[place]:
                assert old is not None
                row = (*row[:column], old[column], *row[column + 1 :])
        assert key_of(row) not in rows
        assert bool(folded.is_moved[entry]) == (old is not None and key_of(old) != key_of(row))
        rows[key_of(row)] = row
    return Counter(rows.values())


# Parts of keys that would be equal if they were joined with nothing or a comma between them.
_PARTS = [b"", b"1", b"11", b"1,1", b"x"]
_KEYS = [(b, a) for b in _PARTS for a in _PARTS[:3]]

_STEP = st.tuples(
    st.sampled_from("IUUUMMD"), st.integers(0, len(_KEYS) - 1), st.integers(0, len(_KEYS) - 1), st.booleans()
)


def play_steps(
    relation: Relation, had: set[int], steps: list[Any], *, is_deferred: bool = False
) -> tuple[Table, list[Row]]:
    def row(key: int, number: int) -> Row:
        b, a = _KEYS[key]
        return (a, str(number).encode(), b, b"body %d" % number if number % 3 else None)

    table = Table(relation, [row(key, -key - 1) for key in sorted(had)])
    before = list(table.rows)
    for number, (kind, key, other, flag) in enumerate(steps, 1):
        there = table.of(_KEYS[key])
        if kind == "I" and (is_deferred or not there):
            table.insert(row(key, number))
        elif there and kind == "D":
            table.delete(there[-flag])
        elif there and kind == "U":
            table.update(there[-flag], row(key, number), is_body_sent=flag)
        elif there and kind == "M" and (is_deferred or key == other or not table.of(_KEYS[other])):
            table.update(there[0], row(other, number), is_body_sent=flag)
    return table, before


thoroughly = settings(derandomize=True, deadline=None, max_examples=400)


@thoroughly
@given(st.sampled_from("df"), st.sets(st.integers(0, len(_KEYS) - 1)), st.lists(_STEP, max_size=40))
def test_net_effect_equals_the_changes_one_by_one(identity: str, had: set[int], steps: list[Any]) -> None:
    table, before = play_steps(relation(identity), had, steps)
    changes = changes_of(table.relation, table.payloads)
    assert apply_net_effect(changes, fold(changes), before) == Counter(table.rows)


@thoroughly
@given(
    st.sets(st.integers(0, 3)),
    st.lists(st.tuples(st.sampled_from("IMMDU"), st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=16),
)
def test_rows_that_share_a_key_until_commit_are_distinguished(had: set[int], steps: list[Any]) -> None:
    """With a deferrable key and replica identity full, one statement may swap two keys."""
    table, before = play_steps(relation("f"), had, steps, is_deferred=True)
    assume(len({key_of(row) for row in table.rows}) == len(table.rows))
    changes = changes_of(table.relation, table.payloads)
    assert apply_net_effect(changes, fold(changes), before) == Counter(table.rows)


@thoroughly
@given(st.lists(st.tuples(st.sampled_from("IIUMD"), st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=30))
def test_equal_rows_are_counted(steps: list[Any]) -> None:
    table = Table(relation("f", key=()), [])
    for kind, key, other, flag in steps:
        row: Row = (_KEYS[key][1], None, b"", b"large")
        there = [i for i, r in enumerate(table.rows) if r == row]
        if kind == "I":
            table.insert(row)
        elif there and kind == "D":
            table.delete(there[0])
        elif there:
            table.update(there[-1], (_KEYS[other][1], None, b"", b"large"), is_body_sent=flag)
    cut = len(table.payloads) // 2
    first = changes_of(table.relation, table.payloads[:cut])
    second = changes_of(table.relation, table.payloads[cut:])
    found: Counter[Row] = Counter()
    for changes in (first, second):
        copies = fold_copies(changes)
        assert copies.delta.all()
        for mask in (copies.delta > 0, copies.delta < 0):
            rows = texts(copied_rows(changes, copies, mask).batch)
            for row, delta in zip(rows, copies.delta[mask].tolist(), strict=True):
                found[row] += delta
                assert found[row] >= 0
    assert +found == Counter(table.rows)


def test_keys_swapped_through_a_third() -> None:
    table = Table(relation(), [(b"1", b"A", b"", None), (b"2", b"B", b"", None)])
    before = list(table.rows)
    for place, a in ((0, b"3"), (1, b"1"), (0, b"2")):
        table.update(place, (a, *table.rows[place][1:]), is_body_sent=False)
    changes = changes_of(table.relation, table.payloads)
    folded = fold(changes)
    assert len(folded) == 2
    assert folded.is_moved.all()
    assert apply_net_effect(changes, folded, before) == Counter([(b"2", b"A", b"", None), (b"1", b"B", b"", None)])


def test_a_key_too_large_to_be_sent_again_is_in_the_old_image() -> None:
    large = b"k" * 3000
    new: Image = (UNCHANGED, b"2", b"", b"x")
    old = (large, None, b"", None)
    changes = changes_of(relation(), [build.update(new, old, b"K"), build.delete((b"7", None, b"", None))])
    folded = fold(changes)
    assert folded.final.tolist() == [0, -1]
    assert not folded.is_moved.any()
    assert texts(final_images(changes, folded, ~folded.is_deleted).batch) == [(large, b"2", b"", b"x")]


def test_an_unsent_value_comes_from_an_earlier_change_or_the_row_before() -> None:
    unsent = (b"1", b"3", b"", UNCHANGED)
    payloads = [
        build.update((b"1", b"1", b"", b"sent")),
        build.update(unsent),
        build.update((b"2", b"2", b"", UNCHANGED)),
        build.delete((b"3", None, b"", None), b"K"),
    ]
    changes = changes_of(relation(), payloads)
    rows, source = fold(changes).fills[3]
    final = fold(changes).final
    assert {int(final[r]): int(s) for r, s in zip(rows, source, strict=True)} == {1: 0, 2: -1}


def test_a_row_rewritten_between_its_changes_is_still_one_row() -> None:
    """ALTER TABLE … TYPE text USING upper(…) changes every row but not the relation."""
    old: Image = (b"1", b"ONE", b"", None)
    payloads = [build.insert((b"1", b"one", b"", None)), build.update((b"1", b"TWO", b"", None), old)]
    folded = fold(changes_of(relation("f"), payloads))
    assert (folded.origin.tolist(), folded.final.tolist()) == ([-1], [1])


def test_inserts_only() -> None:
    changes = changes_of(relation(), [build.insert((b"%d" % i, None, b"", None)) for i in range(5)])
    folded = fold(changes)
    assert folded.final.tolist() == list(range(5))
    assert folded.is_inserted.all()
    assert final_images(changes, folded).batch is changes.new.batch


def test_runs_are_joined() -> None:
    one = changes_of(relation(), [build.insert((b"1", b"1", b"", b"kept"))])
    two = changes_of(relation(), [build.update((b"1", b"2", b"", UNCHANGED)), build.delete((b"9", None, b"", None))])
    changes = join_runs([one, two])
    folded = fold(changes)
    assert texts(final_images(changes, folded, ~folded.is_deleted).batch) == [(b"1", b"2", b"", b"kept")]
    assert (folded.is_deleted & ~folded.is_inserted).sum() == 1
    assert join_runs([one]) is one


def test_no_changes() -> None:
    changes = changes_of(relation(), [])
    assert len(fold(changes)) == 0
    assert len(fold_copies(changes).delta) == 0


def test_a_change_that_does_not_identify_its_row_is_an_error() -> None:
    changes = changes_of(relation("d", key=()), [build.update((b"1", b"1", b"", b""))])
    with pytest.raises(DecodeError, match="does not identify its row") as raised:
        fold_copies(changes)
    assert "REPLICA IDENTITY FULL" in raised.value.hint


def test_which_tables_have_a_key() -> None:
    assert [has_key(relation(i, k)) for i, k in (("d", KEY), ("f", KEY), ("f", ()), ("n", KEY))] == [
        True, True, False, False
    ]  # fmt: skip


@thoroughly
@given(st.lists(st.tuples(*[st.sampled_from([None, "", "1", "11", "1,1"])] * 3), max_size=30))
def test_row_codes_distinguish_rows(rows: list[tuple[str | None, ...]]) -> None:
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(3)]
    code, count = row_codes(columns, len(rows))
    assert len(set(code.tolist())) == len(set(rows))
    assert len(set(zip(rows, code.tolist(), strict=True))) == len(set(rows))
    assert not len(code) or code.max() < count
