"""Which change ended which version, compared with a stack of current rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.sinks.database.row_version import pairs

_Events = list[tuple[int, int]]


@st.composite
def _changes(draw: st.DrawFn) -> _Events:
    """What each change found and left; rows are few, so that equal ones exist at the same time."""
    row = st.integers(0, 3)
    insert, delete, update = st.tuples(st.just(-1), row), st.tuples(row, st.just(-1)), st.tuples(row, row)
    return draw(st.lists(insert | delete | update, max_size=30))


@settings(deadline=None)
@given(_changes())
def test_the_youngest_of_equal_rows_ends_first(changes: _Events) -> None:
    there: dict[int, list[int]] = {}
    expected = []
    for number, (found, left) in enumerate(changes):
        expected.append(there[found].pop() if there.get(found) else -1)
        if left >= 0:
            there.setdefault(left, []).append(number)
    finds = np.array([found for found, _ in changes], np.int64)
    leaves = np.array([left for _, left in changes], np.int64)
    assert pairs(finds, leaves).tolist() == expected
