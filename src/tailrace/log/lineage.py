"""The history of a table's relations and of its name, from the headers of a range of the log.

An oid identifies a table, whatever its name. A name refers to the table last seen with it: after `RENAME` that is still
the same table; after `DROP` and `CREATE`, or a swap of names, it is the new one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from tailrace.change import Lsn, Relation
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader


class Lineage:
    """Relations in the order in which they appear after a segment. Reads further segments as they are needed."""

    def __init__(self, reader: LogReader, schema: str, name: str, after: int) -> None:
        self._reader = reader
        self._names = schema, name
        self.first = self._seen = after
        self._chains: dict[int, list[Relation]] = {}
        self._named: list[tuple[int, int]] = []
        """(segment, oid) for each time a table surely has the name."""
        self._maybe_named: list[tuple[int, int]] = []
        """These, and those for each time a table may have the name."""
        self._oid_before: int | None = None
        """The table with the name before the first segment; 0 if there is none, None if not looked up yet."""

    def extend(self, segment: int) -> None:
        """Read the segments up to this one."""
        for id in range(self._seen + 1, segment + 1):
            for relation, is_sure in _definitions(self._reader, id):
                chain = self._chains.setdefault(relation.oid, [])
                if not chain or chain[-1] != relation:
                    chain.append(relation)
                if (relation.schema, relation.name) == self._names:
                    self._maybe_named.append((id, relation.oid))
                    if is_sure:
                        self._named.append((id, relation.oid))
            self._seen = id

    def relations(self, segment: int) -> Iterator[Relation]:
        """The relations that a segment's rows use."""
        return (relation for _, relation in self._reader.relations(segment))

    def table(self, segment: int) -> int | None:
        """The oid of the table with the name at the end of a segment."""
        self.extend(segment)
        count = bisect_right(self._named, segment, key=lambda seen: seen[0])
        if count:
            return self._named[count - 1][1]
        if self._oid_before is None:
            found = newest_relation(self._reader, *self._names, self.first)
            self._oid_before = found.oid if found else 0
        return self._oid_before or None

    def tables_named(self, segment: int) -> set[int]:
        """The oids of all tables that may have had the name, up to a segment."""
        self.extend(segment)
        return {oid for id, oid in self._maybe_named if id <= segment}

    def chain(self, oid: int, target: Relation) -> Sequence[Relation]:
        """A table's relations in order, at least up to the target if that is in the log."""
        chain = self._chains.get(oid, [])
        while oid == target.oid and target not in chain:
            if self._reader.header(self._seen + 1) is None:
                break
            self.extend(self._seen + 1)
            chain = self._chains.get(oid, [])
        return tuple(chain)


def newest_relation(reader: LogReader, schema: str, name: str, last: int) -> Relation | None:
    """The newest relation, in snapshots and in the log up to a segment, of the table with the name."""
    header = reader.header(last) if last else None
    end = header.end_lsn if header else Lsn(0)
    snapshot = SnapshotReader(reader.store).newest(schema, name, before=end)
    seen: dict[int, Relation] = {}
    possible: Relation | None = None
    first = reader.first()
    for id in range(last, first.id - 1 if first else last, -1):
        header = reader.header(id)
        # A snapshot is newer than all of the log below its LSN.
        if header is None or (snapshot is not None and header.end_lsn <= snapshot.lsn):
            break
        for relation, is_sure in reversed(_definitions(reader, id)):
            # This goes backwards, so the first relation seen of a table is its newest.
            seen.setdefault(relation.oid, relation)
            if (relation.schema, relation.name) == (schema, name):
                if is_sure:
                    return seen[relation.oid]
                possible = possible or seen[relation.oid]
    if snapshot is not None:
        return seen.get(snapshot.relation.oid, snapshot.relation)
    return possible


def _definitions(reader: LogReader, id: int) -> list[tuple[Relation, bool]]:
    """A segment's relations in order, each with whether some row surely used it.

    Definitions carried over from an earlier segment come first, at row 0, even if no row uses them.
    """
    in_order = sorted(reader.relations(id), key=lambda pair: pair[0].first_row)
    last = {use.relation_id: index for index, (use, _) in enumerate(in_order)}
    return [
        (relation, use.first_row > 0 or last[use.relation_id] == index)
        for index, (use, relation) in enumerate(in_order)
    ]


def table_names(reader: LogReader, last: int, most: int = 100) -> list[tuple[str, str]]:
    """Names of the tables in the newest segments (at most `most` of these), for messages."""
    found: dict[tuple[str, str], None] = {}
    first = reader.first()
    for id in range(last, max(first.id - 1 if first else last, last - most), -1):
        found |= {(relation.schema, relation.name): None for _, relation in reader.relations(id)}
    return sorted(found)
