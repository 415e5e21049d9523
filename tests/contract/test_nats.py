"""A JetStream stream under whatever happens to a delivery: every change is there, once, in order, field for field."""

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
from tests.contract.delivering import Crash, Delivering, crashing, dying, elsewhere
from tests.contract.scenario import Scenario
from tests.contract.streamed import Streamed, token
from tests.fixtures.nats import Account, Nkey, trusting
from tests.fixtures.tls import Tls

from tailrace import settings, sinks
from tailrace.change import Operation
from tailrace.embedded.nats import NatsServer
from tailrace.errors import ConfigError, PoisonError, SinkError, SinkRefused
from tailrace.log import plan
from tailrace.log.plan import Limits
from tailrace.log.snapshot import MARKER_PREFIX
from tailrace.sinks import Context
from tailrace.sinks import stepper as stepping
from tailrace.sinks.aside import SetAside
from tailrace.sinks.nats import NatsOptions, NatsSink, wire
from tailrace.sinks.nats.stream import checked


@pytest.fixture(params=["msgpack", "json"])
def stream(request: pytest.FixtureRequest, nats_server: NatsServer) -> Streamed:
    return Streamed(nats_server, request.param)


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is cut into parts; and few messages are on their way at a time."""
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)
    monkeypatch.setattr(wire, "WINDOW", 3)


def _assert_tells(stream: Streamed, scenario: Scenario, state: Any) -> None:
    stream.assert_tells(list(scenario.changes.values()), state.cursor, scenario.types)


def test_everything_in_one_step(stream: Streamed, scenario: Scenario, tmp_path: Path) -> None:
    delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
    _assert_tells(stream, scenario, delivering.deliver(scenario.end))
    before = len(stream.messages())
    assert before > len(stream.changes()), "the scenario changes shapes"
    delivering.deliver(scenario.end)
    assert len(stream.messages()) == before, "nothing is delivered twice"


def test_the_bucket_says_what_postgresql_says_of_its_tables(
    nats_server: NatsServer, scenario: Scenario, tmp_path: Path
) -> None:
    stream = Streamed(nats_server)
    Delivering(stream, scenario.store_of(tmp_path / "store")).deliver(scenario.end)
    told = {entry["schema"]: entry["columns"] for entry in stream.entries().values()}
    last = scenario.marks[-1]
    for name in last.tables:
        assert told[".".join(name)] == last.described[name], name


@pytest.mark.usefixtures("all_large")
def test_everything_in_many_steps(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    """While the log grows, each step in several parts by an object of its own; drivers die when all is published."""
    stream = Streamed(nats_server)
    rng = random.Random(1)
    delivering = Delivering(stream, scenario.store_of(tmp_path / "store", scenario.marks[0]))
    for mark in scenario.marks:
        scenario.store_of(tmp_path / "store", mark)
        with pytest.raises(Crash):
            delivering.deliver(mark.offset, dying(elsewhere(rng)), hands=2)
        while True:
            with delivering.stepper(elsewhere(rng, times=2), hands=rng.randint(1, 3)) as one:
                limits = Limits(rng.choice([1, 2, 5, 20]), 1 << 40)
                end = plan.following(delivering.reader, one.offset(), limits).end
                one.deliver(end if end.segment <= mark.offset.segment else mark.offset)
                state = one.state
            if state.cursor == mark.lsn:
                break
    _assert_tells(stream, scenario, state)


@pytest.mark.soak
@pytest.mark.usefixtures("all_large")
def test_a_crash_before_each_durable_act(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    stream = Streamed(nats_server)
    delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
    crashes = 0
    for mark in scenario.marks[2::3]:
        for at in range(1, 1000):
            try:
                with crashing(at):
                    state = delivering.deliver(mark.offset, hands=2)
                break
            except Crash:
                crashes += 1
    assert crashes > 10
    _assert_tells(stream, scenario, state)


def test_told_again_after_a_rewind(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    """Within the server's window for duplicates: ids are others then."""
    stream = Streamed(nats_server)
    delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
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
def test_a_retry_that_comes_after_the_window_for_duplicates(
    nats_server: NatsServer, scenario: Scenario, tmp_path: Path
) -> None:
    stream = Streamed(nats_server)
    stream.make(duplicate_window=0.1)
    delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
    for mark in scenario.marks[1::3]:
        with pytest.raises(Crash):
            delivering.deliver(mark.offset, dying(elsewhere(random.Random(1))))
        assert stream.forgets(), "ids that were just published"
    _assert_tells(stream, scenario, delivering.deliver(scenario.end))


