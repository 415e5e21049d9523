"""The protocol as drivers use it: simple and extended, text and binary, portals, COPY, transactions, errors."""

from __future__ import annotations

import ctypes
import struct
import threading
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from time import process_time
from typing import Any
from uuid import UUID

import psutil
import psycopg
import psycopg.types.json
import pytest
from tests.query.conftest import QueryStack
from tests.query.raw_client import RawClient

from tailrace.embedded.process import wait_until


@pytest.mark.parametrize("prepare", [False, True], ids=["unnamed", "prepared"])
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_parameters_and_results_of_common_types(stack: QueryStack, prepare: bool, binary: bool) -> None:
    given: list[Any] = [
        7, -(2**40), 2.5, "it's \\ $1 ☃", True, None, b"\x00\xff", date(2024, 2, 29), datetime(2024, 2, 29, 1, 2, 3, 4),
        datetime(2024, 2, 29, 1, 2, 3, 4, UTC), time(1, 2, 3), timedelta(days=-3, seconds=5), Decimal("-12.340"),
        UUID(int=5), [1, 2, 3], ["a,b", None, '"'],
    ]  # fmt: skip
    marks = [
        "%s::int8", "%s::int8", "%s::float8", "%s::text", "%s::bool", "%s::text", "%s::bytea", "%s::date",
        "%s::timestamp", "%s::timestamptz", "%s::time", "%s::interval", "%s::numeric(10,3)", "%s::uuid", "%s::int4[]",
        "%s::text[]",
    ]  # fmt: skip
    with stack.connect() as connection, connection.cursor(binary=binary) as cursor:
        for _ in range(2):
            found = cursor.execute(f"SELECT {', '.join(marks)}".encode(), given, prepare=prepare).fetchone()
            assert found == tuple(given)


def test_binary_parameters(stack: QueryStack) -> None:
    with stack.connect() as connection:
        query = "SELECT id FROM orders WHERE id = %b AND amount = %b AND placed_at < %b"
        row = stack.database.rows("SELECT id, amount FROM orders WHERE id = 17")[0]
        found = connection.execute(query, [*row, datetime(2030, 1, 1, tzinfo=UTC)]).fetchall()
        assert found == [(17,)]


def test_statement_can_be_described_before_bind(stack: QueryStack) -> None:
    with RawClient(stack.server.port) as client:
        client.start()
        query = b"SELECT id, amount, note FROM orders WHERE id = $1 AND note LIKE $2 LIMIT $3"
        client.send(b"P", b"s\0" + query + b"\0" + struct.pack("!h", 0))
        client.send(b"D", b"Ss\0")
        client.send(b"S")
        messages = dict(client.until(b"Z"))
    assert struct.unpack("!h3I", messages[b"t"]) == (3, 20, 25, 20)
    parts = [part.split(b"\0", 1) for part in (messages[b"T"][2:24], messages[b"T"][23:49])]
    assert [(name, struct.unpack("!I", rest[6:10])[0]) for name, rest in parts] == [(b"id", 20), (b"amount", 1700)]


def test_portal_returns_rows_in_parts_while_other_statements_run(stack: QueryStack) -> None:
    with stack.connect(autocommit=False) as connection, connection.cursor("portion") as cursor:
        cursor.itersize = 7
        cursor.execute("SELECT id FROM orders ORDER BY id")
        assert [row[0] for row in cursor.fetchmany(3)] == [1, 2, 3]
        assert connection.execute("SELECT count(*) FROM customers").fetchone() == (40,)
        assert [row[0] for row in cursor] == list(range(4, 501))


def test_cursor_with_hold_outlives_its_block(stack: QueryStack) -> None:
    with stack.connect(autocommit=False) as connection:
        with connection.cursor("holdable", withhold=True) as holdable, connection.cursor("other") as other:
            for cursor in (holdable, other):
                cursor.execute("SELECT id FROM orders ORDER BY id")
            connection.commit()
            assert holdable.fetchmany(2) == [(1,), (2,)]
            with pytest.raises(psycopg.errors.InvalidCursorName):
                other.fetchone()
        connection.rollback()


@pytest.mark.parametrize("statement", ["FETCH -1 FROM c", "MOVE -2 IN c", "FETCH 0 FROM c", "FETCH PRIOR FROM c"])
def test_cursor_only_scans_forward(stack: QueryStack, statement: str) -> None:
    with stack.connect(autocommit=False) as connection:
        connection.execute("DECLARE c SCROLL CURSOR FOR SELECT id FROM orders ORDER BY id")
        assert connection.execute("FETCH 2 FROM c").fetchall() == [(1,), (2,)]
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="forward"):
            connection.execute(statement.encode())


def test_several_statements_in_one_message(stack: QueryStack) -> None:
    with stack.connect() as connection:
        cursor = connection.execute("SELECT 1; SET application_name = 'x'; SELECT 2 AS b")
        assert cursor.fetchall() == [(1,)]
        assert cursor.nextset()
        assert cursor.nextset()
        assert cursor.fetchall() == [(2,)]
        assert connection.info.parameter_status("application_name") == "x"


