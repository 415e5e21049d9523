"""Connections of the sink `mysql`: TLS, refused logins, settings, and what `tailrace check` finds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.tls import Authority
from tests.sinks.mysql_replica import MysqlReplica

from tailrace import settings, sinks
from tailrace.embedded.mariadb import MariaDbServer
from tailrace.embedded.mysql_family import MysqlFamilyServer
from tailrace.errors import ConfigError, SinkError, SinkRefused
from tailrace.finding import Severity
from tailrace.sinks.mysql import MysqlSink
from tailrace.sinks.mysql.options import MysqlOptions
from tailrace.sinks.mysql.session import MysqlSession


def test_tls(start_mariadb: Callable[..., MariaDbServer], tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")
    server = start_mariadb(certificate=authority.file_for("localhost"))
    query = "SELECT variable_value <> '' FROM information_schema.session_status WHERE variable_name = 'Ssl_cipher'"
    # MariaDB knows users by address: only 127.0.0.1 may log in, and the certificate is for another name.
    for options, is_encrypted in (
        ({"tls": "verify-ca", "tls_ca": authority.file}, 1),
        ({"tls": "require"}, 1),
        ({}, 1),
        ({"tls": "disable"}, 0),
    ):
        with closing(MysqlSession(MysqlOptions(url=server.url, **options))) as session:
            assert session.value(query) == is_encrypted, options
    for refused in ({"tls_ca": authority.file}, {"tls": "verify-ca", "tls_ca": stranger.file}, {"tls": "verify-full"}):
        with pytest.raises(SinkRefused, match="certificate verify failed") as raised:
            MysqlSink("refused", MysqlOptions(url=server.url, **refused)).open()
        assert "tls_ca" in raised.value.hint


def test_refused_logins_are_not_retried(mariadb_server: MariaDbServer, tmp_path: Path) -> None:
    plain, _, place = mariadb_server.url.partition(":" + mariadb_server.password)
    host, _, _ = place.rpartition("/")
    secret = tmp_path / "password"
    secret.write_text("topsecret\n")
    for options, words in (
        ({"url": f"{plain}{place}", "password_file": secret}, "Access denied"),
        ({"url": f"{plain}:topsecret{place}"}, "Access denied"),
        ({"url": f"{plain}:{mariadb_server.password}{host}/absent"}, "Unknown database"),
    ):
        with pytest.raises(SinkRefused, match=words) as raised:
            MysqlSink("refused", MysqlOptions(**options)).open()
        assert "topsecret" not in str(raised.value)
        assert raised.value.hint
    with pytest.raises(SinkError) as unreachable:
        MysqlSink("absent", MysqlOptions(url="mysql://user@127.0.0.1:1/shop")).open()
    assert unreachable.value.retry
    secret.write_text(f"{mariadb_server.password}\n")
    MysqlSink("accepted", MysqlOptions(url=f"{plain}{place}", password_file=secret)).open()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "url is missing"),
        ({"url": "mysql://host"}, "does not name a server and a database"),
        ({"url": "postgresql://user:topsecret@host/shop"}, "does not name a server and a database"),
        ({"url": "mysql://user:topsecret@host:x/shop"}, "does not name a server and a database"),
        ({"url": "mysql://host/shop", "tls": "disable", "tls_ca": "ca.pem"}, "need TLS"),
        ({"url": "mysql://host/shop", "tls_key": "key.pem"}, "without tls_certificate"),
        ({"url": "mysql://host/shop", "password_file": "absent"}, "password_file absent cannot be read"),
        ({"url": "mysql://host/shop", "database": "many"}, "is 'many'"),
        ({"url": "mysql://host/shop", "on_unrepresentable": "guess"}, "is 'guess'"),
    ],
)
def test_settings_are_checked(given: dict[str, Any], words: str) -> None:
    configured = settings.Settings(sinks=({"type": "mysql", "name": "replica", **given},))
    with pytest.raises(ConfigError, match=words) as raised:
        sinks.from_settings(configured, {})
    assert "topsecret" not in str(raised.value)


def test_check(any_mysql_server: MysqlFamilyServer) -> None:
    """Nothing is wrong with a server as it is installed; each change of its settings is found."""
    sink = MysqlSink("checked", MysqlOptions(url=any_mysql_server.url))
    assert [finding for finding in sink.check() if finding.severity is not Severity.NOTE] == []
    with closing(MysqlReplica(any_mysql_server.url)) as replica:
        before = replica.rows("SELECT @@GLOBAL.local_infile, @@GLOBAL.max_allowed_packet, @@GLOBAL.read_only")[0]
        replica.execute("CREATE USER IF NOT EXISTS 'limited'@'127.0.0.1' IDENTIFIED BY 'limited'")
        replica.execute("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON tailrace.* TO 'limited'@'127.0.0.1'")
        try:
            replica.execute("SET GLOBAL local_infile = 0", "SET GLOBAL max_allowed_packet = 524288")
            found = {finding.message.split(":")[0]: finding for finding in sink.check()}
            assert found["does not accept LOAD DATA LOCAL, which writes large steps"].severity is Severity.ERROR
            assert found["has a max_allowed_packet of 524,288 bytes"].severity is Severity.ERROR
            place = any_mysql_server.url.rpartition("@")[2]
            limited = MysqlSink("limited", MysqlOptions(url=f"mysql://limited:limited@{place}"))
            (missing,) = [finding for finding in limited.check() if "grant" in finding.message]
            assert missing.message.endswith("needs: ALTER, CREATE TEMPORARY TABLES, DROP, INDEX")
            assert missing.fix.startswith("GRANT ALTER, CREATE, ")
        finally:
            replica.execute(f"SET GLOBAL local_infile = {before[0]}", f"SET GLOBAL max_allowed_packet = {before[1]}")
            replica.execute("DROP USER 'limited'@'127.0.0.1'")