@pytest.mark.usefixtures("all_large")
def test_a_server_that_is_killed_again_and_again(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a step, some of it in the stream and some on its way."""
    rng = random.Random(2)
    write = wire.Wire._write
    with NatsServer() as server:
        stream = Streamed(server)
        delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
        left = 0

        def written(self: wire.Wire, data: memoryview) -> int:
            nonlocal left
            left -= 1
            if left == 0:
                server.kill9()
            return write(self, data)

        monkeypatch.setattr(wire.Wire, "_write", written)
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
        _assert_tells(stream, scenario, state)


def test_a_server_that_asks_whether_we_are_there(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a message is half sent: the answer must not stand in the middle of it."""
    monkeypatch.setattr(wire, "_SEND_BYTES", 50)
    with NatsServer(ping_interval="5ms", ping_max=1000) as server:
        stream = Streamed(server)
        delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
        _assert_tells(stream, scenario, delivering.deliver(scenario.end))


def test_a_sink_that_has_nothing_to_do_stays_connected(scenario: Scenario, tmp_path: Path) -> None:
    """The server gives up on who does not answer two of its questions; and may be another one by the next step."""
    with NatsServer(ping_interval="1s", ping_max=2) as server:
        stream = Streamed(server)
        delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
        with delivering.stepper() as one:
            one.deliver(scenario.marks[0].offset)
            connected = one.sink._wire  # type: ignore[attr-defined]
            # Until it would have given up.
            _tend(one, 4.5)
            assert one.sink._wire is connected  # type: ignore[attr-defined]
            one.deliver(scenario.marks[1].offset)
            server.kill9()
            server.start()
            with pytest.raises(SinkError):
                one.sink.tend()  # so that it is told; then it is opened again
            one.open()
            one.deliver(scenario.end)
            _assert_tells(stream, scenario, one.state)


@pytest.mark.parametrize("shared", [False, True])
def test_a_stream_that_is_full_takes_the_rest_when_there_is_room(
    nats_server: NatsServer, scenario: Scenario, tmp_path: Path, shared: bool
) -> None:
    """Large messages do not fit any more where small ones that come after them would: none of those is let in."""
    stream = Streamed(nats_server, more={"shared": shared})
    stream.make(max_bytes=40_000, discard="new")
    delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
    for _ in range(2):
        with pytest.raises(SinkError, match=f"stream {stream.stream} did not take .* maximum bytes exceeded"):
            delivering.deliver(scenario.end)
    held = [m.position for m in stream.changes()]
    told = [p for p, c in scenario.changes.items() if c.relation is not None or c.prefix != MARKER_PREFIX]
    assert held == told[: len(held)], "the beginning, without gaps"
    stream.make(max_bytes=-1, discard="new")
    _assert_tells(stream, scenario, delivering.deliver(scenario.end))


def test_single_messages_that_a_shared_stream_refuses(
    nats_server: NatsServer, scenario: Scenario, tmp_path: Path
) -> None:
    """Those of subjects that are full, while others come through. Whoever begins anew, when no id is known any more,
    finds what is missing."""
    shared = Streamed(nats_server, more={"shared": True})
    shared.make(max_msgs_per_subject=20, discard="new", discard_new_per_subject=True, duplicate_window=0.1)
    delivering = Delivering(shared, scenario.store_of(tmp_path / "store"))
    with delivering.stepper() as one:
        one.deliver(scenario.marks[0].offset)
        shared.say("other", b"hello")
        with pytest.raises(SinkError, match="maximum messages per subject exceeded"):
            one.deliver(scenario.end)
    told = [p for p, c in scenario.changes.items() if c.relation is not None or c.prefix != MARKER_PREFIX]
    held = [m.position for m in shared.changes()]
    assert held != told[: len(held)], "there are gaps"
    shared.make(duplicate_window=0.1)
    assert shared.forgets()
    assert delivering.deliver(scenario.end).cursor == scenario.end.lsn
    assert sorted(m.position for m in shared.changes()) == told


@pytest.mark.parametrize("shared", [False, True])
def test_a_stream_that_drops_what_is_old(
    nats_server: NatsServer, scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Of what was published before a crash it has only the end; still nothing is published again or left out."""
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)
    whole, short = (Streamed(nats_server, more={"shared": shared}) for _ in range(2))
    short.make(max_msgs=5)
    for stream in (whole, short):
        delivering = Delivering(stream, scenario.store_of(tmp_path / stream.stream))
        for mark in scenario.marks[1:4:2]:
            with pytest.raises(Crash):
                delivering.deliver(mark.offset, dying(elsewhere(random.Random(1))))
            state = delivering.deliver(mark.offset)
    _assert_tells(whole, scenario, state)
    published, held = ([(m.sequence, m.position) for m in stream.messages()] for stream in (whole, short))
    assert held == published[-5:], "as many were published, each at its place"


def test_a_consumer_that_stops_reading(scenario: Scenario, tmp_path: Path) -> None:
    """It listens to everything many times over. The server holds the publisher back for its sake, then cuts it off."""
    with NatsServer(max_pending=8 << 20, write_deadline="1s") as server:
        stream = Streamed(server)
        delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as consumer:
            listen = b"".join(b"SUB %b.> %d\r\n" % (stream.subject.encode(), n) for n in range(200))
            consumer.sendall(b"CONNECT {}\r\n%bPING\r\n" % listen)
            arrived = b""
            while b"PONG" not in arrived:
                arrived += consumer.recv(4096)
            _assert_tells(stream, scenario, delivering.deliver(scenario.end))
            size = 0
            while some := consumer.recv(1 << 20):
                size += len(some)
        assert size < 200 * stream.state().bytes, "it was cut off before it had everything"


def test_somebody_else_publishes_into_the_stream(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    alone = Streamed(nats_server)
    delivering = Delivering(alone, scenario.store_of(tmp_path / "store"))
    with delivering.stepper() as one:
        one.deliver(scenario.marks[0].offset)
        alone.say("other", b"hello")
        with pytest.raises(SinkError, match="somebody else publishes into stream") as caught:
            one.deliver(scenario.marks[3].offset)
        assert "shared = true" in caught.value.hint
    state = delivering.deliver(scenario.end)  # it was once: the next attempt goes on behind it
    _assert_tells(alone, scenario, state)


@pytest.mark.usefixtures("all_large")
def test_several_publish_into_one_stream(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    shared = Streamed(nats_server, more={"shared": True})
    delivering = Delivering(shared, scenario.store_of(tmp_path / "store"))
    for mark in scenario.marks[::2]:
        shared.make()
        shared.say("other", b"hello")
        with pytest.raises(Crash):
            delivering.deliver(mark.offset, dying(elsewhere(random.Random(1))))
        for _ in range(5):
            shared.say("other", b"hello")
        delivering.deliver(mark.offset)
    _assert_tells(shared, scenario, delivering.deliver(scenario.end))


def test_somebody_else_uses_the_same_ids(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    """Another server's bridge may: what the stream takes for a repetition of that is not there yet."""
    shared = Streamed(nats_server, more={"shared": True})
    shared.make()
    delivering = Delivering(shared, scenario.store_of(tmp_path / "store"))
    change = next(c for c in scenario.changes.values() if c.operation is Operation.UPDATE)
    shared.say("other", b"another", id=f"{int(change.lsn):x}-{token(str(change.table))}-update")
    with pytest.raises(SinkError, match=f"has another message with id .* of {change.position}"):
        delivering.deliver(scenario.end)
    shared.make(duplicate_window=0.1)
    assert shared.forgets()
    assert delivering.deliver(scenario.end).cursor == scenario.end.lsn
    told = [p for p, c in scenario.changes.items() if c.relation is not None or c.prefix != MARKER_PREFIX]
    assert sorted(m.position for m in shared.changes()) == told


def test_others_publish_all_the_time(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    shared = Streamed(nats_server, more={"shared": True})
    shared.make()
    delivering = Delivering(shared, scenario.store_of(tmp_path / "store"))
    over = threading.Event()

    def publish() -> None:
        while not over.is_set():
            shared.say("other", b"hello")

    stranger = threading.Thread(target=publish)
    stranger.start()
    try:
        with delivering.stepper() as one:
            for mark in scenario.marks:
                one.deliver(mark.offset)
                one.sink._crowded_until *= 1e-9  # type: ignore[attr-defined]  # it is believed no longer
            state = one.state
    finally:
        over.set()
        stranger.join()
    _assert_tells(shared, scenario, state)


def test_others_publish_more_than_a_server_holds_for_a_client(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks for its own last message before all that, and reads slowly, must not be cut off for it."""
    monkeypatch.setattr(wire, "_RECEIVE_BYTES", 16 * 1024)
    with NatsServer(max_pending=24 << 20) as server:
        shared = Streamed(server, more={"shared": True})
        delivering = Delivering(shared, scenario.store_of(tmp_path / "store"))
        delivering.deliver(scenario.marks[0].offset)
        for _ in range(60):
            shared.say("other", bytes(1_000_000))
        assert delivering.deliver(scenario.marks[1].offset).cursor == scenario.marks[1].lsn


@pytest.mark.parametrize("by_stream", [False, True])
def test_a_message_that_no_server_would_take_is_set_aside(scenario: Scenario, tmp_path: Path, by_stream: bool) -> None:
    with NatsServer(**{} if by_stream else {"max_payload": 4_000}) as server:
        stream = Streamed(server)
        stream.make(max_msg_size=4_000 if by_stream else -1)
        # Without those whose descriptions are too large themselves.
        without = {"exclude": ["public.every_type", "public.wide", "public.panorama"]}
        delivering = Delivering(stream, scenario.store_of(tmp_path / "store"), **without)
        with pytest.raises(PoisonError, match=r"makes a message of [\d,]+ bytes, and the server takes 4,000") as caught:
            delivering.deliver(scenario.end)
        assert caught.value.positions
        delivering = Delivering(stream, delivering.store, on_poison="set_aside", **without)
        state = delivering.deliver(scenario.end)
        aside = SetAside(delivering.reader, "tested")
        aside.load()
        assert aside.positions
        assert state.cursor is not None
        rest = [
            c
            for p, c in scenario.changes.items()
            if c.table not in ("every_type", "wide", "panorama") and p not in aside.positions
        ]
        stream.assert_tells(rest, state.cursor, scenario.types)


def test_what_a_cluster_without_a_leader_says_passes() -> None:
    with pytest.raises(SinkError, match="JetStream system temporarily unavailable"):
        checked({"error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}})
    with pytest.raises(SinkRefused):
        checked({"error": {"code": 400, "err_code": 10052, "description": "invalid stream configuration"}})


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
def test_who_may_publish(server: dict[str, Any], right: dict[str, str], wrong: dict[str, str], tmp_path: Path) -> None:
    with NatsServer(**server) as one:
        for given, may in ((right, True), (wrong, False)):
            raw = {"type": "nats", "name": "told", "url": one.url, **given}
            (configured,) = sinks.configured(
                settings.Settings(store=settings.Store((tmp_path / "store").as_uri()), sinks=(raw,)), {}
            )
            carried = pickle.loads(pickle.dumps(configured.sink))
            assert "s3cret" not in repr(vars(configured.sink))
            if may:
                assert carried.open().cursor is None
            else:
                with pytest.raises(SinkRefused, match="Authorization Violation") as caught:
                    carried.open()
                assert not any(secret in str(caught.value) for secret in given.values() if secret != "ann")
            carried.close()


def test_credentials_in_a_file(scenario: Scenario, tmp_path: Path) -> None:
    account, other = Account(), Nkey(nkeys.PREFIX_BYTE_USER).seed
    store = scenario.store_of(tmp_path / "store")
    with NatsServer(**trusting(account)) as server:
        stream = Streamed(server, more={"credentials": str(account.credentials(tmp_path / "right.creds"))})
        _assert_tells(stream, scenario, Delivering(stream, store).deliver(scenario.end))
        for file in (
            Account().credentials(tmp_path / "unknown.creds"),
            account.credentials(tmp_path / "not_theirs.creds", seed=other),
            account.credentials(tmp_path / "expired.creds", exp=int(time.time()) - 60),
        ):
            wrong = Streamed(server, more={"credentials": str(file)})
            with pytest.raises(SinkRefused, match="Authorization Violation") as caught:
                Delivering(wrong, store).made().open()
            assert "have they expired?" in caught.value.hint, file
            assert other not in f"{caught.value} {caught.value.hint}", file


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        ("", "no JWT and seed in it"),
        ("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY", "no JWT and seed in it"),
        ("--BEGIN JWT--\nx\n--END JWT--\n--BEGIN SEED--\nSUAC\n--END SEED--", "the seed is no nkey of a user's"),
    ],
    ids=["none", "empty", "only a seed", "another seed"],
)
def test_files_that_are_no_credentials(
    nats_server: NatsServer, tmp_path: Path, content: str | None, words: str
) -> None:
    file = tmp_path / "x.creds"
    if content is not None:
        file.write_text(content)
    options = NatsOptions(url=nats_server.url, credentials=file)
    with pytest.raises(ConfigError, match=words) as caught:
        NatsSink("told", options, Context(settings.Store((tmp_path / "store").as_uri()))).open()
    assert "SUAC" not in str(caught.value)


def test_credentials_that_expire_and_are_renewed(scenario: Scenario, tmp_path: Path) -> None:
    """The server cuts the connection then; by that time the file has others."""
    account = Account()
    file = tmp_path / "bus.creds"
    account.credentials(file, exp=int(time.time()) + 2)
    with NatsServer(**trusting(account)) as server:
        stream = Streamed(server, more={"credentials": str(file)})
        delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
        with delivering.stepper() as one:
            one.deliver(scenario.marks[0].offset)
            account.credentials(file)
            with pytest.raises(SinkError, match="User Authentication Expired"):
                _tend(one, 30)
            one.open()
            one.deliver(scenario.end)
            _assert_tells(stream, scenario, one.state)


def _tend(one: stepping.Stepper, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        one.sink.tend()


def test_a_server_that_has_no_time_for_who_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives up on who is not introduced in time: that is no refusal."""
    introduce = wire._introduce

    def late(connection: socket.socket, *about: Any) -> None:
        assert select.select([connection], [], [], 30)[0]
        introduce(connection, *about)

    monkeypatch.setattr(wire, "_introduce", late)
    with NatsServer(authorization={"user": "ann", "password": "s3cret", "timeout": 0.1}) as server:
        options = NatsOptions(url=server.url, user="ann", password=settings.Secret("s3cret"))
        with pytest.raises(SinkError):
            NatsSink("told", options, Context(settings.Store((tmp_path / "store").as_uri()))).open()


def test_tls(tls: Tls, tmp_path: Path) -> None:
    pem = str(tls.authority.file.parent / "localhost.pem")
    with NatsServer(tls={"cert_file": pem, "key_file": pem}) as server:

        def opened(host: str, authority: Path) -> None:
            options = NatsOptions(url=f"tls://{host}:{server.port}", tls_ca=authority)
            sink = NatsSink("told", options, Context(settings.Store((tmp_path / "store").as_uri())))
            try:
                sink.open()
            finally:
                sink.close()

        opened("localhost", tls.authority.file)
        for host, authority in (("127.0.0.1", tls.authority.file), ("localhost", tls.stranger.file)):
            with pytest.raises(SinkRefused, match="certificate verify failed"):
                opened(host, authority)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "url is missing"),
        ({"url": "http://x"}, "http://x is no NATS server's"),
        ({"url": "nats://x", "stream": "a.b"}, "'a.b' is no name for a stream"),
        ({"url": "nats://x", "subject": "a.*"}, "is no beginning of subjects"),
        ({"url": "nats://x", "encoding": "xml"}, "encoding"),
        ({"url": "nats://x", "token": "t", "user": "u"}, "more than one is given"),
    ],
)
def test_settings_that_are_wrong(given: dict[str, str], words: str) -> None:
    raw = {"type": "nats", "name": "told", **given}
    with pytest.raises(ConfigError, match=re.escape(words)):
        sinks.configured(settings.Settings(store=settings.Store("file:///nowhere"), sinks=(raw,)), {})


def test_streams_that_do_not_fit(nats_server: NatsServer, tmp_path: Path) -> None:
    stream = Streamed(nats_server, more={"create": False})
    delivering = Delivering(stream, settings.Store((tmp_path / "store").as_uri()))
    with pytest.raises(SinkRefused, match=f"there is no stream {stream.stream}"):
        delivering.made().open()
    other = Streamed(nats_server, more={"subject": "elsewhere"})
    other.make()
    delivering = Delivering(other, settings.Store((tmp_path / "store").as_uri()))
    with pytest.raises(SinkRefused, match=r"does not take elsewhere\.>, but t\d+\.>"):
        delivering.made().open()
