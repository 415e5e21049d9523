"""What is served, and who may do what: over a real server on a free port."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, get_args

import httpx
import pytest

from tailrace.change import Lsn, Position
from tailrace.embedded.process import free_port
from tailrace.errors import ConfigError, StoreError
from tailrace.ops import metrics
from tailrace.ops.http import Server, Subject, is_loopback, refusal, routes
from tailrace.ops.observing import Fresh
from tailrace.ops.status import SINK_CONDITIONS, CaptureStatus, LogStatus, Overview, SourceStatus
from tailrace.settings import Http, Secret
from tailrace.sinks.status import Condition, SinkStatus

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

SINK = SinkStatus(
    name='odd"\\name',
    type="postgres",
    state="running",
    cursor=Lsn(0x1_0000_00FF),
    log_end=Lsn(0x1_0000_01FF),
    lag_bytes=256,
    lag_seconds=1.5,
    changes=1234,
    changes_per_second=10.0,
    steps=7,
    last_error=None,
    last_error_hint=None,
    failures=2,
    recoveries=1,
    last_step_seconds=0.25,
    set_aside=0,
    updated_at=MOMENT,
)
WELL = Overview(
    SourceStatus("tailrace", True, "reserved", Lsn(0x1_0000_0100), 4096),
    CaptureStatus(
        "streaming",
        operations={"INSERT": 3, "DELETE": 2},
        received_lsn=Lsn(300),
        durable_lsn=Lsn(200),
        last_committed_at=MOMENT,
    ),
    LogStatus("file:///x", 9, 3, 1000, Position(Lsn(1), 0), Position(Lsn(2), 3), Lsn(200), MOMENT),
    [SINK],
)


@dataclass
class Told:
    """Something to be told about that a test can turn."""

    overview: Overview = WELL
    asked: list[str] = field(default_factory=list)
    is_shut: threading.Event = field(default_factory=threading.Event)
    store_is_away: bool = False

    def subject(self) -> Subject:
        return Subject(
            lambda: self.overview,
            lambda: self.overview,
            self.is_shut.set,
            sinks=["lake"],
            pause=lambda name: self._ask("pause", name),
            resume=lambda name: self._ask("resume", name),
        )

    def _ask(self, verb: str, name: str) -> None:
        if self.store_is_away:
            raise StoreError("the store is away", "wait")
        self.asked.append(f"{verb} {name}")


@contextmanager
def serving(told: Told, **settings: Any) -> Iterator[httpx.Client]:
    given = Http(port=free_port(), **settings)
    with Server(given, routes(told.subject())) as server, httpx.Client(base_url=server.url) as client:
        yield client


def test_what_is_told() -> None:
    told = Told()
    with serving(told) as client:
        assert client.get("/health").json() == {"status": "ok"}
        status = client.get("/status").json()
        assert (status["status"], status["faults"]) == ("ok", [])
        assert status["source"]["wal_held_bytes"] == 4096
        assert status["capture"]["durable_lsn"] == "0/C8"
        assert status["capture"]["lag_bytes"] == 100
        assert status["log"]["last"] == "0/2:3"
        assert status["sinks"][0]["cursor"] == "1/FF"
        page = client.get("/")
        assert "text/html" in page.headers["content-type"]
        assert "<script>" in page.text
        assert not re.search(r"""(src|href)=["'](?!data:)""", page.text), "nothing is asked of anybody else"

        told.overview = replace(WELL, sinks=[replace(SINK, state="failed", last_error="no such database")])
        health = client.get("/health")
        assert health.status_code == 503
        assert health.json()["faults"] == ['sink odd"\\name is failed: no such database']
        told.overview = replace(WELL, sinks=[replace(SINK, state="paused")])
        assert client.get("/health").status_code == 200, "a pause is somebody's will"
        told.overview = Overview(capture=CaptureStatus("streaming", last_error="public.t could not be copied"))
        assert client.get("/health").status_code == 503
        assert client.get("/status").json()["source"] is None
        assert client.get("/nothing").status_code == 404
        assert client.get("/shutdown").status_code == 405


