"""A JetStream stream: whatever happens to a delivery, the stream has every change once, in order, with all fields."""

from __future__ import annotations

import pickle
import random
import re
import select
import socket
import threading
import time
from pathlib import Path
from typing import Any

import nkeys
import pytest
from tests.contract.delivery_driver import Crash, DeliveryDriver, crash_after_staging, crashing, in_other_processes
from tests.contract.nats_stream import NatsStream, token
from tests.contract.scenario import Scenario
from tests.fixtures.nats import Account, Nkey, operator_configuration
from tests.fixtures.tls import Tls
from tests.stepping import DrivenStepper

from tailrace import settings, sinks
from tailrace.change import Operation
from tailrace.delivery import step as stepping
from tailrace.delivery.dead_letters import DeadLetters
from tailrace.delivery.sink_settings import SinkContext
from tailrace.embedded.nats import NatsServer
from tailrace.errors import ConfigError, PoisonError, SinkError, SinkRefused
from tailrace.log import planner
from tailrace.log.planner import BatchLimits
from tailrace.sinks.nats import NatsOptions, NatsSink, client
from tailrace.sinks.nats.jetstream import raise_for_error


@pytest.fixture(params=["msgpack", "json"])
def stream(request: pytest.FixtureRequest, nats_server: NatsServer) -> NatsStream:
    return NatsStream(nats_server, request.param)


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is divided into parts, and few messages are in flight at a time."""
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)
    monkeypatch.setattr(client, "WINDOW", 3)


def _assert_matches(stream: NatsStream, scenario: Scenario, state: Any) -> None:
    stream.assert_matches(list(scenario.changes.values()), state.cursor, scenario.types)


def test_everything_in_one_step(stream: NatsStream, scenario: Scenario, tmp_path: Path) -> None:
    delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store"))
    _assert_matches(stream, scenario, delivering.deliver(scenario.end))
    before = len(stream.messages())
    assert before > len(stream.changes()), "the scenario changes no schemas"
    delivering.deliver(scenario.end)
    assert len(stream.messages()) == before, "changes were delivered twice"


def test_the_bucket_describes_tables_as_postgresql_does(
    nats_server: NatsServer, scenario: Scenario, tmp_path: Path
) -> None:
    stream = NatsStream(nats_server)
    DeliveryDriver(stream, scenario.store_of(tmp_path / "store")).deliver(scenario.end)
    columns = {entry["schema"]: entry["columns"] for entry in stream.entries().values()}
    last = scenario.marks[-1]
    for name in last.tables:
        assert columns[".".join(name)] == last.described[name], name


@pytest.mark.usefixtures("all_large")
def test_everything_in_many_steps(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    """While the log grows, each step has several parts and its own object. Drivers crash after they published it."""
    stream = NatsStream(nats_server)
    rng = random.Random(1)
    delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store", scenario.marks[0]))
    for mark in scenario.marks:
        scenario.store_of(tmp_path / "store", mark)
        with pytest.raises(Crash):
            delivering.deliver(mark.offset, crash_after_staging(in_other_processes(rng)), parallelism=2)
        while True:
            with delivering.stepper(in_other_processes(rng, times=2), parallelism=rng.randint(1, 3)) as one:
                limits = BatchLimits(rng.choice([1, 2, 5, 20]), 1 << 40)
                end = planner.next_batch(delivering.reader, one.offset(), limits).end
                one.deliver(end if end.segment <= mark.offset.segment else mark.offset)
                state = one.state
            if state.cursor == mark.lsn:
                break
    _assert_matches(stream, scenario, state)


@pytest.mark.soak
@pytest.mark.usefixtures("all_large")
def test_a_crash_before_each_durable_act(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    stream = NatsStream(nats_server)
    delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store"))
    crashes = 0
    for mark in scenario.marks[2::3]:
        for at in range(1, 1000):
            try:
                with crashing(at):
                    state = delivering.deliver(mark.offset, parallelism=2)
                break
            except Crash:
                crashes += 1
    assert crashes > 10
    _assert_matches(stream, scenario, state)


def test_a_rewind_publishes_again(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    """Within the server's duplicate window: the ids differ from the first ones."""
    stream = NatsStream(nats_server)
    delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store"))
    delivering.deliver(scenario.end)
    before = stream.changes()
    with delivering.stepper() as one:
        one.rewind(str(scenario.marks[1].lsn))
    delivering.deliver(scenario.end)
    again = stream.changes()[len(before) :]
    wanted = [m for m in before if m.position.commit_lsn >= scenario.marks[1].lsn]
    assert [m.position for m in again] == [m.position for m in wanted]
    assert [m.headers["Nats-Msg-Id"] for m in again] == [f"{m.headers['Nats-Msg-Id']}-r1" for m in wanted]


