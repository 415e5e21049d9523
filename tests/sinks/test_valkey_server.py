"""Valkey servers that lose data, are full, or do not suit the sink; second writers; logging in; `tailrace check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.postgres import Database
from tests.fixtures.tls import PlainTlsProxy, Tls
from tests.sinks.valkey_scene import ValkeyScene

from tailrace import settings, sinks
from tailrace.delivery import cursors
from tailrace.embedded.process import wait_until
from tailrace.embedded.valkey import ValkeyServer
from tailrace.errors import ConfigError, FencedError, SinkDiverged, SinkError, SinkRefused
from tailrace.finding import Finding
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.sinks.valkey.command import CommandBatch
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.sink_state import SinkState, Writer

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, n int)"


@pytest.fixture
def scene(database: Database, valkey_server: ValkeyServer, tmp_path: Path) -> ValkeyScene:
    made = ValkeyScene(database, valkey_server, tmp_path)
    made.capture(_TABLE, "INSERT INTO t SELECT g, g FROM generate_series(1, 5) g", snapshot=None)
    return made


def _sink(tmp_path: Path, url: str, **more: Any) -> Any:
    raw = {"type": "valkey", "name": "tested", "url": url, **more}
    (found,) = sinks.from_settings(
        settings.Settings(store=settings.StoreSettings((tmp_path / "store").as_uri()), sinks=(raw,)), {}
    )
    return found.sink


def _open(tmp_path: Path, url: str, **more: Any) -> None:
    sink = _sink(tmp_path, url, **more)
    try:
        sink.open()
    finally:
        sink.close()


def _findings(tmp_path: Path, url: str, **more: Any) -> list[Finding]:
    return list(_sink(tmp_path, url, **more).check())


def test_a_second_writer_takes_over_and_the_first_is_refused(scene: ValkeyScene) -> None:
    with scene.stepper() as first:
        first.load_missing()
        scene.capture("UPDATE t SET n = 10")
        planned = first.next_step()
        assert planned is not None
        results = first.run(planned.tasks, first.sink.parallel)
        with scene.stepper() as second:
            # It completes the step that the first one has staged.
            second.deliver(second.log_end())
            assert second.state == planned.step.after
        with pytest.raises(FencedError):
            first.commit(planned, results)
    scene.assert_rows("t", "id")


def test_a_transaction_of_a_superseded_writer_has_no_effect(valkey_server: ValkeyServer) -> None:
    options = ValkeyOptions(url=valkey_server.url)

    def connected() -> tuple[ValkeyClient, Writer]:
        client = ValkeyClient(options, "tested")
        return client, Writer(client, SinkState(client, "tested"), "tested")

    first, writer = connected()
    writer.watch()
    second, _ = connected()
    batch = CommandBatch()
    batch.add("SET", "written by the first", "1")
    with pytest.raises(SinkError, match="another process writes for this sink"):
        writer.run(batch, "a test")
    with pytest.raises(SinkError, match="another process writes for this sink"):
        writer.watch()
    assert second.run("EXISTS", "written by the first") == 0
    first.close()
    second.close()


def test_a_server_that_lost_everything_is_noticed(scene: ValkeyScene) -> None:
    scene.deliver()
    scene.client.flushall()
    for _ in range(2):
        with pytest.raises(SinkDiverged, match="it has lost them") as caught:
            scene.deliver()
    assert "sink rewind tested snapshot" in caught.value.hint
    made = scene.driver().make_stepper()
    made.rewind("snapshot")
    made.sink.close()
    scene.deliver()
    scene.assert_rows("t", "id")


def test_a_server_that_went_back_takes_the_cursor_with_it(scene: ValkeyScene, caplog: pytest.LogCaptureFixture) -> None:
    """As after a crash that lost the last second, or from a backup."""
    first = scene.deliver()
    copy = {key: scene.client.dump(key) for key in scene.client.keys("*")}
    scene.capture("UPDATE t SET n = 0, id = id + 10", "DELETE FROM t WHERE id = 11", "INSERT INTO t VALUES (1, 100)")
    second = scene.deliver()
    assert first.cursor is not None
    assert second.cursor is not None
    assert first.cursor < second.cursor
    cursors.publish(scene.store, "tested", second.cursor)
    scene.client.flushall()
    for key, dump in copy.items():
        scene.client.restore(key, 0, dump or b"")
    assert scene.deliver() == second
    assert "the server went back" in caplog.text
    scene.assert_rows("t", "id")


def test_a_server_without_memory_is_retried(scene: ValkeyScene) -> None:
    scene.deliver()
    scene.capture("INSERT INTO t SELECT g, g FROM generate_series(6, 500) g")
    with scene.stepper() as one:
        scene.client.config_set("maxmemory", 1)
        try:
            with pytest.raises(SinkError, match="OOM"):
                one.deliver(one.log_end())
        finally:
            scene.client.config_set("maxmemory", 0)
    assert len(scene.client.keys("public:t:*")) == 5, "half a transaction was applied"
    scene.deliver()
    scene.assert_rows("t", "id")


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"appendonly": "no"}, "no append-only file"),
        ({"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"}, "may evict any key"),
        ({"cluster_enabled": "yes"}, "part of a cluster"),
    ],
)
def test_servers_that_do_not_suit(tmp_path: Path, configuration: dict[str, str], message: str) -> None:
    with ValkeyServer(**configuration) as server:
        with pytest.raises(SinkRefused, match=message):
            _open(tmp_path, server.url)
        (finding,) = _findings(tmp_path, server.url)
        assert message in finding.message
        assert finding.fix
        if "appendonly" in configuration:
            _open(tmp_path, server.url, durability="none")


def test_replicas_make_a_step_durable(database: Database, tmp_path: Path) -> None:
    with ValkeyServer(appendonly="no") as server, ValkeyServer(replicaof=f"127.0.0.1 {server.port}") as replica:
        scene = ValkeyScene(database, server, tmp_path)
        assert wait_until(lambda: scene.client.info("replication")["connected_slaves"] == 1, 30)
        scene.capture(_TABLE, "INSERT INTO t VALUES (1, 1)", snapshot=None)
        scene.deliver(durability="replicas")
        scene.assert_rows("t", "id")
        with pytest.raises(SinkError, match="replica"):
            _open(tmp_path, replica.url)


def test_users_and_rights(tmp_path: Path, valkey_server: ValkeyServer, scene: ValkeyScene) -> None:
    own = ["+@connection", "+info"]
    written = ["~tailrace:tested*", "~public:*", "+@read", "+@write", "+@transaction", "+waitaof", "+wait", *own]
    for user, password, rights in (("reader", "a:b@c", ["~*", "+@read", *own]), ("writer", "secret", written)):
        command: Any = scene.client.execute_command
        command("ACL", "SETUSER", user, "on", f">{password}", *rights)
    url = f"127.0.0.1:{valkey_server.port}"
    scene.deliver(url=f"redis://writer:secret@{url}")
    scene.assert_rows("t", "id")
    sink = _sink(tmp_path, f"valkey://reader:a%3Ab%40c@{url}")
    assert "a:b@c" not in repr(sink._options)
    assert sink._options.url == f"valkey://{url}"
    commands = {finding.message.split()[5] for finding in sink.check()}
    assert {"HSET", "SADD", "DEL"} <= commands
    assert not {"HMGET", "GET"} & commands
    assert not _findings(tmp_path, f"valkey://writer:secret@{url}")
    with pytest.raises(SinkRefused, match="WRONGPASS"):
        _open(tmp_path, f"valkey://writer:wrong@{url}")
    (finding,) = _findings(tmp_path, "valkey://127.0.0.1:1")
    assert "127.0.0.1:1" in finding.message


def test_tls_verifies_certificate_and_host(tmp_path: Path, valkey_server: ValkeyServer, tls: Tls) -> None:
    """The embedded server has no TLS, so a proxy terminates it."""
    with PlainTlsProxy(tls.context, valkey_server.port) as proxy:
        port = proxy.port
        _open(tmp_path, f"valkeys://localhost:{port}", tls_ca=str(tls.authority.file))
        for host, authority in (("127.0.0.1", tls.authority.file), ("localhost", tls.stranger.file)):
            with pytest.raises(SinkRefused) as caught:
                _open(tmp_path, f"rediss://{host}:{port}", tls_ca=str(authority))
            assert "tls_ca" in caught.value.hint
        with pytest.raises(SinkRefused, match="certificate verify failed"):
            _open(tmp_path, f"valkeys://localhost:{port}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": ""}, "url is missing"),
        ({"url": "http://x"}, "is not the URL of a server"),
        ({"url": "valkey://x/name"}, "is not the URL of a server"),
        ({"url": "valkey://user@x"}, "password is not"),
        ({"tls_ca": __file__}, "need TLS"),
        ({"ttl_s": 5, "mode": "stream"}, "ttl_s is not for mode 'stream'"),
        ({"channel": "c"}, "channel is not for mode 'hash'"),
        ({"mode": "stream", "envelope": "debezium"}, "debezium_prefix is missing"),
        ({"key": "{schema}{table}"}, "nothing between"),
        ({"key": "{operation}:{key}"}, "cannot depend on the operation"),
        ({"mode": "invalidate", "start": "snapshot"}, "delivers only changes"),
    ],
)
def test_invalid_settings(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _sink(tmp_path, **{"url": "valkey://x", **given})
