"""Each finding is provoked on a real server; then its SQL is run as printed, and the finding disappears."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest
from tests.fixtures.postgres import Database, drop_database, make_database, running

from tailrace.capture.postgres.check import inspect
from tailrace.capture.postgres.slot import ensure_publication
from tailrace.capture.postgres.source_connection import connect, connect_replication
from tailrace.embedded.postgres import Postgres
from tailrace.finding import Finding, Severity, can_run
from tailrace.settings import SourceSettings

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


class Subject:
    """A database and the findings about it."""

    def __init__(self, database: Database, source: SourceSettings) -> None:
        self.database = database
        self.source = source

    def find(self, severity: Severity, subject: str, words: str = "") -> list[Finding]:
        return [
            finding
            for finding in inspect(self.source)
            if (finding.severity, finding.subject) == (severity, subject) and re.search(words, finding.message)
        ]

    def has(self, severity: Severity, subject: str, words: str = "") -> Finding:
        found = self.find(severity, subject, words)
        assert len(found) == 1, inspect(self.source)
        assert can_run(found) == (severity is not ERROR)
        return found[0]

    def is_fixed(self, severity: Severity, subject: str, words: str = "") -> None:
        """Run the printed SQL, as an administrator would, and check again."""
        finding = self.has(severity, subject, words)
        assert finding.fix, finding
        with self.database.connect() as connection:
            for line in finding.fix.splitlines():
                connection.execute(line.encode())
        if "restart the server" in finding.fix:
            self.database.server.restart()
        assert not self.find(severity, subject, words)


def make_source(database: Database, role: str = "postgres") -> SourceSettings:
    # Slot names are unique per server, not per database.
    return SourceSettings(url=database.server.url_of(database.name, role), slot=database.name)


@pytest.fixture
def subject(any_database: Database) -> Subject:
    return Subject(any_database, make_source(any_database))


@pytest.fixture(scope="module", params=[18, 16])
def own_server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A server whose settings a test may change."""
    with running(request.param) as server:
        yield server


@pytest.fixture
def own(own_server: Postgres) -> Iterator[Subject]:
    database = make_database(own_server)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    yield Subject(database, make_source(database))
    drop_database(database)
    own_server_reset(own_server)


def own_server_reset(server: Postgres) -> None:
    with server.connect() as connection:
        connection.execute("ALTER SYSTEM RESET ALL")
    server.restart()


def set_system(subject: Subject, name: str, value: str) -> None:
    with subject.database.connect() as connection:
        connection.execute(f"ALTER SYSTEM SET {name} = {value}".encode())
    subject.database.server.restart()


def test_a_correct_source_needs_no_fix(subject: Subject) -> None:
    subject.database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR TABLE t")
    subject.database.execute(f"SELECT pg_create_logical_replication_slot('{subject.source.slot}', 'pgoutput')")
    findings = inspect(subject.source)
    assert can_run(findings)
    assert [f.subject for f in findings] == ["max_slot_wal_keep_size", "DDL"]
    subject.database.execute(subject.has(NOTE, "DDL", "optional").fix)
    assert not subject.find(NOTE, "DDL")


@pytest.mark.parametrize(
    ("setting", "value", "severity"),
    [
        ("wal_level", "replica", ERROR),
        ("max_slot_wal_keep_size", "-1", NOTE),
        ("wal_sender_timeout", "0", WARNING),
        ("wal_sender_timeout", "'2s'", WARNING),
    ],
)
def test_settings_of_the_server(own: Subject, setting: str, value: str, severity: Severity) -> None:
    set_system(own, setting, value)
    own.is_fixed(severity, setting)


def test_an_idle_timeout_loses_slots_since_18(own: Subject) -> None:
    if own.database.server.version < 18:
        pytest.skip("came with 18")
    set_system(own, "idle_replication_slot_timeout", "'1h'")
    own.is_fixed(WARNING, "idle_replication_slot_timeout")