@pytest.mark.usefixtures("all_large")
def test_a_retry_after_the_duplicate_window(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    stream = NatsStream(nats_server)
    stream.make(duplicate_window=0.1)
    delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store"))
    for mark in scenario.marks[1::3]:
        with pytest.raises(Crash):
            delivering.deliver(mark.offset, crash_after_staging(in_other_processes(random.Random(1))))
        assert stream.wait_for_duplicate_window(), "the server still knows the ids"
    _assert_matches(stream, scenario, delivering.deliver(scenario.end))


@pytest.mark.usefixtures("all_large")
def test_a_server_that_is_killed_repeatedly(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a step, with some messages in the stream and some in flight."""
    rng = random.Random(2)
    write = client.NatsClient._write
    with NatsServer() as server:
        stream = NatsStream(server)
        delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store"))
        left = 0

        def write_or_kill(self: client.NatsClient, data: memoryview) -> int:
            nonlocal left
            left -= 1
            if left == 0:
                server.kill9()
            return write(self, data)

        monkeypatch.setattr(client.NatsClient, "_write", write_or_kill)
        kills = 0
        while True:
            left = rng.randint(40, 300)
            try:
                state = delivering.deliver(scenario.end)
                break
            except SinkError:
                kills += 1
                server.start()
        assert kills > 3
        _assert_matches(stream, scenario, state)


def test_a_ping_while_a_message_is_sent(scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply must not be written into the middle of a message."""
    monkeypatch.setattr(client, "_SEND_BYTES", 50)
    with NatsServer(ping_interval="5ms", ping_max=1000) as server:
        stream = NatsStream(server)
        delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store"))
        _assert_matches(stream, scenario, delivering.deliver(scenario.end))


def test_an_idle_sink_stays_connected(scenario: Scenario, tmp_path: Path) -> None:
    """The server disconnects clients that miss two pings. It may also have restarted before the next step."""
    with NatsServer(ping_interval="1s", ping_max=2) as server:
        stream = NatsStream(server)
        delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store"))
        with delivering.stepper() as one:
            one.deliver(scenario.marks[0].offset)
            connected = one.sink._client  # type: ignore[attr-defined]
            # Longer than the server waits.
            _maintain(one, 4.5)
            assert one.sink._client is connected  # type: ignore[attr-defined]
            one.deliver(scenario.marks[1].offset)
            server.kill9()
            server.start()
            with pytest.raises(SinkError):
                one.sink.maintain()  # the pipeline reports this and opens the sink again
            one.open()
            one.deliver(scenario.end)
            _assert_matches(stream, scenario, one.state)


@pytest.mark.parametrize("shared", [False, True])
def test_a_full_stream_gets_the_rest_when_there_is_room(
    nats_server: NatsServer, scenario: Scenario, tmp_path: Path, shared: bool
) -> None:
    """A message that does not fit may be followed by smaller ones that would: none of them is published."""
    stream = NatsStream(nats_server, more={"shared": shared})
    stream.make(max_bytes=40_000, discard="new")
    delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store"))
    for _ in range(2):
        with pytest.raises(SinkError, match=f"stream {stream.stream} rejected .* maximum bytes exceeded"):
            delivering.deliver(scenario.end)
    held = [m.position for m in stream.changes()]
    expected = list(scenario.changes)
    assert held == expected[: len(held)], "there are gaps"
    stream.make(max_bytes=-1, discard="new")
    _assert_matches(stream, scenario, delivering.deliver(scenario.end))


def test_a_shared_stream_that_refuses_single_messages(
    nats_server: NatsServer, scenario: Scenario, tmp_path: Path
) -> None:
    """Messages for full subjects are refused, and others are accepted. A new attempt finds what is missing, even after
    the duplicate window."""
    shared = NatsStream(nats_server, more={"shared": True})
    shared.make(max_msgs_per_subject=20, discard="new", discard_new_per_subject=True, duplicate_window=0.1)
    delivering = DeliveryDriver(shared, scenario.store_of(tmp_path / "store"))
    with delivering.stepper() as one:
        one.deliver(scenario.marks[0].offset)
        shared.publish("other", b"hello")
        with pytest.raises(SinkError, match="maximum messages per subject exceeded"):
            one.deliver(scenario.end)
    expected = list(scenario.changes)
    held = [m.position for m in shared.changes()]
    assert held != expected[: len(held)], "there are no gaps"
    shared.make(duplicate_window=0.1)
    assert shared.wait_for_duplicate_window()
    assert delivering.deliver(scenario.end).cursor == scenario.end.lsn
    assert sorted(m.position for m in shared.changes()) == expected


@pytest.mark.parametrize("shared", [False, True])
def test_a_stream_that_discards_old_messages(
    nats_server: NatsServer, scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """It has only the last messages from before a crash. Still nothing is published again or left out."""
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)
    whole, short = (NatsStream(nats_server, more={"shared": shared}) for _ in range(2))
    short.make(max_msgs=5)
    for stream in (whole, short):
        delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / stream.stream))
        for mark in scenario.marks[1:4:2]:
            with pytest.raises(Crash):
                delivering.deliver(mark.offset, crash_after_staging(in_other_processes(random.Random(1))))
            state = delivering.deliver(mark.offset)
    _assert_matches(whole, scenario, state)
    published, held = ([(m.sequence, m.position) for m in stream.messages()] for stream in (whole, short))
    assert held == published[-5:], "the numbers of messages differ"


