"""Who is let in: loopback without users, SCRAM with them, TLS elsewhere; and what is sent before is kept small."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.fixtures.tls import Tls
from tests.query.conftest import connect
from tests.query.lakes import SINK, Made
from tests.query.raw import Raw

from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError
from tailrace.query.scram import Verifier
from tailrace.query.server import Server
from tailrace.settings import Query

_PASSWORD = "s3cret pässword"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made.under(tmp_path_factory.mktemp("access"), "shop")


@pytest.fixture(scope="module")
def certificate(tls: Tls) -> Path:
    return tls.authority.file.with_name("localhost.pem")


@pytest.fixture(scope="module")
def guarded(lake: Made, postgres: object, certificate: Path) -> Iterator[Server]:
    """Two users, one by her password, one as PostgreSQL itself keeps him; TLS is offered."""
    with postgres.connect() as connection:  # type: ignore[attr-defined]
        connection.execute(f"CREATE ROLE kept PASSWORD '{_PASSWORD}'")
        (verifier,) = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'kept'").fetchone()
        connection.rollback()
    users = {"ada": _PASSWORD, "kept": verifier}
    with Server(lake.options, SINK, Query(port=0, users=users, tls_cert=certificate, max_connections=2)) as server:
        yield server


@pytest.mark.parametrize("user", ["ada", "kept"])
@pytest.mark.parametrize("sslmode", ["disable", "require", "verify-full"])
def test_the_right_password(guarded: Server, tls: Tls, user: str, sslmode: str) -> None:
    options: dict[str, Any] = {"sslmode": sslmode, "host": "localhost", "sslrootcert": str(tls.authority.file)}
    with psycopg.connect(port=guarded.port, user=user, password=_PASSWORD, dbname="shop", **options) as connection:
        assert connection.execute("SELECT current_user").fetchone() == (user,)
        assert connection.pgconn.ssl_in_use == (sslmode != "disable")


@pytest.mark.parametrize("user", ["ada", "kept", "nobody"])
def test_the_wrong_password(guarded: Server, user: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=f'password authentication failed for user "{user}"'):
        connect(guarded, user=user, password="guess")


def test_a_name_that_there_is_not_looks_like_one_that_there_is(guarded: Server) -> None:
    def salt(user: str) -> bytes:
        with Raw(guarded.port) as client:
            body = struct.pack("!i", 196_608) + f"user\0{user}\0\0".encode()
            client.socket.sendall(struct.pack("!i", len(body) + 4) + body)
            assert client.message()[1] == struct.pack("!i", 10) + b"SCRAM-SHA-256\0\0"
            first = b"n,,n=,r=abcdefgh"
            client.send(b"p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(first)) + first)
            return client.message()[1][4:].split(b",")[1]

    assert salt("nobody") == salt("nobody") != salt("nobody else")
    assert len(salt("nobody")) == len(salt("ada"))


def test_more_connections_than_allowed(guarded: Server) -> None:
    given = {"user": "ada", "password": _PASSWORD}
    with (
        connect(guarded, **given),
        connect(guarded, **given),
        pytest.raises(psycopg.OperationalError, match="too many clients"),
    ):
        connect(guarded, **given)


def test_without_users_loopback_needs_no_password(lake: Made) -> None:
    with Server(lake.options, SINK, Query(port=0)) as server, connect(server) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("reader",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Query(host="0.0.0.0"), "without users, 0.0.0.0 is no address"),
        (Query(host="::"), "without users, :: is no address"),
        (Query(host="0.0.0.0", users={"ada": _PASSWORD}), "without TLS, 0.0.0.0 is no address"),
        (Query(users={"ada": "SCRAM-SHA-256$4096:half"}), "a SCRAM verifier is not whole"),
        (Query(tls_cert=Path("/nowhere")), "tls_cert /nowhere cannot be used"),
    ],
)
def test_what_would_be_unsafe_does_not_start(lake: Made, settings: Query, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Server(lake.options, SINK, settings)
    assert _PASSWORD not in str(caught.value)


def test_what_comes_before_authentication_is_small(guarded: Server) -> None:
    for data in (
        struct.pack("!i", 1 << 30),
        struct.pack("!ii", 10_001, 196_608),
        struct.pack("!i", 4),
        struct.pack("!ii", 8, 131_072),
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with Raw(guarded.port) as client:
            client.socket.sendall(data)
            kind, body = client.message()
            assert kind == b"E"
            assert b"08P01" in body
    with Raw(guarded.port) as client:
        body = struct.pack("!i", 196_608) + b"user\0ada\0\0"
        client.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        client.message()
        client.socket.sendall(b"p" + struct.pack("!i", 5_000))
        assert b"08P01" in client.message()[1]


@pytest.mark.parametrize("with_tls", [False, True])
def test_who_only_trickles_is_shown_the_door(guarded: Server, monkeypatch: pytest.MonkeyPatch, with_tls: bool) -> None:
    """Each byte comes in time; all together do not. Else a few of them would keep everybody else out."""
    monkeypatch.setattr("tailrace.query.server._LOGIN_SECONDS", 0.5)
    with Raw(guarded.port) as client:
        client.socket.settimeout(10)
        if with_tls:
            client.socket.sendall(struct.pack("!ii", 8, 80_877_103))
            assert client.socket.recv(1) == b"S"
            client.socket.sendall(b"\x16\x03\x01\x02\x00")
        else:
            client.socket.sendall(struct.pack("!i", 9_000))

        def is_gone() -> bool:
            try:
                client.socket.sendall(b"x")
                return select.select([client.socket], [], [], 0)[0] != []
            except OSError:
                return True

        assert wait_until(is_gone, 10)


def test_a_name_that_is_no_text_is_no_fault_of_ours(guarded: Server, caplog: pytest.LogCaptureFixture) -> None:
    with Raw(guarded.port) as client:
        body = struct.pack("!i", 196_608) + b"user\0\xff\0\0"
        client.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        assert b"08P01" in client.message()[1]
    assert not caplog.text


def test_a_stranger_cannot_cancel(guarded: Server) -> None:
    with connect(guarded, user="ada", password=_PASSWORD) as connection:
        pid = connection.info.backend_pid
        with socket.create_connection(("127.0.0.1", guarded.port)) as stranger:
            stranger.sendall(struct.pack("!iiiI", 16, 80_877_102, pid, 12345))
            assert stranger.recv(1) == b""
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_secrets_are_nowhere_to_be_seen(guarded: Server, caplog: pytest.LogCaptureFixture) -> None:
    settings = Query(users={"ada": _PASSWORD})
    with pytest.raises(psycopg.OperationalError):
        connect(guarded, user="ada", password="guess")
    assert _PASSWORD not in repr(settings) + caplog.text + repr(Verifier.of(_PASSWORD))
