"""Connections: authentication, session settings, and the classification of failures."""

from __future__ import annotations

import pickle
import socket
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import pq
from tests.fixtures.postgres import Database, running
from tests.fixtures.tls import Tls, TlsProxy

from tailrace.capture.postgres.slot import ensure_publication
from tailrace.capture.postgres.source_connection import SESSION, classify, connect, connect_replication
from tailrace.embedded.postgres import Postgres
from tailrace.errors import SlotLost, SourceError, SourceRefused, TailraceError
from tailrace.settings import Secret, SourceSettings

PASSWORD = "pläntéd-'s3cret\\ "


@pytest.fixture(scope="module", params=["scram-sha-256", "md5"])
def password_server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A server that requires a password."""
    with running(18, auth=request.param, password=PASSWORD) as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE outsider LOGIN REPLICATION PASSWORD 'x'")
            connection.execute("CREATE DATABASE closed")
            connection.execute("REVOKE CONNECT ON DATABASE closed FROM public")
        yield server


@pytest.fixture(params=[connect, connect_replication])
def open_source(request: pytest.FixtureRequest) -> Callable[[SourceSettings], None]:
    """Both kinds of connection, which must be accepted and rejected alike."""

    def opened(source: SourceSettings) -> None:
        connection: Any = request.param(source)
        if isinstance(connection, psycopg.Connection):
            connection.close()
        else:
            connection.finish()

    return opened


def refusal(open_source: Callable[[SourceSettings], None], source: SourceSettings) -> TailraceError:
    with pytest.raises(TailraceError) as caught:
        open_source(source)
    error = caught.value
    everything = [str(error), repr(error), error.hint, *traceback.format_exception(error)]
    assert PASSWORD not in "".join(everything).replace("\\\\", "\\")
    assert PASSWORD.encode() not in pickle.dumps(error)
    assert error.hint
    return error


def test_session_settings_override_all_others(any_database: Database) -> None:
    any_database.execute(f"""
        ALTER DATABASE {any_database.name} SET "DateStyle" = 'German, DMY';
        ALTER DATABASE {any_database.name} SET "IntervalStyle" = 'iso_8601';
        ALTER DATABASE {any_database.name} SET "TimeZone" = 'Asia/Kathmandu';
        ALTER DATABASE {any_database.name} SET extra_float_digits = -15;
        ALTER DATABASE {any_database.name} SET bytea_output = 'escape';
        ALTER DATABASE {any_database.name} SET statement_timeout = 1;
        ALTER DATABASE {any_database.name} SET quote_all_identifiers = on;
        ALTER DATABASE {any_database.name} SET client_encoding = 'LATIN1';
        ALTER DATABASE {any_database.name} SET search_path = 'public';
    """)
    query = b"""SELECT (date '2001-02-03')::text, (interval '1 day 2 s')::text, (timestamptz '2001-02-03 00:00Z')::text,
                       (1::float8 / 3)::text, (bytea '\\x00')::text, current_setting('client_encoding')"""
    expected = ("2001-02-03", "1 day 00:00:02", "2001-02-03 00:00:00+00", "0.3333333333333333", "\\x00", "UTF8")
    source = SourceSettings(url=any_database.url)
    with connect(source) as connection:
        assert connection.execute(query).fetchone() == expected
        assert connection.autocommit
        for name, value in SESSION.items():
            shown = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
            assert shown is not None
            assert str(shown[0]).split(",")[0] == value
    replication = connect_replication(source)
    result = replication.exec_(query)
    assert tuple((result.get_value(0, i) or b"").decode() for i in range(len(expected))) == expected
    replication.finish()


def test_url_options_apply_unless_pinned(database: Database) -> None:
    source = SourceSettings(
        url=database.url + "?options=-c%20work_mem%3D7MB%20-c%20TimeZone%3DJapan&application_name=mine"
    )
    with connect(source) as connection:
        row = connection.execute(
            "SELECT current_setting('work_mem'), current_setting('TimeZone'), current_setting('application_name')"
        ).fetchone()
        assert row == ("7MB", "UTC", "mine")


def test_keepalives_are_set(database: Database) -> None:
    replication = connect_replication(SourceSettings(url=database.url))
    options = {option.keyword: option.val for option in replication.info}
    assert (options[b"keepalives"], options[b"keepalives_idle"], options[b"tcp_user_timeout"]) == (
        b"1",
        b"10",
        b"30000",
    )
    assert options[b"connect_timeout"] == b"10"
    replication.finish()


def test_connecting_to_a_silent_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = SourceSettings(url=f"postgresql://x@127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=1")
        with pytest.raises(SourceError) as caught:
            connect_replication(source)
        assert caught.value.retry


def test_passwords(password_server: Postgres, open_source: Callable[[SourceSettings], None]) -> None:
    open_source(SourceSettings(url=password_server.url, password=Secret(PASSWORD)))
    wrong = refusal(open_source, SourceSettings(url=password_server.url, password=Secret(PASSWORD + "x")))
    assert isinstance(wrong, SourceRefused)
    assert "password authentication failed" in str(wrong)
    assert "password" in wrong.hint
    assert isinstance(refusal(open_source, SourceSettings(url=password_server.url)), SourceRefused)


def test_rejections_have_a_hint(password_server: Postgres, open_source: Callable[[SourceSettings], None]) -> None:
    password = Secret(PASSWORD)
    unknown = refusal(open_source, SourceSettings(url=password_server.url_of("absent"), password=password))
    assert isinstance(unknown, SourceRefused)
    assert "source.url" in unknown.hint
    outside = SourceSettings(url=password_server.url_of("closed", "outsider"), password=Secret("x"))
    denied = refusal(open_source, outside)
    assert isinstance(denied, SourceRefused)
    assert denied.with_hint.endswith("privilege. Grant the role CONNECT on that database")
    plain = refusal(open_source, SourceSettings(url=password_server.url, password=password, sslmode="require"))
    assert isinstance(plain, SourceRefused)
    assert "does not support SSL" in str(plain)
    hba = password_server.data / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text("host postgres postgres 127.0.0.1/32 trust\n")
    password_server.conf()
    closed = refusal(open_source, SourceSettings(url=password_server.url_of("template1"), password=password))
    assert isinstance(closed, SourceRefused)
    assert "pg_hba.conf" in closed.hint
    hba.write_text(before)
    password_server.conf()


@pytest.mark.parametrize("mode", ["disable", "prefer", "require", "verify-ca", "verify-full"])
def test_tls_modes(password_server: Postgres, tls: Tls, mode: str) -> None:
    with TlsProxy(tls.context, password_server.port) as proxy:
        url = f"postgresql://postgres@localhost:{proxy.port}/postgres?hostaddr=127.0.0.1"
        source = SourceSettings(url=url, password=Secret(PASSWORD), sslmode=mode, sslrootcert=tls.authority.file)
        with connect(source) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
            assert connection.pgconn.ssl_in_use == (mode != "disable")
        replication = connect_replication(source)
        assert replication.exec_(b"IDENTIFY_SYSTEM").status == pq.ExecStatus.TUPLES_OK
        assert replication.ssl_in_use == (mode != "disable")
        replication.finish()


def test_tls_verification_failures_have_a_hint(
    postgres: Postgres, tls: Tls, open_source: Callable[[SourceSettings], None]
) -> None:
    with TlsProxy(tls.context, postgres.port) as proxy:

        def source(host: str, mode: str, authority: object) -> SourceSettings:
            url = f"postgresql://postgres@{host}:{proxy.port}/postgres?hostaddr=127.0.0.1"
            return SourceSettings(url=url, sslmode=mode, sslrootcert=authority)  # type: ignore[arg-type]

        other_name = refusal(open_source, source("db.example", "verify-full", tls.authority.file))
        assert isinstance(other_name, SourceRefused)
        assert "does not match host name" in str(other_name)
        open_source(source("db.example", "verify-ca", tls.authority.file))
        for mode in ("verify-ca", "verify-full"):
            stranger = refusal(open_source, source("localhost", mode, tls.stranger.file))
            assert isinstance(stranger, SourceRefused)
            assert "source.sslrootcert" in stranger.hint
            absent = refusal(open_source, source("localhost", mode, tls.stranger.file.with_name("absent")))
            assert isinstance(absent, SourceRefused)
            assert "source.sslrootcert" in absent.hint


def test_an_unreachable_server_is_retried(open_source: Callable[[SourceSettings], None]) -> None:
    with running() as server:
        source = SourceSettings(url=server.url)
        with connect(source) as connection:
            server.stop("fast")
            with pytest.raises(psycopg.Error) as caught:
                connection.execute("SELECT 1")
            assert isinstance(classify(caught.value), SourceError)
        assert isinstance(refusal(open_source, source), SourceError)
    assert isinstance(refusal(open_source, SourceSettings(url="postgresql://x@absent.invalid/x")), SourceError)


def test_a_broken_stream_is_retried(database: Database) -> None:
    source = SourceSettings(url=database.url)
    replication = connect_replication(source)
    database.execute(f"SELECT pg_terminate_backend({replication.backend_pid})")
    killed = classify(replication.exec_(b"IDENTIFY_SYSTEM"))
    assert isinstance(killed, SourceError)
    with pytest.raises(psycopg.Error) as caught:
        replication.exec_(b"IDENTIFY_SYSTEM")
    assert isinstance(classify(caught.value), SourceError)
    replication.finish()


def test_exceeded_limits_are_retried(database: Database) -> None:
    database.execute(f"CREATE ROLE busy_{database.name} LOGIN CONNECTION LIMIT 0")
    source = SourceSettings(url=database.server.url_of(database.name, f"busy_{database.name}"))
    with pytest.raises(SourceError, match="too many connections"):
        connect(source)
    database.execute(f"DROP ROLE busy_{database.name}")


def start(replication: pq.abc.PGconn, slot: str, publication: str = "p") -> TailraceError | None:
    command = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{publication}')"
    result = replication.exec_(command.encode())
    return None if result.status == pq.ExecStatus.COPY_BOTH else classify(result)


def test_slot_errors_are_classified(any_database: Database) -> None:
    name = any_database.name
    any_database.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    source = SourceSettings(url=any_database.url)
    first, second = connect_replication(source), connect_replication(source)
    assert isinstance(start(second, "absent"), SlotLost)
    assert start(first, name) is None
    busy = start(second, name)
    assert isinstance(busy, SourceError)
    assert "active" in str(busy)
    first.finish()
    second.finish()


def test_missing_privileges_hint_at_check(database: Database) -> None:
    role = f"plain_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN; CREATE TABLE t ()")
    source = SourceSettings(url=database.server.url_of(database.name, role))
    with pytest.raises(SourceRefused, match=r"permission denied|must be") as caught:
        connect_replication(source)
    assert "tailrace check" in caught.value.hint
    with connect(source) as connection, pytest.raises(psycopg.Error) as denied:
        connection.execute("SELECT * FROM public.t")
    assert isinstance(classify(denied.value), SourceRefused)
    database.execute("CREATE TABLE keyed (id int PRIMARY KEY)")
    with (
        connect(source) as connection,
        pytest.raises(SourceRefused, match="publication tailrace does not exist") as caught,
    ):
        ensure_publication(connection, source)
    assert 'CREATE PUBLICATION "tailrace" FOR TABLE "public"."keyed"' in caught.value.hint
    database.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("version", [18, 16])
def test_a_slot_without_its_wal_is_lost(version: int) -> None:
    with running(version, max_slot_wal_keep_size="1MB", min_wal_size="32MB", wal_keep_size=0) as server:
        with server.connect() as connection:
            connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
            connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
            for _ in range(4):
                connection.execute("CREATE TABLE t (); DROP TABLE t")
                connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
            row = connection.execute("SELECT wal_status FROM pg_replication_slots").fetchone()
            assert row == ("lost",)
        replication = connect_replication(SourceSettings(url=server.url))
        lost = start(replication, "s")
        assert isinstance(lost, SlotLost)
        assert "snapshots" in lost.hint
        replication.finish()
        server.conf(wal_level="replica")
        with server.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot('s')")
        server.restart()
        replication = connect_replication(SourceSettings(url=server.url))
        refused = classify(replication.exec_(b"CREATE_REPLICATION_SLOT s LOGICAL pgoutput"))
        assert isinstance(refused, SourceRefused)
        assert "wal_level" in refused.hint
        replication.finish()
