"""Which relations a table had, and which table bears a name, as the headers of a range of the log tell.

A table is what has one oid, whatever it is called. A name means the table that was last seen with it: after `RENAME`
the same as before, after `DROP` and `CREATE`, or a swap of names, the new one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from tailrace.change import Lsn, Relation
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader


class Lineage:
    """Relations in the order in which they appear from a segment on; more segments are looked at as they are needed."""

    def __init__(self, reader: LogReader, schema: str, name: str, after: int) -> None:
        self._reader = reader
        self._names = schema, name
        self.first = self._seen = after
        self._chains: dict[int, list[Relation]] = {}
        self._bearers: list[tuple[int, int]] = []
        """(segment, oid) whenever a table is seen with the name."""
        self._named: list[tuple[int, int]] = []
        """The same, and where it may have had it."""
        self._before: int | None = None

    def extend(self, segment: int) -> None:
        """Look at the segments up to this one."""
        for id in range(self._seen + 1, segment + 1):
            for relation, is_sure in _definitions(self._reader, id):
                chain = self._chains.setdefault(relation.oid, [])
                if not chain or chain[-1] != relation:
                    chain.append(relation)
                if (relation.schema, relation.name) == self._names:
                    self._named.append((id, relation.oid))
                    if is_sure:
                        self._bearers.append((id, relation.oid))
            self._seen = id

    def relations(self, segment: int) -> Iterator[Relation]:
        """Those that a segment's rows use."""
        return (relation for _, relation in self._reader.relations(segment))

    def table(self, segment: int) -> int | None:
        """The oid of the table that the name means at the end of a segment."""
        self.extend(segment)
        at = bisect_right(self._bearers, segment, key=lambda seen: seen[0])
        if at:
            return self._bearers[at - 1][1]
        if self._before is None:
            found = newest(self._reader, *self._names, self.first)
            self._before = found.oid if found else 0
        return self._before or None

    def bearers(self, segment: int) -> set[int]:
        """All tables that may be seen with the name up to a segment."""
        self.extend(segment)
        return {oid for id, oid in self._named if id <= segment}

    def chain(self, oid: int, target: Relation) -> Sequence[Relation]:
        """A table's relations in order, as far as to the target at least, if it is in the log."""
        chain = self._chains.get(oid, [])
        while oid == target.oid and target not in chain:
            if self._reader.awaited_header(self._seen + 1) is None:
                break
            self.extend(self._seen + 1)
            chain = self._chains.get(oid, [])
        return tuple(chain)


def newest(reader: LogReader, schema: str, name: str, last: int) -> Relation | None:
    """What the log up to a segment, and snapshots, say last of the table that bears the name."""
    header = reader.awaited_header(last) if last else None
    end = header.end_lsn if header else Lsn(0)
    snapshot = SnapshotReader(reader.store).newest(schema, name, before=end)
    seen: dict[int, Relation] = {}
    perhaps: Relation | None = None
    first = reader.first()
    for id in range(last, first.id - 1 if first else last, -1):
        header = reader.awaited_header(id)
        # What a snapshot holds is younger than anything below its LSN.
        if header is None or (snapshot is not None and header.end_lsn <= snapshot.lsn):
            break
        for relation, is_sure in reversed(_definitions(reader, id)):
            # Later segments come first: the first relation seen of a table is its newest.
            seen.setdefault(relation.oid, relation)
            if (relation.schema, relation.name) == (schema, name):
                if is_sure:
                    return seen[relation.oid]
                perhaps = perhaps or seen[relation.oid]
    if snapshot is not None:
        return seen.get(snapshot.relation.oid, snapshot.relation)
    return perhaps


def _definitions(reader: LogReader, id: int) -> list[tuple[Relation, bool]]:
    """A segment's relations in order, each with whether it surely held somewhere in it.

    A definition from an earlier segment stands first, at row 0, also where no row is left that it holds for.
    """
    in_order = sorted(reader.relations(id), key=lambda pair: pair[0].first_row)
    last = {use.relation_id: index for index, (use, _) in enumerate(in_order)}
    return [
        (relation, use.first_row > 0 or last[use.relation_id] == index)
        for index, (use, relation) in enumerate(in_order)
    ]


def names(reader: LogReader, last: int, most: int = 100) -> list[tuple[str, str]]:
    """Tables that the newest segments tell of, for messages."""
    found: dict[tuple[str, str], None] = {}
    first = reader.first()
    for id in range(last, max(first.id - 1 if first else last, last - most), -1):
        found |= {(relation.schema, relation.name): None for _, relation in reader.relations(id)}
    return sorted(found)
