"""Access control: loopback without users, SCRAM with users, TLS elsewhere; and limits before authentication."""

from __future__ import annotations

import base64
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
from tests.query.raw_client import RawClient
from tests.query.sample_lake import SINK, SampleLake

from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError
from tailrace.query.query_server import QueryServer
from tailrace.query.scram import Verifier
from tailrace.settings import QuerySettings

_PASSWORD = "s3cret pässword"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> SampleLake:
    return SampleLake.under(tmp_path_factory.mktemp("access"), "shop")


@pytest.fixture(scope="module")
def certificate(tls: Tls) -> Path:
    return tls.authority.file.with_name("localhost.pem")


@pytest.fixture(scope="module")
def secured_server(lake: SampleLake, postgres: object, certificate: Path) -> Iterator[QueryServer]:
    """A server with TLS and two users: one with a password, one with a verifier from PostgreSQL."""
    with postgres.connect() as connection:  # type: ignore[attr-defined]
        connection.execute(f"CREATE ROLE stored PASSWORD '{_PASSWORD}'")
        (verifier,) = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'stored'").fetchone()
        connection.rollback()
    users = {"ada": _PASSWORD, "stored": verifier}
    with QueryServer(
        lake.options, SINK, QuerySettings(port=0, users=users, tls_cert=certificate, max_connections=2)
    ) as server:
        yield server


@pytest.mark.parametrize("user", ["ada", "stored"])
@pytest.mark.parametrize("sslmode", ["disable", "require", "verify-full"])
def test_correct_password_is_accepted(secured_server: QueryServer, tls: Tls, user: str, sslmode: str) -> None:
    options: dict[str, Any] = {"sslmode": sslmode, "host": "localhost", "sslrootcert": str(tls.authority.file)}
    with psycopg.connect(
        port=secured_server.port, user=user, password=_PASSWORD, dbname="shop", **options
    ) as connection:
        assert connection.execute("SELECT current_user").fetchone() == (user,)
        assert connection.pgconn.ssl_in_use == (sslmode != "disable")


@pytest.mark.parametrize("user", ["ada", "stored", "nobody"])
def test_wrong_password_is_rejected(secured_server: QueryServer, user: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=f'password authentication failed for user "{user}"'):
        connect(secured_server, user=user, password="guess")


