"""Which table has a name, and which relations it had, from headers alone."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.captured_database import captured
from tests.fixtures.postgres import Database

from tailrace.log import lineage
from tailrace.log.lineage import Lineage
from tailrace.log.reader import LogReader


def test_a_table_is_followed_through_renames_and_ddl(database: Database, tmp_path: Path) -> None:
    """At every segment, the lineage matches the changes up to there."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    with captured(database, tmp_path) as log:
        for statement in [
            "INSERT INTO t VALUES (1)",
            "ALTER TABLE t ADD b int",
            "INSERT INTO t VALUES (2)",
            "BEGIN; INSERT INTO t VALUES (3); ALTER TABLE t DROP a; ALTER TABLE t RENAME TO u;"
            " INSERT INTO u VALUES (4); COMMIT",
            "ALTER TABLE u ADD a int; ALTER TABLE u RENAME TO t",
            "INSERT INTO t VALUES (5)",
            "DROP TABLE t",
            "CREATE TABLE t (id text PRIMARY KEY)",
            "INSERT INTO t VALUES ('6')",
            "BEGIN; ALTER TABLE t RENAME TO old; CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (7); COMMIT",
            "INSERT INTO old VALUES ('8')",
        ]:
            log.execute(statement)
            log.catch_up()
    reader = LogReader(log.store)
    seen = Lineage(reader, "public", "t", 0)
    seen_changes = []
    for part in reader.list():
        content = part.content()
        assert content is not None
        seen_changes += [c for c in LogReader(log.store).changes() if c.relation and _is_in(c.position, content.header)]
        oids = [c.relation.oid for c in seen_changes if c.relation and c.table == "t"]
        if not oids:
            continue
        own = [c.relation for c in seen_changes if c.relation and c.relation.oid == oids[-1]]
        assert seen.table(part.id) == oids[-1]
        assert seen.tables_named(part.id) >= set(oids)
        assert lineage.newest_relation(reader, "public", "t", part.id) == own[-1]
        assert [r for r in seen.chain(own[-1].oid, own[-1]) if r in own] == list(dict.fromkeys(own))
    last = reader.last()
    assert last is not None
    assert len(seen_changes) == 8
    assert lineage.newest_relation(reader, "public", "nothing", last.id) is None
    fifth = next(c.relation for c in seen_changes if c.after == {"id": 5, "b": None, "a": None})
    assert lineage.newest_relation(reader, "public", "u", last.id) == fifth, "even after it was renamed"
    assert lineage.table_names(reader, last.id) == [("public", "old"), ("public", "t"), ("public", "u")]


def _is_in(position: object, header: object) -> bool:
    first, last = header.first, header.last  # type: ignore[attr-defined]
    return first is not None and first <= position <= last