def test_too_few_slots_and_senders_are_reported(own: Subject) -> None:
    set_system(own, "max_replication_slots", "1")
    own.has(WARNING, "max_replication_slots", "snapshot on demand")
    own.database.execute("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
    own.is_fixed(ERROR, "max_replication_slots", "0 left: capture needs one")
    own.database.execute("SELECT pg_drop_replication_slot('other')")
    set_system(own, "max_wal_senders", "1")
    own.has(WARNING, "max_wal_senders")
    set_system(own, "max_wal_senders", "0")
    own.has(ERROR, "replication connection", "max_wal_senders")
    own.is_fixed(ERROR, "max_wal_senders")


def test_fixes_grant_a_role_only_what_it_needs(subject: Subject) -> None:
    database, role = subject.database, f"Reader {subject.database.name}"
    database.execute(f"""
        CREATE ROLE "{role}" LOGIN;
        CREATE SCHEMA "Shop";
        CREATE TABLE "Shop"."Order ""Items"" x" (id int PRIMARY KEY);
        CREATE TABLE "Shop".customers (id int PRIMARY KEY);
        ALTER TABLE "Shop".customers ENABLE ROW LEVEL SECURITY;
    """)
    reader = Subject(database, replace(make_source(database, role), tables=('"Shop".*',)))
    assert not can_run(inspect(reader.source))
    reader.is_fixed(ERROR, f"role {role}", "REPLICATION")
    reader.is_fixed(ERROR, "schema Shop", "not accessible")
    reader.is_fixed(ERROR, "schema Shop", "may not read")
    reader.is_fixed(ERROR, f"role {role}", "row security")
    reader.is_fixed(ERROR, "publication tailrace", "does not own")
    assert can_run(inspect(reader.source))
    database.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_an_owner_with_create_privilege_can_create_the_publication(subject: Subject) -> None:
    database, role = subject.database, f"owner_{subject.database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION; CREATE TABLE t (id int PRIMARY KEY)")
    database.execute(f"ALTER TABLE t OWNER TO {role}")
    owner = Subject(database, make_source(database, role))
    owner.has(ERROR, "publication tailrace", f"may not CREATE in database {database.name}")
    database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {role}")
    owner.has(NOTE, "publication tailrace", "capture creates it")
    with psycopg.connect(owner.source.url, autocommit=True) as connection:
        connection.execute(owner.has(NOTE, "publication tailrace").fix.encode())
    assert not owner.find(NOTE, "publication tailrace")
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_missing_slot_is_only_a_note(subject: Subject) -> None:
    subject.is_fixed(NOTE, f"slot {subject.source.slot}", "capture creates it")


def test_a_slot_of_another_kind(subject: Subject) -> None:
    name = subject.source.slot
    subject.database.execute(f"SELECT pg_create_physical_replication_slot('{name}')")
    assert not subject.has(ERROR, f"slot {name}", "physical").fix, "somebody else uses it"


def test_a_slot_of_another_database(subject: Subject) -> None:
    name = subject.source.slot
    with subject.database.server.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    assert not subject.has(ERROR, f"slot {name}", "belongs to database postgres").fix, "somebody else uses it"
    with subject.database.server.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", [name])


def test_a_slot_in_use(subject: Subject) -> None:
    name = subject.source.slot
    subject.database.execute("CREATE PUBLICATION p")
    subject.database.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    start = f"START_REPLICATION SLOT {name} LOGICAL 0/0 (proto_version '1', publication_names 'p')".encode()
    ours = connect_replication(subject.source)
    ours.exec_(start)
    subject.has(NOTE, f"slot {name}", "by a capture .*application tailrace, from 127.0.0.1")
    ours.finish()
    theirs = connect_replication(replace(subject.source, url=subject.source.url + "?application_name=rival"))
    while theirs.exec_(start).error_message:  # until the server notices the disconnect
        pass
    subject.is_fixed(ERROR, f"slot {name}", "application rival")
    theirs.finish()


def test_a_slot_with_two_phase(subject: Subject) -> None:
    name = subject.source.slot
    subject.database.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput', false, true)")
    subject.is_fixed(WARNING, f"slot {name}", "two_phase")


def test_a_slot_that_loses_its_wal(own: Subject) -> None:
    name, database = own.source.slot, own.database
    set_system(own, "max_slot_wal_keep_size", "'1MB'")
    database.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    with database.connect() as connection:
        for _ in range(4):
            connection.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")
            connection.execute("SELECT pg_switch_wal()")
        own.has(WARNING, f"slot {name}", "about to lose")
        connection.execute("CHECKPOINT")
    own.is_fixed(ERROR, f"slot {name}", "has lost WAL")


def test_operations_that_are_not_published(subject: Subject) -> None:
    subject.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR TABLE t WITH (publish = 'insert, update')"
    )
    subject.is_fixed(WARNING, "publication tailrace", "does not publish delete, truncate")


