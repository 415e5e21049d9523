"""`tailrace audit` with only Bemi's environment, on a server with a password and a certificate."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from pathlib import Path

import httpx
import psycopg
import pytest
from tests import process_tree
from tests.capturing import tailrace
from tests.fixtures.postgres import running
from tests.fixtures.tls import Tls, TlsProxy

from tailrace.audit import bemi_environment
from tailrace.change import Lsn
from tailrace.embedded.process import free_port, wait_until
from tailrace.errors import ConfigError
from tailrace.log import source_record
from tailrace.log.segment import SourceIdentity
from tailrace.store import Store

PLANTED = "planted-0c7b1f"


def _environment(proxy: TlsProxy, tls: Tls, host: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "DB_", "TAILRACE_"))}
    return inherited | {
        "DB_HOST": host,
        "DB_PORT": str(proxy.port),
        "DB_PASSWORD": PLANTED,
        "DB_SSL_MODE": "verify-full",
        "DB_SSL_ROOT_CERT": str(tls.authority.file),
    }


def test_the_drop_in_from_start_to_shutdown(tls: Tls, tmp_path: Path) -> None:
    ports = {"HEALTH_PORT": str(free_port()), "METRICS_PORT": str(free_port())}
    with running(18, auth="scram-sha-256", password=PLANTED) as server, TlsProxy(tls.context, server.port) as proxy:
        env = _environment(proxy, tls, "localhost") | ports
        env |= {"SLOT_NAME": "bemi", "PUBLICATION_NAME": "bemi", "TABLES": "t", "CLEANUP_ON_SHUTDOWN": "yes"}
        with psycopg.connect(server.url, password=PLANTED, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
            connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
            with (tmp_path / "out").open("w") as out:
                process = subprocess.Popen(tailrace("audit"), env=env, cwd=tmp_path, stdout=out, stderr=out)
            try:

                def has(count: int) -> bool:
                    assert process.poll() is None, (tmp_path / "out").read_text()
                    is_there = connection.execute("SELECT to_regclass('changes') IS NOT NULL").fetchone()
                    return is_there == (True,) and connection.execute("SELECT count(*) FROM changes").fetchone() == (
                        count,
                    )

                assert wait_until(lambda: has(0), 120), (tmp_path / "out").read_text()
                connection.execute(
                    "BEGIN; SELECT pg_logical_emit_message(true, '_bemi', '{\"user\": 1}');"
                    " INSERT INTO t VALUES (1, 'a'); INSERT INTO other VALUES (1); COMMIT"
                )
                connection.execute("UPDATE t SET v = 'b'")
                assert wait_until(lambda: has(2), 60), (tmp_path / "out").read_text()
                health = httpx.get(f"http://127.0.0.1:{ports['HEALTH_PORT']}/health")
                assert health.json() == {"status": "ok"}
                assert "tailrace_" in httpx.get(f"http://127.0.0.1:{ports['METRICS_PORT']}/metrics").text
                refused = httpx.post(f"http://127.0.0.1:{ports['HEALTH_PORT']}/shutdown")
                assert refused.status_code == 401
                assert PLANTED not in str(process_tree.arguments(process.pid))
                history = subprocess.run(
                    tailrace("history", "t", "1"), env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
                )
                assert history.returncode == 0, history.stderr
                assert '"a" → "b"' in history.stdout.replace("?", '"a"')
                assert "user=1" in history.stdout
            finally:
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0, (tmp_path / "out").read_text()
            found = connection.execute(
                'SELECT database, "table", operation, before, after, context, primary_key'
                " FROM changes ORDER BY position"
            ).fetchall()
            assert found == [
                ("postgres", "t", "INSERT", None, {"id": 1, "v": "a"}, {"user": 1}, "1"),
                ("postgres", "t", "UPDATE", {"id": 1}, {"id": 1, "v": "b"}, None, "1"),
            ]
            assert connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []
            assert connection.execute("SELECT pubname FROM pg_publication").fetchall() == []
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("tailrace-log" in str(path) for path in written)
    assert not [path for path in written if PLANTED.encode() in path.read_bytes()]


@pytest.mark.soak
def test_a_host_that_the_certificate_does_not_name_is_refused(tls: Tls, tmp_path: Path) -> None:
    with running(18, auth="scram-sha-256", password=PLANTED) as server, TlsProxy(tls.context, server.port) as proxy:
        done = subprocess.run(
            tailrace("audit"),
            env=_environment(proxy, tls, "127.0.0.1"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1, done.stderr
    assert "does not match host name" in done.stderr
    assert PLANTED not in done.stderr + done.stdout


def test_settings_from_the_environment() -> None:
    found = bemi_environment.read({})
    source = found.settings.source
    assert source.url == "postgresql://postgres@127.0.0.1:5432/postgres"
    assert source.password is not None
    assert (source.password.reveal(), source.sslmode, source.tables) == ("postgres", "disable", ("*.*",))
    (sink,) = found.settings.sinks
    assert (sink["url"], sink["password"], sink["sslmode"]) == (source.url, "postgres", "disable")
    assert (found.log_level, found.health_port, found.shutdown_timeout_s) == (logging.INFO, None, 30.0)
    assert not found.cleans_up
    given = bemi_environment.read(
        {
            "DB_HOST": "::1",
            "DB_NAME": "a/b",
            "DB_USER": "me@home",
            "DB_PASSWORD": "p",
            "DB_SSL_MODE": "require",
            "DEST_DB_HOST": "other",
            "DEST_DB_NAME": "audit",
            "TABLES": "orders, shop.items,User,log_*",
            "LOG_LEVEL": "warn",
            "SHUTDOWN_TIMEOUT": "5s",
            "CLEANUP_ON_SHUTDOWN": "1",
            "METRICS_PORT": "9100",
            "SLOT_NAME": "bemi",
        }
    )
    assert given.settings.source.url == "postgresql://me%40home@[::1]:5432/a%2Fb"
    (sink,) = given.settings.sinks
    assert sink["url"] == "postgresql://me%40home@other:5432/audit"
    assert (sink["password"], sink["sslmode"], sink["tables"]) == (
        *("p", "require"),
        ['public."orders"', '"shop"."items"', 'public."User"', "public.log_*"],
    )
    assert (given.log_level, given.shutdown_timeout_s, given.metrics_port) == (logging.WARNING, 5.0, 9100)
    assert given.cleans_up
    assert given.settings.source.slot == "bemi"
    with pytest.raises(ConfigError) as caught:
        bemi_environment.read(
            {"DB_PORT": "x", "DB_SSL_MODE": "prefer", "LOG_LEVEL": "loud", "HEALTH_PORT": "99999", "SLOT_NAME": "No!"}
        )
    for word in ("DB_PORT", "DB_SSL_MODE", "LOG_LEVEL", "HEALTH_PORT", "slot"):
        assert word in str(caught.value)


def test_each_slot_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def found(**given: str) -> tuple[str, str]:
        settings = bemi_environment.read(given).settings
        return settings.source.slot, settings.store.url

    log = tmp_path / "tailrace-log"
    assert found(DB_NAME="shop") == ("tailrace_shop", (log / "tailrace_shop").as_uri())
    assert found(SLOT_NAME="bemi") == ("bemi", (log / "bemi").as_uri())
    assert not log.exists(), "to read the settings creates nothing"
    assert found(DB_NAME="shop", TAILRACE_STORE_URL="file:///elsewhere") == ("tailrace_shop", "file:///elsewhere")

    # An earlier version stored the log in the folder itself. It stays there, for its slot.
    identity = SourceIdentity("1", 1, "shop", "tailrace", "tailrace")
    source_record.save(Store.open(log.as_uri()), identity, Lsn(1))
    assert found(DB_NAME="shop") == ("tailrace", log.as_uri())
    assert found(SLOT_NAME="tailrace") == ("tailrace", log.as_uri())
    assert found(SLOT_NAME="bemi") == ("bemi", (log / "bemi").as_uri())
    assert found(DB_NAME="shop", TAILRACE_STORE_URL=log.as_uri()) == ("tailrace", log.as_uri())