def _challenge(server: QueryServer, user: str) -> tuple[bytes, bytes]:
    """Salt and rounds of a user, as the server says them before it knows who asks."""
    with RawClient(server.port) as client:
        body = struct.pack("!i", 196_608) + f"user\0{user}\0\0".encode()
        client.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        assert client.message()[1] == struct.pack("!i", 10) + b"SCRAM-SHA-256\0\0"
        first = b"n,,n=,r=abcdefgh"
        client.send(b"p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(first)) + first)
        _, salt, rounds = client.message()[1][4:].split(b",")
        return salt, rounds


def test_unknown_user_cannot_be_told_from_known_user(secured_server: QueryServer, lake: SampleLake) -> None:
    unknown, rounds = _challenge(secured_server, "nobody")
    assert unknown == _challenge(secured_server, "nobody")[0] != _challenge(secured_server, "nobody else")[0]
    known, usual = _challenge(secured_server, "ada")
    assert (len(unknown), rounds) == (len(known), usual)
    verifier = Verifier.from_password(_PASSWORD)
    encoded = [base64.b64encode(part).decode() for part in (verifier.salt, verifier.stored_key, verifier.server_key)]
    stored = f"SCRAM-SHA-256$15000:{encoded[0]}${encoded[1]}:{encoded[2]}"
    with QueryServer(lake.options, SINK, QuerySettings(port=0, users={"ada": stored})) as server:
        assert _challenge(server, "nobody")[1] == _challenge(server, "ada")[1] == b"i=15000"


def test_connections_beyond_the_limit_are_rejected(secured_server: QueryServer) -> None:
    given = {"user": "ada", "password": _PASSWORD}
    with (
        connect(secured_server, **given),
        connect(secured_server, **given),
        pytest.raises(psycopg.OperationalError, match="too many clients"),
    ):
        connect(secured_server, **given)


def test_a_login_with_a_wrong_setting_takes_no_place(lake: SampleLake) -> None:
    with QueryServer(lake.options, SINK, QuerySettings(port=0, max_connections=2)) as server:
        for _ in range(5):
            with pytest.raises(psycopg.OperationalError, match="invalid value for parameter"):
                psycopg.connect(host="127.0.0.1", port=server.port, user="a", options="-c statement_timeout=wrong")
        assert wait_until(lambda: not server.clients, 10)
        with psycopg.connect(host="127.0.0.1", port=server.port, user="a") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_without_users_loopback_needs_no_password(lake: SampleLake) -> None:
    with QueryServer(lake.options, SINK, QuerySettings(port=0)) as server, connect(server) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("reader",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (QuerySettings(host="0.0.0.0"), "refusing to listen on 0.0.0.0 without users"),
        (QuerySettings(host="::"), "refusing to listen on :: without users"),
        (QuerySettings(host="0.0.0.0", users={"ada": _PASSWORD}), "refusing to listen on 0.0.0.0 without TLS"),
        (QuerySettings(users={"ada": "SCRAM-SHA-256$4096:half"}), "a SCRAM verifier is incomplete"),
        (QuerySettings(tls_cert=Path("/nowhere")), "tls_cert /nowhere cannot be used"),
    ],
)
def test_unsafe_settings_are_refused_at_start(lake: SampleLake, settings: QuerySettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        QueryServer(lake.options, SINK, settings)
    assert _PASSWORD not in str(caught.value)


def test_oversized_or_malformed_startup_is_a_protocol_violation(secured_server: QueryServer) -> None:
    for data in (
        struct.pack("!i", 1 << 30),
        struct.pack("!ii", 10_001, 196_608),
        struct.pack("!i", 4),
        struct.pack("!ii", 8, 131_072),
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with RawClient(secured_server.port) as client:
            client.socket.sendall(data)
            kind, body = client.message()
            assert kind == b"E"
            assert b"08P01" in body
    with RawClient(secured_server.port) as client:
        body = struct.pack("!i", 196_608) + b"user\0ada\0\0"
        client.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        client.message()
        client.socket.sendall(b"p" + struct.pack("!i", 5_000))
        assert b"08P01" in client.message()[1]


@pytest.mark.parametrize("with_tls", [False, True])
def test_slow_login_is_disconnected(
    secured_server: QueryServer, monkeypatch: pytest.MonkeyPatch, with_tls: bool
) -> None:
    """Each byte arrives in time, but the whole login does not. Otherwise a few such clients could block all others."""
    monkeypatch.setattr("tailrace.query.query_server._LOGIN_SECONDS", 0.5)
    with RawClient(secured_server.port) as client:
        client.socket.settimeout(10)
        if with_tls:
            client.socket.sendall(struct.pack("!ii", 8, 80_877_103))
            assert client.socket.recv(1) == b"S"
            client.socket.sendall(b"\x16\x03\x01\x02\x00")
        else:
            client.socket.sendall(struct.pack("!i", 9_000))

        def is_disconnected() -> bool:
            try:
                client.socket.sendall(b"x")
                return select.select([client.socket], [], [], 0)[0] != []
            except OSError:
                return True

        assert wait_until(is_disconnected, 10)


def test_user_name_that_is_not_utf8_is_a_protocol_violation(
    secured_server: QueryServer, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(secured_server.port) as client:
        body = struct.pack("!i", 196_608) + b"user\0\xff\0\0"
        client.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        assert b"08P01" in client.message()[1]
    assert not caplog.text


def test_cancel_request_needs_the_right_secret(secured_server: QueryServer) -> None:
    with connect(secured_server, user="ada", password=_PASSWORD) as connection:
        pid = connection.info.backend_pid
        with socket.create_connection(("127.0.0.1", secured_server.port)) as stranger:
            stranger.sendall(struct.pack("!iiiI", 16, 80_877_102, pid, 12345))
            assert stranger.recv(1) == b""
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_passwords_do_not_appear_in_logs_or_reprs(
    secured_server: QueryServer, caplog: pytest.LogCaptureFixture
) -> None:
    settings = QuerySettings(users={"ada": _PASSWORD})
    with pytest.raises(psycopg.OperationalError):
        connect(secured_server, user="ada", password="guess")
    assert _PASSWORD not in repr(settings) + caplog.text + repr(Verifier.parse(_PASSWORD))