def test_pipeline_continues_after_an_error_at_the_next_sync(stack: QueryStack) -> None:
    with stack.connect() as connection:
        with connection.pipeline():
            cursor = connection.execute("SELECT * FROM nowhere")
            with pytest.raises(psycopg.errors.UndefinedTable):
                cursor.fetchall()
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "how", ["", "(FORMAT csv, HEADER)", "(FORMAT csv, DELIMITER ';', NULL 'nil')", "CSV", "(FORMAT binary)"]
)
@pytest.mark.parametrize(
    "what", ["kinds", "orders (id, note, placed_at)", "(SELECT id, name FROM customers ORDER BY id)"]
)
def test_copy_equals_postgresql(stack: QueryStack, what: str, how: str) -> None:
    if what == "kinds":  # without the types that the lake stores differently
        what = "(SELECT id, b, i4, i8, f4, f8, n2, t, v, ch, bin, u, d, ts, tz, ti, iv FROM kinds ORDER BY id)"
        if "binary" in how:
            what = what.replace("i4, i8", "i4, i8").replace("n2, ", "")
    elif "orders" in what:
        what = "(SELECT id, note, placed_at FROM orders ORDER BY id)"
    statement = f"COPY {what} TO STDOUT {how}".encode()
    with stack.connect() as connection, stack.database.connect() as source:
        source.execute("SET timezone = 'UTC'")
        with connection.cursor().copy(statement) as ours, source.cursor().copy(statement) as theirs:
            assert b"".join(bytes(piece) for piece in ours) == b"".join(bytes(piece) for piece in theirs)


def test_copy_of_a_table_with_columns(stack: QueryStack) -> None:
    with stack.connect() as connection, connection.cursor().copy("COPY customers (name, id) TO STDOUT") as copy:
        assert sorted(copy.rows())[0] == ("Customer 1", "1")


def test_prepared_statements_can_be_deallocated(stack: QueryStack) -> None:
    with stack.connect() as connection:
        for forget in ("DISCARD ALL", "DEALLOCATE ALL", "DEALLOCATE s"):
            assert connection.pgconn.prepare(b"s", b"SELECT 1").status == psycopg.pq.ExecStatus.COMMAND_OK
            connection.execute(forget.encode())
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            connection.execute("DEALLOCATE s")


def test_maximum_number_of_parameters(stack: QueryStack) -> None:
    with stack.connect() as connection:
        found = connection.pgconn.exec_params(b"SELECT $1::int + $65535::int", [b"1"] * 65_535)
        assert found.get_value(0, 0) == b"2"
    with RawClient(stack.server.port) as client:
        client.start()
        client.send(b"P", b"s\0SELECT $2000000000\0" + struct.pack("!h", 0))
        client.send(b"D", b"Ss\0")
        client.send(b"S")
        assert b"C42P02\0" in dict(client.until(b"Z"))[b"E"]


def test_numeric_arrays_and_jsonb_as_parameters(stack: QueryStack) -> None:
    with stack.connect() as connection:
        query = "SELECT count(*) FROM orders WHERE amount = ANY(%b) AND (%b::jsonb) ->> 'a' = 'x'"
        given = [[Decimal("79.190"), Decimal("158.38")], psycopg.types.json.Jsonb({"a": "x"})]
        assert connection.execute(query, given).fetchone() == (2,)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT " + "(" * 600 + "1" + ")" * 600,
        "SELECT 1" + ", 1" * 100_000,
        "SELECT 1" + "+1" * 95_000,  # overflows an ordinary stack
    ],
    ids=["brackets", "tokens", "operators"],
)
def test_too_complex_statement_is_refused(stack: QueryStack, statement: str) -> None:
    with stack.connect() as connection, pytest.raises(psycopg.errors.StatementTooComplex):
        connection.execute(statement.encode())


def _free_thread_keys() -> int:
    library, keys = ctypes.CDLL(None), []
    while library.pthread_key_create(ctypes.byref(key := ctypes.c_uint()), None) == 0:
        keys.append(key)
    for key in keys:
        library.pthread_key_delete(key)
    return len(keys)


def test_sessions_take_nothing_that_the_process_cannot_get_back(stack: QueryStack) -> None:
    """After a thousand sessions there were no more keys, and no TLS."""

    def query() -> None:
        with stack.connect() as connection:
            connection.execute("SELECT 1")

    query()
    before = _free_thread_keys()
    for _ in range(10):
        query()
    assert before - _free_thread_keys() < 5


def test_many_comments(stack: QueryStack) -> None:
    """No statement timeout ends the reading of a statement, during which no other client is served."""
    began = process_time()
    with stack.connect() as connection:
        statement = b"SELECT 1" + b"/**/" * 40_000 + b"/*" + b"x" * 10_000_000 + b"*/"
        assert connection.execute(statement).fetchone() == (1,)
    assert process_time() - began < 20


def test_newer_protocol_version_is_negotiated_down(stack: QueryStack) -> None:
    with RawClient(stack.server.port) as client:
        body = struct.pack("!i", 196_610) + b"user\0reader\0_pq_.new\0x\0\0"
        client.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        assert client.message() == (b"v", struct.pack("!ii", 196_608, 1) + b"_pq_.new\0")
        assert client.until(b"Z")