def test_tables_that_are_not_published(subject: Subject) -> None:
    subject.database.execute("""
        CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE "T" (id int PRIMARY KEY); CREATE SCHEMA other;
        CREATE TABLE other.x (id int PRIMARY KEY);
        CREATE TABLE empty_root (id int PRIMARY KEY) PARTITION BY LIST (id);
        CREATE PUBLICATION tailrace FOR TABLE t, other.x, empty_root
    """)
    subject.has(WARNING, "publication tailrace", r"lacks tables that source.tables matches: public\.T$")
    subject.is_fixed(WARNING, "publication tailrace", "lacks tables")
    subject.has(NOTE, "publication tailrace", "source.tables does not match, which are captured too: other.x")


def test_an_empty_publication(subject: Subject) -> None:
    subject.has(WARNING, "publication tailrace", "no table that it could have")
    subject.database.execute("CREATE PUBLICATION tailrace")
    subject.has(WARNING, "publication tailrace", "has no tables")
    subject.database.execute("DROP PUBLICATION tailrace; CREATE PUBLICATION tailrace FOR ALL TABLES")
    subject.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert not subject.find(WARNING, "publication tailrace")


def test_tailraces_own_tables_have_no_findings(subject: Subject) -> None:
    database = subject.database
    database.execute("CREATE TABLE keyless (a int); COMMENT ON TABLE keyless IS 'Tailrace: it is its own'")
    subject.has(WARNING, "publication tailrace", "no table that it could have")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    subject.has(WARNING, "publication tailrace", "has no tables")
    assert not [f for f in inspect(subject.source) if "keyless" in f.subject + f.message]
    database.execute("COMMENT ON TABLE keyless IS 'Not Tailrace: somebody''s'")
    subject.has(ERROR, "table public.keyless")


def test_a_table_without_identity(subject: Subject) -> None:
    database = subject.database
    database.execute("""
        CREATE TABLE keyless (a int);
        CREATE TABLE has_unique (a int NOT NULL, b int UNIQUE, c int NOT NULL DEFAULT 3, UNIQUE (a, c));
        CREATE TABLE deferred (a int PRIMARY KEY DEFERRABLE);
        CREATE TABLE says_nothing (a int PRIMARY KEY); ALTER TABLE says_nothing REPLICA IDENTITY NOTHING;
        CREATE TABLE lost_index (a int NOT NULL UNIQUE);
        ALTER TABLE lost_index REPLICA IDENTITY USING INDEX lost_index_a_key;
        ALTER TABLE lost_index DROP CONSTRAINT lost_index_a_key;
    """)
    tables = ("keyless", "has_unique", "deferred", "says_nothing", "lost_index")
    for table in tables:
        subject.has(WARNING, f"table public.{table}", "it is not captured")
        database.execute(f"INSERT INTO {table} (a) VALUES (1)")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES WITH (publish = 'insert')")
    for table in tables:
        subject.has(WARNING, f"table public.{table}", "only its inserts are captured")
        database.execute(f"UPDATE {table} SET a = a")
    database.execute("ALTER PUBLICATION tailrace SET (publish = 'insert, update, delete, truncate')")
    for table in tables:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            database.execute(f"UPDATE {table} SET a = a")
        subject.is_fixed(ERROR, f"table public.{table}", "UPDATE and DELETE on it fail at the source")
        database.execute(f"UPDATE {table} SET a = a")
    identities = dict(database.rows("SELECT relname, relreplident::text FROM pg_class WHERE relkind = 'r'"))
    assert [identities[table] for table in tables] == ["f", "i", "f", "d", "f"]
    assert can_run(inspect(subject.source))


def test_partitions(subject: Subject) -> None:
    subject.database.execute("""
        CREATE TABLE parts (a int) PARTITION BY RANGE (a);
        CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
        INSERT INTO parts VALUES (1);
    """)
    subject.has(WARNING, "table public.parts", "it is not captured")
    subject.database.execute("CREATE PUBLICATION tailrace FOR TABLE parts")
    subject.is_fixed(ERROR, "table public.part1", "fail at the source")
    subject.database.execute("UPDATE parts SET a = 2")
    assert not subject.find(ERROR, "table public.parts")
    subject.is_fixed(NOTE, "publication tailrace", "publishes partitions under their own names")
    subject.is_fixed(ERROR, "table public.parts", "fail at the source")
    assert not subject.find(WARNING, "publication tailrace")


