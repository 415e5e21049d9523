"""Random entries, and files of them in any format."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.slatedb import build

from tailrace.slatedb.row_entry import EntryKind, RowEntry

_PREFIXES = st.sampled_from([b"", b"user:", b"user:0001/", b"\x00", b"\xff" * 200])
_KEYS = st.builds(bytes.__add__, _PREFIXES, st.binary(max_size=20)).filter(bool)
_VALUES = st.one_of(st.binary(max_size=40), st.integers(0, 3000).map(bytes))
_TIMES = st.none() | st.integers(-(2**63), 2**63 - 1)
_SEQS = st.one_of(st.integers(1, 20), st.integers(0, 2**64 - 1))


@st.composite
def _entries(draw: st.DrawFn) -> RowEntry:
    kind = draw(st.sampled_from(EntryKind))
    value = None if kind is EntryKind.DELETE else draw(_VALUES)
    return RowEntry(kind, draw(_KEYS), value, draw(_SEQS), draw(_TIMES), None if value is None else draw(_TIMES))


@st.composite
def files(draw: st.DrawFn) -> tuple[list[RowEntry], bytes]:
    """Entries in any order, and a file that holds them in this order."""
    entries = draw(st.lists(_entries(), max_size=80))
    data = build.sst(
        entries,
        version=draw(st.sampled_from([1, 2])),
        codec=draw(st.sampled_from(list(build.COMPRESS))),
        block_size=draw(st.sampled_from([200, 1024, 65536])),
        restart_interval=draw(st.sampled_from([1, 2, 16])),
    )
    return entries, data
