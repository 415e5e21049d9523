"""Connections of the sink `rabbitmq`: logins, rights, TLS, and brokers and networks that fail."""

from __future__ import annotations

import pickle
import re
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.contract.delivery_driver import DeliveryDriver, has_delivered
from tests.contract.rabbitmq_messages import RabbitMqQueue, RabbitMqStreams, is_readable
from tests.fixtures.network import Proxy
from tests.fixtures.rabbitmq import CERTIFIED, require_rabbitmq
from tests.fixtures.tls import Tls
from tests.log.stream import Server
from tests.sinks.rabbitmq_source import (
    GeneratedLog,
    ServerWithSizes,
    deliver,
    deliver_all,
    make_queue,
    make_streams,
    positions,
)

from tailrace import settings, sinks
from tailrace.embedded.process import wait_until
from tailrace.embedded.rabbitmq import RabbitMqServer
from tailrace.errors import ConfigError, SinkError, SinkRefused
from tailrace.finding import Finding, Severity
from tailrace.sinks.messages import transport as kept
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.progress import Progress
from tailrace.sinks.rabbitmq import (
    RabbitMqOptions,
    RabbitMqSink,
    broker_connection,
    exchange_client,
    stream_client,
    stream_transport,
)
from tailrace.sinks.rabbitmq.broker_connection import BrokerConnection
from tailrace.sinks.rabbitmq.exchange_transport import ExchangeTransport
from tailrace.sinks.rabbitmq.stream_transport import StreamTransport


class LargeInserts(ServerWithSizes):
    sizes = (60_000,)


def _sink(tmp_path: Path, url: str, **more: Any) -> RabbitMqSink:
    raw = {"type": "rabbitmq", "name": "tested", "url": url, **more}
    store = settings.StoreSettings((tmp_path / "store").as_uri())
    (configured,) = sinks.from_settings(settings.Settings(store=store, sinks=(raw,)), {})
    assert isinstance(configured.sink, RabbitMqSink)
    return configured.sink


def _places(server: RabbitMqServer) -> list[dict[str, Any]]:
    """The settings of a stream and of an exchange that every broker has."""
    return [{"stream": "{table}", "stream_port": server.stream_port}, {"exchange": "amq.topic", "routing_key": "x"}]


def _open(sink: RabbitMqSink) -> None:
    try:
        pickle.loads(pickle.dumps(sink)).open()
    finally:
        sink.close()