def test_unlogged_foreign_and_materialised_are_reported(subject: Subject) -> None:
    subject.database.execute("""
        CREATE UNLOGGED TABLE scratch (a int PRIMARY KEY);
        CREATE MATERIALIZED VIEW seen AS SELECT 1 AS a;
        CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
        CREATE FOREIGN TABLE far (a int) SERVER nowhere;
        CREATE SEQUENCE numbers;
        SELECT lo_create(0);
    """)
    subject.is_fixed(WARNING, "table public.scratch", "unlogged")
    subject.has(NOTE, "table public.seen", "materialised view")
    subject.has(NOTE, "table public.far", "foreign table")
    subject.has(NOTE, "sequences", r"not captured \(1 here\)")
    subject.has(NOTE, "large objects")


def test_generated_columns(subject: Subject) -> None:
    subject.database.execute("""
        CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
        CREATE PUBLICATION tailrace FOR TABLE t;
    """)
    if subject.database.server.version < 18:
        subject.has(NOTE, "table public.t", "column twice is generated: PostgreSQL 16 does not send it")
        return
    subject.is_fixed(NOTE, "table public.t", "column twice is generated, and the publication does not send it")
    subject.database.execute("ALTER TABLE t ADD thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL")
    subject.has(NOTE, "table public.t", "thrice is a virtual generated column")


def test_generated_columns_with_the_identity_full(subject: Subject) -> None:
    """Since 18, PostgreSQL rejects UPDATEs of such a table once it is published, so capture must not publish it."""
    database = subject.database
    database.execute("""
        CREATE TABLE plain (id int PRIMARY KEY);
        CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
        ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (1);
    """)
    is_refused = database.server.version >= 18
    if is_refused:
        subject.has(WARNING, "table public.t", "it is not captured")
    with connect(subject.source) as connection:
        ensure_publication(connection, subject.source)
    database.execute("UPDATE t SET id = 2")
    published = database.rows("SELECT tablename FROM pg_publication_tables WHERE pubname = 'tailrace' ORDER BY 1")
    assert published == [("plain",)] if is_refused else [("plain",), ("t",)]
    if is_refused:
        database.execute("ALTER PUBLICATION tailrace ADD TABLE t")
        subject.is_fixed(ERROR, "table public.t", "UPDATE and DELETE on it fail")
        database.execute("UPDATE t SET id = 3")


def test_column_lists_and_row_filters(subject: Subject) -> None:
    subject.database.execute("""
        CREATE TABLE t (id int PRIMARY KEY, a int, b int);
        CREATE TABLE u (id int PRIMARY KEY, a int); INSERT INTO u VALUES (1, 2);
        CREATE PUBLICATION tailrace FOR TABLE t (id, a) WHERE (id > 5), u (a) WHERE (id < 9);
    """)
    subject.has(NOTE, "table public.t", "column list: only id, a")
    subject.has(NOTE, "table public.t", r"row filter, \(id > 5\): an UPDATE across it arrives as INSERT or DELETE")
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        subject.database.execute("UPDATE u SET a = 3")
    subject.is_fixed(ERROR, "table public.u", "does not cover its replica identity")
    subject.database.execute("UPDATE u SET a = 3")
    subject.has(NOTE, "table public.u", r"row filter, \(id < 9\)")


def test_sql_ascii(postgres: Postgres) -> None:
    database = make_database(postgres, "SQL_ASCII")
    subject = Subject(database, make_source(database))
    subject.has(WARNING, f"database {database.name}", "SQL_ASCII")
    drop_database(database)


def test_the_most_severe_comes_first(subject: Subject) -> None:
    subject.database.execute("CREATE TABLE t (a int); CREATE PUBLICATION tailrace FOR TABLE t")
    subject.database.execute("CREATE UNLOGGED TABLE u ()")
    severities = [finding.severity for finding in inspect(subject.source)]
    assert severities == sorted(severities, key=[ERROR, WARNING, NOTE].index)
    assert set(severities) == {ERROR, WARNING, NOTE}


def test_names_are_quoted_in_fixes(subject: Subject) -> None:
    evil = 'a"; DROP TABLE innocent; --'
    quoted = '"' + evil.replace('"', '""') + '"'
    subject.database.execute(f"CREATE TABLE innocent (id int PRIMARY KEY); CREATE TABLE {quoted} (a int)")
    subject.is_fixed(WARNING, f"table public.{evil}", "it is not captured")
    subject.source = replace(subject.source, publication=evil)
    subject.is_fixed(NOTE, f"publication {evil}", "capture creates it")
    assert subject.database.rows("SELECT count(*) FROM innocent") == [(0,)]
