"""New tables join the publication; what is not captured is known, with the reason and the remedy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress

from tailrace.capture.postgres import slot
from tailrace.capture.postgres.publication_watch import PublicationWatch
from tailrace.capture.postgres.source_connection import connect
from tailrace.capture.postgres.uncaptured import UncapturedTable
from tailrace.capture.source import source_status
from tailrace.embedded.process import wait_until
from tailrace.log import seen_table
from tailrace.ops.status import CaptureStatus, Overview
from tailrace.settings import Settings, SourceSettings
from tailrace.store import Store


class Watched:
    def __init__(self, database: Database, store: Store, settings: Settings) -> None:
        self.database = database
        self.joins = 0
        self.watch = PublicationWatch(settings, store, self._count, poll_seconds=0.02)

    def _count(self) -> None:
        self.joins += 1

    def published(self) -> list[str]:
        return [name for (name,) in self.database.rows("SELECT tablename FROM pg_publication_tables ORDER BY 1")]

    def wait_for(self, *names: str) -> dict[str, UncapturedTable]:
        """Wait until exactly these tables are known not to be captured."""
        assert wait_until(lambda: self._names() == list(names), 20), (names, self.watch.uncaptured)
        return {table.name: table for table in self.watch.uncaptured or ()}

    def _names(self) -> list[str] | None:
        return None if self.watch.uncaptured is None else [table.name for table in self.watch.uncaptured]


@contextmanager
def watching(database: Database, store: Store, source: SourceSettings | None = None) -> Iterator[Watched]:
    watched = Watched(database, store, Settings(source=source or SourceSettings(url=database.url)))
    with watched.watch:
        yield watched


@pytest.fixture
def store(file_address: StoreAddress) -> Store:
    return Store.open(*file_address)


def create_publication(database: Database, store: Store) -> None:
    source = SourceSettings(url=database.url)
    with connect(source) as connection:
        assert slot.ensure_publication(connection, source)
        assert not slot.ensure_publication(connection, source)
    seen_table.save(store, ())


def test_new_tables_join_and_removed_ones_stay_out(
    any_database: Database, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    database = any_database
    create_publication(database, store)
    with watching(database, store) as watched, caplog.at_level(logging.INFO, "tailrace.capture"):
        watched.wait_for()
        assert watched.watch.tables_captured == 0
        assert "no table is captured" in Overview(capture=status(watched)).warnings[0]
        database.execute('CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE "Odd ""name" (id int PRIMARY KEY)')
        database.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        database.execute(
            "CREATE TABLE p1 PARTITION OF p DEFAULT; CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY)"
        )
        assert wait_until(lambda: watched.published() == ['Odd "name', "a", "p"], 20), watched.published()
        watched.wait_for()
        assert wait_until(lambda: watched.joins > 0, 20)
        assert 'public.Odd "name is new: added to publication tailrace' in caplog.messages

        database.execute("ALTER PUBLICATION tailrace DROP TABLE a")
        left_out = watched.wait_for("a")["a"]
        assert left_out.is_left_out
        assert left_out.fix == 'ALTER PUBLICATION "tailrace" ADD TABLE "public"."a";'
        assert Overview(capture=status(watched)).warnings == [], "somebody wanted it so"
        database.execute("CREATE TABLE b (id int PRIMARY KEY)")
        assert wait_until(lambda: "b" in watched.published(), 20)
        assert "a" not in watched.published()

    # What was created, or left out, while nothing watched.
    database.execute("CREATE TABLE c (id int PRIMARY KEY); ALTER PUBLICATION tailrace DROP TABLE b")
    with watching(database, store) as watched:
        assert {table.is_left_out for table in watched.wait_for("a", "b").values()} == {True}
        assert "c" in watched.published()
        database.execute(left_out.fix)
        watched.wait_for("b")


def test_tables_that_cannot_join_are_a_warning_until_mended(
    database: Database, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"cdc_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION; GRANT CREATE ON DATABASE {database.name} TO {role}")
    database.execute("CREATE TABLE old (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE old")
    source = SourceSettings(url=database.server.url_of(database.name, role))
    try:
        with watching(database, store, source) as watched:
            watched.wait_for()
            database.execute("CREATE TABLE bare (n int); CREATE TABLE fresh (id int PRIMARY KEY)")
            database.execute("CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)")
            found = watched.wait_for("bare", "fast", "fresh")
            assert not any(table.is_left_out for table in found.values())
            assert "the role does not own the publication" in found["fresh"].reason
            assert "no replica identity" in found["bare"].reason
            overview = Overview(capture=status(watched))
            assert len(overview.warnings) == 3
            assert overview.faults == []
            assert CaptureStatus.from_json(status(watched).to_json()) == status(watched)
            assert "public.fresh is not captured" in caplog.text
            assert caplog.text.count("public.bare is not captured") == 1, "it is logged once"

            # Another process finds the same.
            seen = source_status(Settings(source=source), store)
            assert seen.error == "slot tailrace does not exist yet: capture creates it"
            database.execute("SELECT pg_create_logical_replication_slot('tailrace', 'pgoutput')")
            seen = source_status(Settings(source=source), store)
            assert seen.uncaptured == watched.watch.uncaptured
            assert seen.tables_captured == 1
            assert Overview(source=seen).warnings == overview.warnings

            for table in found.values():
                database.execute(table.fix)
            found = watched.wait_for("bare", "fast")
            for table in found.values():
                database.execute(table.fix)
            watched.wait_for()
            assert watched.published() == ["bare", "fast", "fresh", "old"]
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_tables_that_a_hand_made_publication_lacks_are_left_out(database: Database, store: Store) -> None:
    """Also those that could not be in it as they are: nobody has to be warned of a choice."""
    database.execute("CREATE TABLE chosen (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    database.execute("CREATE TABLE bare (n int); CREATE PUBLICATION tailrace FOR TABLE chosen")
    with watching(database, store) as watched:
        found = watched.wait_for("bare", "other")
        assert [table.is_left_out for table in found.values()] == [True, True]
        assert found["bare"].reason.startswith(
            "it was left out of publication tailrace, and it has no replica identity"
        )
        assert Overview(capture=status(watched)).warnings == []
        database.execute("ALTER TABLE bare REPLICA IDENTITY FULL; CREATE TABLE fresh (id int PRIMARY KEY)")
        assert wait_until(lambda: watched.published() == ["chosen", "fresh"], 20), "what is new joins, and nothing else"


def test_without_the_source_nothing_is_known(database: Database, store: Store) -> None:
    source = SourceSettings(url="postgresql://nobody@127.0.0.1:1/nothing")
    with watching(database, store, source) as watched:
        assert not wait_until(lambda: watched.watch.uncaptured is not None, 0.2)
        assert status(watched).tables_captured is None
    seen = source_status(Settings(source=replace(source)), store)
    assert (seen.uncaptured, seen.is_reachable) == (None, False)


def status(watched: Watched) -> CaptureStatus:
    return CaptureStatus(
        "streaming", uncaptured=watched.watch.uncaptured, tables_captured=watched.watch.tables_captured
    )