def test_block_continues_from_a_savepoint(stack: QueryStack) -> None:
    with stack.connect(autocommit=False) as connection, connection.transaction():
        with pytest.raises(psycopg.errors.UndefinedColumn), connection.transaction():
            connection.execute("SELECT nothing FROM orders")
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_failed_block_rejects_statements_until_it_ends(stack: QueryStack) -> None:
    with stack.connect(autocommit=False) as connection:
        with pytest.raises(psycopg.errors.UndefinedColumn):
            connection.execute("SELECT nothing FROM orders")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("query", "sqlstate"),
    [
        ("SELEC 1", "42601"),
        ("SELECT 'open", "42601"),
        ("SELECT * FROM nowhere", "42P01"),
        ("SELECT * FROM nowhere.orders", "42P01"),
        ("SELECT nothing FROM orders", "42703"),
        ("SELECT nothing(1)", "42883"),
        ("SELECT 'x'::int", "22P02"),
        ("SELECT 'x'::nothing", "42704"),
        ("SELECT 'nowhere'::regclass", "42P01"),
        ("SELECT id, count(*) FROM orders", "42803"),
        ("SELECT a.id FROM orders a, orders b WHERE id = 1", "42702"),
        ("SELECT 2147483647::int4 + 1::int4", "22003"),
        ("SELECT '2024-13-01'::date", "22008"),
        ("SELECT id / (id - 3) FROM customers", "22012"),
        ("SELECT amount % (quantity - 1) FROM orders", "22012"),
        ("SELECT 1.5 / 0, mod(7, 0), 1::float8 / 0", "22012"),
        ("SELECT to_char(placed_at, 'DDth') FROM orders", "0A000"),
        ("SELECT to_char(placed_at, note) FROM orders", "0A000"),
        ("SELECT format('%d', id) FROM orders", "0A000"),
        ("SELECT repeat('x', 2000000000), lpad('x', 2000000000)", "54000"),
        ("SELECT '{{{{{{{1}}}}}}}'::int[]", "54000"),
        ("SELECT '{{{{{{{}}}}}}}'::int[]", "54000"),
        ("SELECT (repeat('[', 900) || repeat(']', 900))::jsonb -> 0", "54001"),
        ("SELECT 1e100000::numeric", "0A000"),
        ("SELECT repeat('9', 100000)::numeric * repeat('9', 100000)::numeric", "0A000"),
        ("SET nothing = 1", "42704"),
        ("SHOW nothing", "42704"),
        ("SET tailrace.as_of = 'yesterday'", "22023"),
        ("FETCH 1 FROM nothing", "34000"),
    ],
)
def test_errors_have_the_sqlstate_of_postgresql(stack: QueryStack, query: str, sqlstate: str) -> None:
    with stack.connect() as connection:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(query.encode())
        assert caught.value.sqlstate == sqlstate
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_cancel(stack: QueryStack) -> None:
    with stack.connect() as connection:
        query = "SELECT count(*) FROM generate_series(1, 10000000000) a(x) WHERE x % 7 = 3"
        threading.Timer(0.3, connection.cancel_safe).start()
        with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
            connection.execute(query)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_statement_timeout(stack: QueryStack) -> None:
    with stack.connect(options="-c statement_timeout=200ms") as connection:
        for prefix in (b"", b"EXPLAIN ANALYZE "):
            with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
                connection.execute(
                    prefix + b"SELECT count(*) FROM generate_series(1, 10000000000) a(x) WHERE x % 7 = 3"
                )
        connection.execute("SET statement_timeout = '1h'")  # capped at the server's limit
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_statement_of_a_disconnected_client_is_cancelled(stack: QueryStack) -> None:
    connection = stack.connect()
    connection.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 100000000000) a(x) WHERE x % 7 = 3")
    before = len(stack.server.clients)
    assert wait_until(lambda: any(client.session.is_busy for client in stack.server.clients), 10)
    connection.close()
    assert wait_until(lambda: len(stack.server.clients) == before - 1, 10)


def test_client_that_does_not_read_uses_little_memory(stack: QueryStack) -> None:
    with RawClient(stack.server.port) as client:
        client.start()
        before = psutil.Process().memory_info().rss
        # 16 GB if it were buffered.
        client.send(b"Q", b"SELECT repeat('x', 1600) FROM generate_series(1, 10000000)\0")
        assert client.message()[0] == b"T"
        assert psutil.Process().memory_info().rss - before < 500 << 20
        threading.Event().wait(0.3)
        assert psutil.Process().memory_info().rss - before < 500 << 20
    assert wait_until(lambda: not any(client.session.is_busy for client in stack.server.clients), 10)


def test_concurrent_connections(stack: QueryStack) -> None:
    found: list[Any] = []

    def query(number: int) -> None:
        with stack.connect() as connection:
            rows = [connection.execute("SELECT count(*) + %s FROM orders", [number]).fetchone() for _ in range(5)]
            found.append(rows == [(500 + number,)] * 5)

    threads = [threading.Thread(target=query, args=[n]) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 12