def test_metrics_are_prometheus() -> None:
    with serving(Told()) as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == metrics.CONTENT_TYPE
    families: dict[str, str] = {}
    samples: dict[str, float] = {}
    for line in answer.text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in families, "a family is declared once, its samples follow it"
            families[name] = kind
            assert name.endswith("_total") == (kind == "counter")
        elif not line.startswith("# HELP "):
            matched = re.fullmatch(r'([a-z_]+)((?:\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\})?) (\S+)', line)
            assert matched, line
            assert matched[1] == next(reversed(families)), "samples stand under their family"
            samples[matched[1] + matched[2]] = float(matched[3])
    assert get_args(Condition) == SINK_CONDITIONS
    labels = r'{sink="odd\"\\name",type="postgres"'
    assert samples["tailrace_healthy"] == 1
    assert samples["tailrace_capture_lag_bytes"] == 100
    assert samples["tailrace_source_wal_held_bytes"] == 4096
    assert samples[f"tailrace_sink_cursor_lsn{labels}}}"] == SINK.cursor
    assert samples[f"tailrace_sink_lag_seconds{labels}}}"] == 1.5
    assert samples[f'tailrace_sink_state{labels},state="running"}}'] == 1
    assert samples[f'tailrace_sink_state{labels},state="failed"}}'] == 0


def test_control_on_loopback() -> None:
    told = Told()
    with serving(told) as client:
        assert client.post("/sinks/lake/pause").json() == {"status": "paused"}
        assert client.post("/sinks/lake/resume").json() == {"status": "resumed"}
        assert told.asked == ["pause lake", "resume lake"]
        assert client.post("/sinks/other/pause").status_code == 404
        assert client.post("/sinks/lake/remove").status_code == 404
        told.store_is_away = True
        assert client.post("/sinks/lake/pause").status_code == 503

        # A page from elsewhere, open in a browser on this machine.
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:1"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Host": "evil.example"},
            {"Host": "["},
        ):
            assert client.post("/shutdown", headers=headers).status_code == 403, headers
        assert client.get("/status", headers={"Host": "rebound.example:9464"}).status_code == 403
        assert not told.is_shut.is_set()
        own = str(client.base_url).rstrip("/")
        answer = client.post("/shutdown", headers={"Origin": own, "Sec-Fetch-Site": "same-origin"})
        assert (answer.status_code, answer.json()) == (202, {"status": "stopping"})
        assert told.is_shut.wait(10)


def test_a_token_where_one_is_set() -> None:
    told = Told()
    with serving(told, token=Secret("s3cret")) as client:
        assert client.get("/metrics").status_code == 200, "reading needs none"
        for shown in (None, "Bearer wrong", "Basic s3cret", "s3cret", "Bearer", "Bearer s3cret!"):
            answer = client.post("/shutdown", headers={"Authorization": shown} if shown else {})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "s3cret" not in answer.text
        right = {"Authorization": "Bearer s3cret"}
        assert client.post("/shutdown", headers=right | {"Origin": "https://evil.example"}).status_code == 403
        assert not told.is_shut.is_set()
        assert client.post("/sinks/lake/pause", headers=right).status_code == 200
        assert client.post("/shutdown", headers=right).status_code == 202
        assert told.is_shut.wait(10)


def test_other_machines_only_with_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(ConfigError, match="shut Tailrace down") as caught:
            Server(Http(host=host, port=free_port()), routes(Told().subject()))
        assert "TAILRACE_HTTP_TOKEN" in caught.value.hint
    told = Told()
    given = Http(host="0.0.0.0", port=free_port(), token=Secret("s3cret"))
    with Server(given, routes(told.subject())), httpx.Client(base_url=f"http://127.0.0.1:{given.port}") as client:
        assert client.get("/health", headers={"Host": "tailrace.example"}).status_code == 200
        assert client.post("/shutdown").status_code == 401


def test_a_port_that_is_taken_is_told_before_anything_starts() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}") as caught:
            Server(Http(port=port), routes(Told().subject()))
        assert "[http] port" in caught.value.hint


def test_a_client_that_stays_does_not_hold_up_the_end() -> None:
    server = Server(Http(port=free_port()), routes(Told().subject()))
    with server, httpx.Client(base_url=server.url) as client:
        assert client.get("/health").status_code == 200  # the connection is kept open beyond the server's end
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as silent:
            silent.sendall(b"GET /health HTTP/1.1\r\n")
            server.__exit__(None, None, None)
    assert not server._thread.is_alive()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "LOCALHOST"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert refusal("GET", {"host": f"[{host}]:1" if ":" in host else f"{host}:1"}, None, on_loopback=True) is None


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "example.com", "localhost.example.com", "10.0.0.1", "127.0.0.1.nip.io"]
)
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)
    assert refusal("GET", {"host": host}, None, on_loopback=True) is not None


def test_what_takes_long_to_find_out_is_not_waited_for() -> None:
    go, found = threading.Event(), iter([1, 2])

    def find_out() -> int:
        assert go.wait(30)
        return next(found)

    fresh = Fresh(find_out, every_s=0.0, patience_s=0.01)
    assert fresh.get() is None
    go.set()
    fresh = Fresh(find_out, every_s=3600.0, patience_s=30)
    assert fresh.get() is not None
    assert fresh.get() == fresh.get(), "asked once in an hour"