def test_logins(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    server = rabbitmq_server
    right = server.url
    wrong = right.replace(server.password, "s3cret-but-wrong")
    for place in _places(server):
        _open(_sink(tmp_path, right, **place))
        nodes = f"amqp://absent.invalid:1,127.0.0.1:{server.port}"
        _open(_sink(tmp_path, nodes, user=server.user, password=server.password, **place))
        sink = _sink(tmp_path, wrong, **place)
        assert "s3cret" not in repr(vars(sink))
        with pytest.raises(SinkRefused, match="refused the login") as caught:
            _open(sink)
        assert "s3cret" not in f"{caught.value} {caught.value.hint} {caught.value!r}"
        with pytest.raises(SinkRefused, match="vhost"):
            _open(_sink(tmp_path, server.url_of("absent"), **place))
        _open(_sink(tmp_path, server.url_of("other/vhost"), **place))
        with pytest.raises(SinkRefused, match="vhost"):
            _open(_sink(tmp_path, server.url_of("other/vhost").replace(f"//{server.user}:", "//publisher:"), **place))


def test_a_broker_that_accepts_amqplain_only(rabbitmq_server: RabbitMqServer, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = exchange_client._sasl
    monkeypatch.setattr(exchange_client, "_sasl", lambda options, _: offered(options, ["AMQPLAIN"]))
    options = RabbitMqOptions(url=rabbitmq_server.url, exchange="amq.topic", routing_key="x").validate()
    exchange_client.ExchangeClient(options, "tested").close()


def test_tls(rabbitmq_server: RabbitMqServer, tls: Tls, tmp_path: Path) -> None:
    server = rabbitmq_server

    def open_sink(host: str, authority: Path, place: dict[str, Any]) -> None:
        url = f"amqps://{server.user}:{server.password}@{host}:{server.tls_port}"
        _open(_sink(tmp_path, url, tls_ca=str(authority), **place))

    streams, exchange = _places(server)
    for place in ({**streams, "stream_port": server.stream_tls_port}, exchange):
        open_sink("localhost", tls.authority.file, place)
        for host, authority in (("127.0.0.1", tls.authority.file), ("localhost", tls.stranger.file)):
            with pytest.raises(SinkRefused, match="certificate verify failed") as caught:
                open_sink(host, authority, place)
            assert "tls_ca" in caught.value.hint


def test_a_certificate_as_login(rabbitmq_server: RabbitMqServer, tls: Tls, tmp_path: Path) -> None:
    server = rabbitmq_server
    certificates = {}
    for name in (CERTIFIED, "unknown"):
        tls.authority.context_for(name)
        certificates[name] = str(tls.authority.file.parent / f"{name}.pem")
    streams, exchange = _places(server)
    about = {"tls_ca": str(tls.authority.file), **exchange}
    url = f"amqps://localhost:{server.tls_port}"
    _open(_sink(tmp_path, url, tls_certificate=certificates[CERTIFIED], **about))
    with pytest.raises(SinkRefused, match="refused the login"):
        _open(_sink(tmp_path, url, tls_certificate=certificates["unknown"], **about))
    with pytest.raises(ConfigError, match="No such file"):
        _open(_sink(tmp_path, url, tls_certificate=str(tmp_path / "absent.pem"), **about))
    about = {"tls_ca": str(tls.authority.file), **streams, "stream_port": server.stream_tls_port}
    if re.match(r"3\.10\.", server.control("version")):
        with pytest.raises(SinkError, match="closed the connection") as caught:
            _open(_sink(tmp_path, url, tls_certificate=certificates[CERTIFIED], **about))
        assert "RabbitMQ 3.10 cannot do this" in caught.value.hint
    else:
        _open(_sink(tmp_path, url, tls_certificate=certificates[CERTIFIED], **about))


def test_everything_over_tls(rabbitmq_server: RabbitMqServer, tls: Tls, tmp_path: Path) -> None:
    server = rabbitmq_server
    about = {
        "url": f"amqps://{server.user}:{server.password}@localhost:{server.tls_port}",
        "tls_ca": str(tls.authority.file),
    }
    places: list[RabbitMqStreams | RabbitMqQueue] = [make_streams(server), make_queue(server)]
    for number, place in enumerate(places):
        log = GeneratedLog(tmp_path / str(number), Server(30), 60)
        port = {"stream_port": server.stream_tls_port} if number == 0 else {}
        deliver(DeliveryDriver(_Through(place, {**about, **port}), log.settings))
        assert Counter(positions(place.consume())) == log.expected()


def _findings(sink: RabbitMqSink) -> list[Finding]:
    try:
        return list(sink.check())
    finally:
        sink.close()


def test_check_reports_missing_streams_and_rights(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    server = rabbitmq_server
    log = GeneratedLog(tmp_path, Server(31))
    streams = make_streams(server, tables=["public.t100", "public.t101"])

    def check(user: str, **more: Any) -> list[Finding]:
        raw = {**streams.settings(), **more, "user": user, "password": server.password}
        raw["url"] = f"amqp://127.0.0.1:{server.port}"
        return _findings(_sink(tmp_path, **{k: v for k, v in raw.items() if k not in ("type", "logical_messages")}))

    before = check(server.user)
    assert [(f.severity, f.subject) for f in before] == [
        (Severity.NOTE, f"stream {streams.stream_of('public', name)}") for name in ("t100", "t101")
    ]
    missing = check(server.user, create=False)
    assert {f.severity for f in missing} == {Severity.ERROR}
    assert all(f.fix.startswith("rabbitmqadmin declare queue name=") for f in missing)
    deliver(DeliveryDriver(streams, log.settings))
    assert check(server.user) == check("publisher") == []
    for user in ("writer", "reader"):
        refused = check(user)
        assert {f.severity for f in refused} == {Severity.ERROR}
        assert all("access refused" in f.message and "set_permissions" in f.fix for f in refused), refused
    reader = {"url": f"amqp://127.0.0.1:{server.port}", "user": "reader", "password": server.password}
    driver = DeliveryDriver(_Through(streams, reader), log.settings, name="another")
    with pytest.raises(SinkRefused, match="access refused"):
        deliver(driver)


def test_check_of_an_exchange_publishes_nothing(rabbitmq_server: RabbitMqServer, tmp_path: Path) -> None:
    server, queue = rabbitmq_server, make_queue(rabbitmq_server)

    def check(user: str, exchange: str) -> list[Finding]:
        about = {"exchange": exchange, "routing_key": "{table}", "user": user, "password": server.password}
        return _findings(_sink(tmp_path, f"amqp://127.0.0.1:{server.port}", **about))

    for exchange in (queue.prefix, ""):
        assert check(server.user, exchange) == check("writer", exchange) == []
        (refused,) = check("reader", exchange)
        assert (refused.severity, "ACCESS_REFUSED" in refused.message) == (Severity.ERROR, True)
    (missing,) = check(server.user, "absent")
    assert "does not exist" in missing.message
    assert queue.consume() == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "url is missing"),
        ({"url": "http://x"}, "http://x is not a RabbitMQ URL"),
        ({"url": "amqp://u:s3cret@"}, "is not a RabbitMQ URL"),
        ({"url": "u:s3cret@host"}, "is not a RabbitMQ URL"),
        ({"url": "amqp://u:s3cret@h:port/"}, "is not a RabbitMQ URL"),
        ({"url": "amqp://u:s3/cret@h/a/b"}, "is not a RabbitMQ URL"),
        ({"url": "amqp://h"}, "either stream or exchange has to be set"),
        ({"url": "amqp://h", "stream": "x", "exchange": ""}, "either stream or exchange has to be set"),
        ({"url": "amqp://h", "exchange": "x"}, "routing_key is missing"),
        ({"url": "amqp://h", "stream": "x", "routing_key": "y"}, "routing_key is for exchanges"),
        ({"url": "amqp://h", "stream": "x", "tls_ca": "ca.pem"}, "need TLS"),
        ({"url": "amqp://h", "stream": "{a}{b}"}, "nothing between"),
        ({"url": "amqp://h", "stream": "x", "envelope": "debezium", "encoding": "msgpack"}, "is JSON"),
    ],
)
def test_invalid_settings(given: dict[str, str], words: str) -> None:
    raw = {"type": "rabbitmq", "name": "tested", **given}
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        sinks.from_settings(settings.Settings(store=settings.StoreSettings("file:///nowhere"), sinks=(raw,)), {})
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize("is_stream", [True, False])
def test_an_idle_connection_is_renewed(
    rabbitmq_server: RabbitMqServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    """The broker closes it when no heartbeats come."""
    log = GeneratedLog(tmp_path, Server(17), 10)
    place = make_streams(rabbitmq_server) if is_stream else make_queue(rabbitmq_server)
    driver = DeliveryDriver(place, log.settings)
    with driver.stepper() as one:
        with monkeypatch.context() as patched:
            for module in (exchange_client, stream_client):
                patched.setattr(module, "HEARTBEAT_S", 1)
            # On a busy machine the broker may close it even earlier.
            assert wait_until(lambda: has_delivered(one), 60)
        log.grow(10)
        (one_kept,) = kept._kept.values()
        connection = one_kept.transport._client._connection._socket  # type: ignore[attr-defined]
        assert wait_until(lambda: _is_at_end(connection), 30)
        deliver_all(one)
    assert set(positions(place.consume())) == set(log.expected())


def _is_at_end(connection: socket.socket) -> bool:
    """Whether the broker has closed a connection. Reads what it sent before."""
    try:
        return not connection.recv(1 << 16)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def _is_delivered(driver: DeliveryDriver) -> bool:
    one = driver.make_stepper()
    try:
        one.open()
        deliver_all(one)
    except SinkError:
        return False
    finally:
        one.close()
    return True


@pytest.mark.parametrize("is_stream", [True, False])
def test_connections_that_are_cut_or_silent(
    rabbitmq_server: RabbitMqServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    """In the middle of a step, with some messages confirmed and some in flight."""
    for module in (broker_connection, exchange_client, stream_client):
        monkeypatch.setattr(module, "HEARTBEAT_S", 1)
    for module in (exchange_client, stream_client):
        monkeypatch.setattr(module, "_ANSWER_S", 2.0)
    log = GeneratedLog(tmp_path, Server(18), 40)
    place = make_streams(rabbitmq_server) if is_stream else make_queue(rabbitmq_server)
    proxy = Proxy(rabbitmq_server.stream_port if is_stream else rabbitmq_server.port)
    through = {"stream_port": proxy.port} if is_stream else {"url": _by(rabbitmq_server, proxy)}
    driver = DeliveryDriver(_Through(place, through), log.settings)
    kind = stream_client.StreamClient if is_stream else exchange_client.ExchangeClient
    write, publish = BrokerConnection.write, kind.publish
    monkeypatch.setattr(stream_transport, "_FRAME_BYTES", 2000)
    monkeypatch.setattr(exchange_client, "_SEND_BYTES", 1000)
    left, faults = 0, [proxy.silence, proxy.cut] * 2

    def publish_with_fault(*arguments: Any) -> Any:
        nonlocal left
        left = log.server.rng.randint(1, 10)
        return publish(*arguments)

    def write_or_fail(self: BrokerConnection, data: memoryview) -> int:
        nonlocal left
        left -= 1
        if left == 0 and faults:
            faults.pop()()
        return write(self, data)

    monkeypatch.setattr(kind, "publish", publish_with_fault)
    monkeypatch.setattr(BrokerConnection, "write", write_or_fail)

    def is_delivered() -> bool:
        is_done = _is_delivered(driver)
        if faults:
            log.grow(5)
        return is_done and not faults

    try:
        assert wait_until(is_delivered, 120)
    finally:
        proxy.close()
    found = Counter(positions(place.consume()))
    assert found == log.expected() if is_stream else set(found) == set(log.expected())


def _by(server: RabbitMqServer, proxy: Proxy) -> str:
    return server.url.replace(f":{server.port}/", f":{proxy.port}/")


class _Through:
    """The same destination by another address."""

    def __init__(self, place: RabbitMqStreams | RabbitMqQueue, more: dict[str, Any]) -> None:
        self._place, self._more = place, more

    def settings(self) -> dict[str, Any]:
        return {**self._place.settings(), **self._more}


@pytest.mark.soak
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_broker_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stream: bool) -> None:
    """In the middle of a step, after one of several megabytes. It starts again with what it confirmed."""
    require_rabbitmq()
    monkeypatch.setattr(exchange_client, "WINDOW", 5)
    log = GeneratedLog(tmp_path, LargeInserts(19), 60)
    write = BrokerConnection.write
    left = 1_000_000

    with RabbitMqServer() as server:
        place = make_streams(server) if is_stream else make_queue(server)
        driver = DeliveryDriver(place, log.settings)
        if is_stream:
            deliver(driver)
            assert wait_until(server.has_stored_streams, 30)
            log.grow(60)

        def write_or_kill(self: BrokerConnection, data: memoryview) -> int:
            nonlocal left
            written = write(self, data)
            if left > 0 and (left := left - written) <= 0:
                server.kill9()
            return written

        monkeypatch.setattr(BrokerConnection, "write", write_or_kill)
        with pytest.raises(SinkError), driver.stepper() as one:
            deliver_all(one)
        server.start()
        # It disconnects clients that ask for a stream which it still recovers. The engine retries then, too.
        assert wait_until(lambda: _is_delivered(driver), 60)

        # Now as soon as everything is published.
        kind = StreamTransport if is_stream else ExchangeTransport
        publish = kind.publish

        def publish_and_kill(self: Any, messages: OutgoingMessages, after: Progress) -> None:
            publish(self, messages, after)
            server.kill9()

        monkeypatch.setattr(kind, "publish", publish_and_kill)
        log.grow(10)
        deliver(driver)
        server.start()
        assert wait_until(lambda: is_readable(place), 60)
        found = Counter(positions(place.consume()))
        assert found == log.expected() if is_stream else set(found) == set(log.expected())


@pytest.mark.soak
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_broker_that_is_low_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stream: bool) -> None:
    """It accepts nothing until the alarm is over. Nothing is lost then."""
    require_rabbitmq()
    monkeypatch.setattr(exchange_client, "_CONFIRM_S", 3.0)
    monkeypatch.setattr(stream_client, "_CONFIRM_S", 3.0)
    log = GeneratedLog(tmp_path, Server(20), 60)
    with RabbitMqServer() as server:
        place = make_streams(server) if is_stream else make_queue(server)
        driver = DeliveryDriver(place, log.settings)
        deliver(driver)
        server.control("set_disk_free_limit", "1000000GB")
        log.grow(60)
        words = "precondition failed|confirmed no message for 3 s" if is_stream else "blocks publishers: low on disk"
        with pytest.raises(SinkError, match=words) as caught:
            deliver(driver)
        assert "rabbitmq-diagnostics alarms" in caught.value.hint
        server.control("set_disk_free_limit", "50MB")
        deliver(driver)
        found = Counter(positions(place.consume()))
        assert found == log.expected() if is_stream else set(found) == set(log.expected())