def test_a_consumer_that_stops_reading(scenario: Scenario, tmp_path: Path) -> None:
    """It subscribes to everything many times. The server throttles the publisher for it, and then disconnects it."""
    with NatsServer(max_pending=8 << 20, write_deadline="1s") as server:
        stream = NatsStream(server)
        delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store"))
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as consumer:
            listen = b"".join(b"SUB %b.> %d\r\n" % (stream.subject.encode(), n) for n in range(200))
            consumer.sendall(b"CONNECT {}\r\n%bPING\r\n" % listen)
            arrived = b""
            while b"PONG" not in arrived:
                arrived += consumer.recv(4096)
            _assert_matches(stream, scenario, delivering.deliver(scenario.end))
            size = 0
            while some := consumer.recv(1 << 20):
                size += len(some)
        assert size < 200 * stream.state().bytes, "it was not disconnected early"


def test_another_client_publishes_to_the_stream(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    alone = NatsStream(nats_server)
    delivering = DeliveryDriver(alone, scenario.store_of(tmp_path / "store"))
    with delivering.stepper() as one:
        one.deliver(scenario.marks[0].offset)
        alone.publish("other", b"hello")
        with pytest.raises(SinkError, match="another client publishes to stream") as caught:
            one.deliver(scenario.marks[3].offset)
        assert "shared = true" in caught.value.hint
    state = delivering.deliver(scenario.end)  # the next attempt continues after the other message
    _assert_matches(alone, scenario, state)


@pytest.mark.usefixtures("all_large")
def test_several_clients_publish_to_one_stream(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    shared = NatsStream(nats_server, more={"shared": True})
    delivering = DeliveryDriver(shared, scenario.store_of(tmp_path / "store"))
    for mark in scenario.marks[::2]:
        shared.make()
        shared.publish("other", b"hello")
        with pytest.raises(Crash):
            delivering.deliver(mark.offset, crash_after_staging(in_other_processes(random.Random(1))))
        for _ in range(5):
            shared.publish("other", b"hello")
        delivering.deliver(mark.offset)
    _assert_matches(shared, scenario, delivering.deliver(scenario.end))


def test_another_client_uses_the_same_ids(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    """The bridge of another server may do so. The stream treats our message as a duplicate, but does not have it."""
    shared = NatsStream(nats_server, more={"shared": True})
    shared.make()
    delivering = DeliveryDriver(shared, scenario.store_of(tmp_path / "store"))
    change = next(c for c in scenario.changes.values() if c.operation is Operation.UPDATE)
    shared.publish("other", b"another", id=f"{int(change.lsn):x}-{token(str(change.table))}-update")
    with pytest.raises(SinkError, match=f"has another message with id .* of {change.position}"):
        delivering.deliver(scenario.end)
    shared.make(duplicate_window=0.1)
    assert shared.wait_for_duplicate_window()
    assert delivering.deliver(scenario.end).cursor == scenario.end.lsn
    expected = list(scenario.changes)
    assert sorted(m.position for m in shared.changes()) == expected


def test_other_clients_publish_all_the_time(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    shared = NatsStream(nats_server, more={"shared": True})
    shared.make()
    delivering = DeliveryDriver(shared, scenario.store_of(tmp_path / "store"))
    over = threading.Event()

    def publish() -> None:
        while not over.is_set():
            shared.publish("other", b"hello")

    stranger = threading.Thread(target=publish)
    stranger.start()
    try:
        with delivering.stepper() as one:
            for mark in scenario.marks:
                one.deliver(mark.offset)
                one.sink._contended_until *= 1e-9  # type: ignore[attr-defined]  # forget the contention
            state = one.state
    finally:
        over.set()
        stranger.join()
    _assert_matches(shared, scenario, state)


def test_other_clients_publish_more_than_the_server_buffers(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink looks for its own last message before theirs. The server must not disconnect it for reading slowly."""
    monkeypatch.setattr(client, "_RECEIVE_BYTES", 16 * 1024)
    with NatsServer(max_pending=24 << 20) as server:
        shared = NatsStream(server, more={"shared": True})
        delivering = DeliveryDriver(shared, scenario.store_of(tmp_path / "store"))
        delivering.deliver(scenario.marks[0].offset)
        for _ in range(60):
            shared.publish("other", bytes(1_000_000))
        assert delivering.deliver(scenario.marks[1].offset).cursor == scenario.marks[1].lsn


@pytest.mark.parametrize("by_stream", [False, True])
def test_a_message_above_the_size_limit_becomes_a_dead_letter(
    scenario: Scenario, tmp_path: Path, by_stream: bool
) -> None:
    with NatsServer(**{} if by_stream else {"max_payload": 4_000}) as server:
        stream = NatsStream(server)
        stream.make(max_msg_size=4_000 if by_stream else -1)
        # Without tables whose schema messages are too large themselves.
        without = {"exclude": ["public.every_type", "public.wide", "public.panorama"]}
        delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store"), **without)
        with pytest.raises(PoisonError, match=r"messages? of .*[\d,]+ bytes, and the server accepts 4,000") as caught:
            delivering.deliver(scenario.end)
        assert caught.value.positions
        delivering = DeliveryDriver(stream, delivering.store, on_poison="dead_letter", **without)
        state = delivering.deliver(scenario.end)
        dead_letters = DeadLetters(delivering.reader, "tested")
        dead_letters.load()
        assert dead_letters.positions
        assert state.cursor is not None
        rest = [
            c
            for p, c in scenario.changes.items()
            if c.table not in ("every_type", "wide", "panorama") and p not in dead_letters.positions
        ]
        stream.assert_matches(rest, state.cursor, scenario.types)


def test_errors_of_a_cluster_without_a_leader_are_transient() -> None:
    with pytest.raises(SinkError, match="JetStream system temporarily unavailable"):
        raise_for_error(
            {"error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}}
        )
    with pytest.raises(SinkRefused):
        raise_for_error({"error": {"code": 400, "err_code": 10052, "description": "invalid stream configuration"}})


@pytest.mark.parametrize(
    ("server", "right", "wrong"),
    [
        (
            {"authorization": {"user": "ann", "password": "s3cret"}},
            {"user": "ann", "password": "s3cret"},
            {"user": "ann", "password": "other"},
        ),
        ({"authorization": {"token": "s3cret"}}, {"token": "s3cret"}, {"token": "other"}),
        (
            {"authorization": {"users": [{"nkey": "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"}]}},
            {"nkey": "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"},
            {},
        ),
    ],
    ids=["user", "token", "nkey"],
)
def test_authentication(server: dict[str, Any], right: dict[str, str], wrong: dict[str, str], tmp_path: Path) -> None:
    with NatsServer(**server) as one:
        for given, is_accepted in ((right, True), (wrong, False)):
            raw = {"type": "nats", "name": "tested", "url": one.url, **given}
            (configured,) = sinks.from_settings(
                settings.Settings(store=settings.StoreSettings((tmp_path / "store").as_uri()), sinks=(raw,)), {}
            )
            sink = pickle.loads(pickle.dumps(configured.sink))
            assert "s3cret" not in repr(vars(configured.sink))
            if is_accepted:
                assert sink.open().cursor is None
            else:
                with pytest.raises(SinkRefused, match="Authorization Violation") as caught:
                    sink.open()
                assert not any(secret in str(caught.value) for secret in given.values() if secret != "ann")
            sink.close()


def test_credentials_in_a_file(scenario: Scenario, tmp_path: Path) -> None:
    account, other = Account(), Nkey(nkeys.PREFIX_BYTE_USER).seed
    store = scenario.store_of(tmp_path / "store")
    with NatsServer(**operator_configuration(account)) as server:
        stream = NatsStream(server, more={"credentials": str(account.credentials(tmp_path / "right.creds"))})
        _assert_matches(stream, scenario, DeliveryDriver(stream, store).deliver(scenario.end))
        for file in (
            Account().credentials(tmp_path / "unknown.creds"),
            account.credentials(tmp_path / "not_theirs.creds", seed=other),
            account.credentials(tmp_path / "expired.creds", exp=int(time.time()) - 60),
        ):
            wrong = NatsStream(server, more={"credentials": str(file)})
            with pytest.raises(SinkRefused, match="Authorization Violation") as caught:
                DeliveryDriver(wrong, store).make_stepper().open()
            assert "have they expired?" in caught.value.hint, file
            assert other not in f"{caught.value} {caught.value.hint}", file


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        ("", "it contains no JWT and seed"),
        ("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY", "it contains no JWT and seed"),
        ("--BEGIN JWT--\nx\n--END JWT--\n--BEGIN SEED--\nSUAC\n--END SEED--", "the seed is not a user's nkey"),
    ],
    ids=["none", "empty", "only a seed", "another seed"],
)
def test_invalid_credentials_files(nats_server: NatsServer, tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "x.creds"
    if content is not None:
        file.write_text(content)
    options = NatsOptions(url=nats_server.url, credentials=file)
    with pytest.raises(ConfigError, match=words) as caught:
        NatsSink("tested", options, SinkContext(settings.StoreSettings((tmp_path / "store").as_uri()))).open()
    assert "SUAC" not in str(caught.value)


def test_credentials_that_expire_and_are_renewed(scenario: Scenario, tmp_path: Path) -> None:
    """The server disconnects when they expire. By then the file has new ones."""
    account = Account()
    file = tmp_path / "bus.creds"
    account.credentials(file, exp=int(time.time()) + 10)  # long enough for the first step on a busy machine
    with NatsServer(**operator_configuration(account)) as server:
        stream = NatsStream(server, more={"credentials": str(file)})
        delivering = DeliveryDriver(stream, scenario.store_of(tmp_path / "store"))
        with delivering.stepper() as one:
            one.deliver(scenario.marks[0].offset)
            account.credentials(file)
            with pytest.raises(SinkError, match="User Authentication Expired"):
                _maintain(one, 30)
            one.open()
            one.deliver(scenario.end)
            _assert_matches(stream, scenario, one.state)


def _maintain(one: DrivenStepper, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        one.sink.maintain()


def test_a_login_that_times_out_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server disconnects clients that log in too late. That is not a refusal."""
    introduce = client._introduce

    def introduce_late(connection: socket.socket, *about: Any) -> None:
        assert select.select([connection], [], [], 30)[0]
        introduce(connection, *about)

    monkeypatch.setattr(client, "_introduce", introduce_late)
    with NatsServer(authorization={"user": "ann", "password": "s3cret", "timeout": 0.1}) as server:
        options = NatsOptions(url=server.url, user="ann", password=settings.Secret("s3cret"))
        with pytest.raises(SinkError):
            NatsSink("tested", options, SinkContext(settings.StoreSettings((tmp_path / "store").as_uri()))).open()


def test_tls(tls: Tls, tmp_path: Path) -> None:
    pem = str(tls.authority.file.parent / "localhost.pem")
    with NatsServer(tls={"cert_file": pem, "key_file": pem}) as server:

        def open_sink(host: str, authority: Path) -> None:
            options = NatsOptions(url=f"tls://{host}:{server.port}", tls_ca=authority)
            sink = NatsSink("tested", options, SinkContext(settings.StoreSettings((tmp_path / "store").as_uri())))
            try:
                sink.open()
            finally:
                sink.close()

        open_sink("localhost", tls.authority.file)
        for host, authority in (("127.0.0.1", tls.authority.file), ("localhost", tls.stranger.file)):
            with pytest.raises(SinkRefused, match="certificate verify failed"):
                open_sink(host, authority)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "url is missing"),
        ({"url": "http://x"}, "http://x is not a NATS URL"),
        ({"url": "nats://x", "stream": "a.b"}, "'a.b' is not a stream name"),
        ({"url": "nats://x", "subject": "a.*"}, "is not a subject prefix"),
        ({"url": "nats://x", "encoding": "xml"}, "encoding"),
        ({"url": "nats://x", "token": "t", "user": "u"}, "more than one of user, token"),
    ],
)
def test_invalid_settings(given: dict[str, str], words: str) -> None:
    raw = {"type": "nats", "name": "tested", **given}
    with pytest.raises(ConfigError, match=re.escape(words)):
        sinks.from_settings(settings.Settings(store=settings.StoreSettings("file:///nowhere"), sinks=(raw,)), {})


def test_missing_or_unsuitable_streams(nats_server: NatsServer, tmp_path: Path) -> None:
    stream = NatsStream(nats_server, more={"create": False})
    delivering = DeliveryDriver(stream, settings.StoreSettings((tmp_path / "store").as_uri()))
    with pytest.raises(SinkRefused, match=f"stream {stream.stream} does not exist"):
        delivering.make_stepper().open()
    other = NatsStream(nats_server, more={"subject": "elsewhere"})
    other.make()
    delivering = DeliveryDriver(other, settings.StoreSettings((tmp_path / "store").as_uri()))
    with pytest.raises(SinkRefused, match=r"does not accept elsewhere\.>, but t\d+\.>"):
        delivering.make_stepper().open()
