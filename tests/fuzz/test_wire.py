"""Damaged requests to the servers: each gets an answer or a closed connection, and the next client gets its rows."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from tests.fixtures.postgres import Database
from tests.fuzz.mutation import ROUNDS, mutations
from tests.log.stream import Server, write
from tests.ops.test_http import FakeService
from tests.query import sample_lake
from tests.query.sample_lake import SampleLake

from tailrace.embedded.process import free_port, wait_until
from tailrace.ops.explorer import Explorer
from tailrace.ops.http import HttpServer, routes
from tailrace.ops.status import Overview
from tailrace.query.query_server import QueryServer
from tailrace.settings import HttpSettings, QuerySettings
from tailrace.store import FileStore

ANSWER_S = 10.0
"""By then a server has answered or closed the connection. It may also wait for the rest of a message."""
GROWTH_BYTES = 300 << 20


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


STARTUP = _message(b"", struct.pack("!i", 196_608) + b"user\0reader\0database\0shop\0\0")
SSL_REQUEST = _message(b"", struct.pack("!i", 80_877_103))
CANCEL = _message(b"", struct.pack("!iii", 80_877_102, 1, 2))
_FIRST = b"n,,n=,r=rOprNGfwEbeRWgbNEkqO"
LOGIN = b"".join(
    (
        _message(b"p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(_FIRST)) + _FIRST),
        _message(b"p", b"c=biws,r=rOprNGfwEbeRWgbNEkqO,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="),
    )
)
SESSION = b"".join(
    (
        _message(b"Q", b"SELECT id, note FROM t ORDER BY id\0"),
        _message(b"P", b"s\0SELECT note FROM t WHERE id = $1\0" + struct.pack("!hi", 1, 23)),
        _message(b"B", b"p\0s\0" + struct.pack("!hhhi", 1, 0, 1, 1) + b"2" + struct.pack("!hh", 1, 0)),
        _message(b"D", b"Pp\0"),
        _message(b"E", b"p\0" + struct.pack("!i", 0)),
        _message(b"C", b"Ss\0"),
        _message(b"H", b""),
        _message(b"S", b""),
        _message(b"d", b"copied"),
    )
)


@pytest.fixture
def lake(database: Database, tmp_path: Path) -> SampleLake:
    lake = SampleLake.under(tmp_path, database.name)
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        connection.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
        lake.step(connection, ["t"])
    return lake


@contextmanager
def _serving(lake: SampleLake, **settings: Any) -> Iterator[QueryServer]:
    limits = QuerySettings(port=0, max_connections=16, **settings)
    with QueryServer(lake.options, sample_lake.SINK, limits) as server:
        yield server


def _exchange(port: int, request: bytes) -> bytes:
    """Send, close our side, and return everything that the server says until it closes its own."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as connection:
        answer = b""
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65_536):
                answer += piece
        except TimeoutError:
            pytest.fail(f"no answer to {request!r}")
        except OSError:  # it has closed the connection before it read everything
            pass
        return answer


def _rows(port: int, password: str | None = None) -> list[tuple[int, str]]:
    with psycopg.connect(host="127.0.0.1", port=port, user="reader", dbname="shop", password=password) as connection:
        return connection.execute("SELECT id, note FROM t ORDER BY id").fetchall()


@pytest.mark.parametrize(
    "request_", [STARTUP, SSL_REQUEST + STARTUP, CANCEL, STARTUP + SESSION], ids=["startup", "tls", "cancel", "session"]
)
def test_the_query_server_survives_damaged_messages(lake: SampleLake, request_: bytes) -> None:
    with _serving(lake) as server:
        _assert_survives(server, request_)


def test_the_query_server_survives_damaged_logins(lake: SampleLake) -> None:
    with _serving(lake, users={"reader": "secret"}) as server:
        _assert_survives(server, STARTUP + LOGIN, "secret")


def _assert_survives(server: QueryServer, request: bytes, password: str | None = None) -> None:
    assert _rows(server.port, password) == [(1, "one"), (2, "two")]
    memory, threads = psutil.Process().memory_info().rss, threading.active_count()
    for damaged in mutations(len(request), request, ROUNDS // 2):
        _exchange(server.port, damaged)
    assert wait_until(lambda: threading.active_count() <= threads + 2, ANSWER_S), "a connection still has its thread"
    assert psutil.Process().memory_info().rss - memory < GROWTH_BYTES
    assert _rows(server.port, password) == [(1, "one"), (2, "two")]


def test_the_http_server_survives_damaged_requests() -> None:
    fake = FakeService()
    port = free_port()
    requests = (
        b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer x\r\n\r\n",
        b"POST /sinks/lake/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody",
        b"POST /sinks/%2e%2fx/resume HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nb\r\n0\r\n\r\n",
    )
    with (
        HttpServer(HttpSettings(port=port), routes(fake.service())) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        memory = psutil.Process().memory_info().rss
        for number, request in enumerate(requests):
            for damaged in mutations(number, request, ROUNDS // 2):
                answer = _exchange(port, damaged)
                assert not answer.startswith(b"HTTP/1.1 500"), damaged
        assert client.get("/status").status_code == 200
        assert psutil.Process().memory_info().rss - memory < GROWTH_BYTES
        assert set(fake.requests) <= {"pause lake", "resume lake"}


_PARAMETERS = {
    "/changes": {
        "table": "public.t100",
        "key": "5",
        "since": "2025-01-01T00:00:00Z",
        "until": "2027-01-01",
        "transaction": "0/1000100",
        "limit": "50",
        "cursor": "7@1/100:3",
    },
    "/row": {"table": "public.t100", "key": "5", "before": "1/100:3", "limit": "50"},
    "/dead-letters": {"sink": "lake"},
    "/metrics/history": {"seconds": "900"},
    "/status": {"x": "1"},
}
_VALUES = (
    *(
        "",
        "0",
        "-1",
        "1.5",
        "9" * 5000,
        "9" * 19,
        "\u0663",
        "nan",
        "inf",
        "%",
        "\0",
        "..",
        "*",
        "x" * 9000,
        "a.b.c",
        '"',
    ),
    *("0/0", "-1/0", "FFFFFFFF/FFFFFFFF", "7FFFFFFF/FFFFFFFF:9", "0/1:" + "9" * 30, "1@0/1:" + "9" * 5000, "0/ 1"),
    *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-13-01", "2026-01-01T00:00:00+23:59"),
)


def test_the_explorer_survives_odd_parameters(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    write(store, Server(seed=6).work(10), most=60)
    service = replace(FakeService().service(), explorer=Explorer(store, [], Overview))
    rng = random.Random(1)
    with (
        HttpServer(HttpSettings(port=free_port()), routes(service)) as server,
        httpx.Client(base_url=server.url, timeout=ANSWER_S) as client,
    ):
        for path, parameters in _PARAMETERS.items():
            for number in range(ROUNDS // 5):
                name = rng.choice(list(parameters))
                (damaged,) = mutations(number, parameters[name].encode(), 1)
                value = rng.choice((*_VALUES, damaged.decode(errors="replace")))
                answer = client.get(path, params=parameters | {name: value})
                assert answer.status_code in (200, 400, 404), (path, name, value, answer.text)
        found = client.get("/changes", params={"table": "public.t100"}).json()["changes"]
        assert found
