"""The HTTP server: responses and access control, on a real server with a free port."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import httpx
import pytest

from tailrace.capture.postgres.uncaptured import UncapturedTable
from tailrace.capture.source import SourceStatus
from tailrace.change import Lsn, Position
from tailrace.delivery.status import Condition, SinkStatus
from tailrace.embedded.process import free_port, wait_until
from tailrace.errors import ConfigError, StoreError
from tailrace.ops import http_connection, prometheus
from tailrace.ops.cache import BackgroundCache
from tailrace.ops.http import HttpServer, Service, rejection, routes
from tailrace.ops.status import SINK_STATES, CaptureStatus, LogStatus, Overview
from tailrace.settings import HttpSettings, Secret
from tailrace.settings.address import is_loopback

TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FAR = datetime(2999, 1, 1, tzinfo=UTC)
"""A status that stays fresh."""

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
    dead_letters=0,
    updated_at=FAR,
)
HEALTHY = Overview(
    SourceStatus("tailrace", True, "reserved", Lsn(0x1_0000_0100), 4096),
    CaptureStatus(
        "streaming",
        operations={"INSERT": 3, "DELETE": 2},
        received_lsn=Lsn(300),
        durable_lsn=Lsn(200),
        last_committed_at=TIME,
    ),
    LogStatus("file:///x", 9, 3, 1000, Position(Lsn(1), 0), Position(Lsn(2), 3), Lsn(200), TIME),
    [SINK],
)


@dataclass
class FakeService:
    """A service whose status a test sets, and that records control requests."""

    overview: Overview = HEALTHY
    requests: list[str] = field(default_factory=list)
    is_shut_down: threading.Event = field(default_factory=threading.Event)
    is_store_unreachable: bool = False

    def service(self) -> Service:
        return Service(
            lambda: self.overview,
            lambda: self.overview,
            self.is_shut_down.set,
            sinks=["lake"],
            pause=lambda name: self._request("pause", name),
            resume=lambda name: self._request("resume", name),
        )

    def _request(self, verb: str, name: str) -> None:
        if self.is_store_unreachable:
            raise StoreError("the store is unreachable", "wait")
        self.requests.append(f"{verb} {name}")


@contextmanager
def serving(fake: FakeService, **settings: Any) -> Iterator[httpx.Client]:
    http = HttpSettings(port=free_port(), **settings)
    with HttpServer(http, routes(fake.service())) as server, httpx.Client(base_url=server.url) as client:
        yield client


def test_a_sink_whose_process_hangs_is_a_fault() -> None:
    """It says that it is running, and nothing since."""
    silent = replace(SINK, name="lake", updated_at=datetime.now(UTC) - timedelta(seconds=31))
    assert silent.state == "running"
    with serving(FakeService(replace(HEALTHY, sinks=[silent]))) as client:
        health = client.get("/health")
        assert health.status_code == 503
        (fault,) = health.json()["faults"]
        assert re.fullmatch(r"sink lake has no status for 3\d s: deliver hangs, or does not run", fault)
    for state in ("new", "stopped"):
        assert not Overview(sinks=[replace(silent, state=state)]).faults, "nobody expects a status"


def test_health_status_and_page() -> None:
    fake = FakeService()
    with serving(fake) as client:
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
        assert "<script>" not in page.text
        assert not re.search(r"""(src|href)=["'](?!assets/|#)""", page.text), (
            "the page loads nothing from other servers"
        )

        uncaptured = UncapturedTable(7, "public", "t", "it has no key", "ALTER TABLE t;")
        left_out = replace(uncaptured, name="u", is_left_out=True)
        known = CaptureStatus("streaming", uncaptured=(uncaptured, left_out), tables_captured=3)
        fake.overview = replace(HEALTHY, capture=known)
        warnings = ["public.t is not captured: it has no key. ALTER TABLE t;"]
        health = client.get("/health")
        assert health.status_code == 200, "nothing is to be restarted for it"
        assert health.json() == {"status": "ok", "warnings": warnings}
        status = client.get("/status").json()
        assert status["warnings"] == warnings
        assert [table["table"] for table in status["uncaptured"]] == ["public.t", "public.u"], "both are listed"
        metrics = client.get("/metrics").text
        assert 'tailrace_uncaptured_tables{left_out="false"} 1' in metrics
        assert "tailrace_sink_load_rows" not in metrics, "nothing is loaded"
        loading = replace(SINK, name="lake", state="loading", load_rows=0, load_total_rows=900)
        fake.overview = replace(HEALTHY, sinks=[loading])
        metrics = client.get("/metrics").text
        assert 'tailrace_sink_load_rows{sink="lake",type="postgres"} 0' in metrics
        assert 'tailrace_sink_load_total_rows{sink="lake",type="postgres"} 900' in metrics
        assert "tailrace_sink_load_seconds_left" not in metrics, "nobody knows it yet"
        assert "tailrace_uncaptured_tables" not in metrics, "nobody knows them"

        fake.overview = replace(HEALTHY, sinks=[replace(SINK, state="failed", last_error="no such database")])
        health = client.get("/health")
        assert health.status_code == 503
        assert health.json()["faults"] == ['sink odd"\\name is failed: no such database']
        fake.overview = replace(HEALTHY, sinks=[replace(SINK, state="paused")])
        assert client.get("/health").status_code == 200, "a paused sink is not a fault"
        fake.overview = Overview(capture=CaptureStatus("streaming", last_error="public.t could not be copied"))
        assert client.get("/health").status_code == 503
        assert client.get("/status").json()["source"] is None
        assert client.get("/nothing").status_code == 404
        assert client.get("/shutdown").status_code == 405


def test_metrics_are_valid_prometheus_text() -> None:
    with serving(FakeService()) as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == prometheus.CONTENT_TYPE
    families: dict[str, str] = {}
    samples: dict[str, float] = {}
    for line in answer.text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in families, "a family is declared once"
            families[name] = kind
            assert name.endswith("_total") == (kind == "counter")
        elif not line.startswith("# HELP "):
            matched = re.fullmatch(r'([a-z_]+)((?:\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\})?) (\S+)', line)
            assert matched, line
            assert matched[1] == next(reversed(families)), "samples follow their family"
            samples[matched[1] + matched[2]] = float(matched[3])
    assert get_args(Condition) == SINK_STATES
    labels = r'{sink="odd\"\\name",type="postgres"'
    assert samples["tailrace_healthy"] == 1
    assert samples["tailrace_capture_lag_bytes"] == 100
    assert samples["tailrace_source_wal_held_bytes"] == 4096
    assert samples[f"tailrace_sink_cursor_lsn{labels}}}"] == SINK.cursor
    assert samples[f"tailrace_sink_lag_seconds{labels}}}"] == 1.5
    assert samples[f'tailrace_sink_state{labels},state="running"}}'] == 1
    assert samples[f'tailrace_sink_state{labels},state="failed"}}'] == 0


def test_control_requests_on_loopback() -> None:
    fake = FakeService()
    with serving(fake) as client:
        assert client.post("/sinks/lake/pause").json() == {"status": "paused"}
        assert client.post("/sinks/lake/resume").json() == {"status": "resumed"}
        assert fake.requests == ["pause lake", "resume lake"]
        assert client.post("/sinks/other/pause").status_code == 404
        assert client.post("/sinks/lake/remove").status_code == 404
        fake.is_store_unreachable = True
        assert client.post("/sinks/lake/pause").status_code == 503

        # Requests of a web page of another origin, open in a local browser.
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
        assert not fake.is_shut_down.is_set()
        own = str(client.base_url).rstrip("/")
        answer = client.post("/shutdown", headers={"Origin": own, "Sec-Fetch-Site": "same-origin"})
        assert (answer.status_code, answer.json()) == (202, {"status": "stopping"})
        assert fake.is_shut_down.wait(10)


def test_control_requests_need_the_token() -> None:
    fake = FakeService()
    with serving(fake, token=Secret("s3cret")) as client:
        assert client.get("/metrics").status_code == 200, "reading on loopback needs no token"
        for authorization in (None, "Bearer wrong", "Basic s3cret", "s3cret", "Bearer", "Bearer s3cret!"):
            answer = client.post("/shutdown", headers={"Authorization": authorization} if authorization else {})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "s3cret" not in answer.text
        right = {"Authorization": "Bearer s3cret"}
        assert client.post("/shutdown", headers=right | {"Origin": "https://evil.example"}).status_code == 403
        assert not fake.is_shut_down.is_set()
        assert client.post("/sinks/lake/pause", headers=right).status_code == 200
        assert client.post("/shutdown", headers=right).status_code == 202
        assert fake.is_shut_down.wait(10)
    with serving(fake, token=Secret("schlüssel")) as client:
        answer = client.post("/sinks/lake/pause", headers={b"Authorization": "Bearer schlüssel".encode()})
        assert answer.status_code == 200


def test_behind_a_proxy_nobody_is_local() -> None:
    fake = FakeService()
    forwarded = ({"X-Forwarded-For": "192.0.2.1"}, {"Forwarded": "for=192.0.2.1"}, {"Via": "1.1 proxy"})
    for token in (None, Secret("s3cret")):
        with serving(fake, token=token) as client:
            for headers in forwarded:
                assert client.get("/status", headers=headers).status_code == 401, headers
                assert client.get("/changes", headers=headers).status_code == 401, headers
                assert client.post("/shutdown", headers=headers).status_code == 401, headers
                assert client.get("/live", headers=headers).status_code == 200, headers
    with serving(fake, token=Secret("s3cret")) as client:
        right = {"Authorization": "Bearer s3cret"}
        assert client.get("/status", headers=forwarded[0] | right).status_code == 200
    assert not fake.is_shut_down.is_set()


def test_other_hosts_than_loopback_need_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(ConfigError, match="shut Tailrace down") as caught:
            HttpServer(HttpSettings(host=host, port=free_port()), routes(FakeService().service()))
        assert "TAILRACE_HTTP_TOKEN" in caught.value.hint
    fake = FakeService()
    http = HttpSettings(host="0.0.0.0", port=free_port(), token=Secret("s3cret"))
    with HttpServer(http, routes(fake.service())), httpx.Client(base_url=f"http://127.0.0.1:{http.port}") as client:
        assert client.post("/shutdown").status_code == 401


def test_beyond_loopback_only_probes_read_without_the_token() -> None:
    fake = FakeService(replace(HEALTHY, sinks=[replace(SINK, state="failed", last_error="the table hidden is gone")]))
    http = HttpSettings(host="0.0.0.0", port=free_port(), token=Secret("s3cret"))
    right = {"Authorization": "Bearer s3cret"}
    with HttpServer(http, routes(fake.service())), httpx.Client(base_url=f"http://127.0.0.1:{http.port}") as client:
        for path in ("/status", "/metrics", "/nothing"):
            assert client.get(path).status_code == 401, path
            assert client.head(path).status_code == 401, path
            assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401, path
        assert "hidden" in client.get("/status", headers=right).text
        assert client.get("/metrics", headers=right).status_code == 200
        assert client.get("/live").json() == {"status": "ok"}
        assert client.get("/").status_code == 200, "the page holds no data"
        stranger = client.get("/health", headers={"Host": "tailrace.example"})
        assert (stranger.status_code, stranger.json()["status"]) == (503, "wrong")
        assert "hidden" not in stranger.text
        assert "hidden" in client.get("/health", headers=right).text
        fake.overview = HEALTHY
        assert client.get("/health").status_code == 200


def test_a_port_in_use_is_reported_before_anything_starts() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}") as caught:
            HttpServer(HttpSettings(port=port), routes(FakeService().service()))
        assert "[http] port" in caught.value.hint


def test_an_open_connection_does_not_delay_the_stop() -> None:
    server = HttpServer(HttpSettings(port=free_port()), routes(FakeService().service()))
    with server, httpx.Client(base_url=server.url) as client:
        assert client.get("/health").status_code == 200  # the client keeps its connection open
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as silent:
            silent.sendall(b"GET /health HTTP/1.1\r\n")
            server.__exit__(None, None, None)
    assert not server._thread.is_alive()


def _is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection on which it has nothing to say."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_idle_connections_give_way_to_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MOST_CONNECTIONS", 20)
    with serving(FakeService()) as client, ExitStack() as stack:
        address = (client.base_url.host, client.base_url.port)
        idle = [stack.enter_context(socket.create_connection(address)) for _ in range(60)]
        assert client.get("/live").status_code == 200, "a probe gets through"
        assert wait_until(lambda: sum(map(_is_closed, idle)) >= 41, 10), "at most 20 are open, with the probe's"
        assert not all(map(_is_closed, idle))
        assert client.get("/live").status_code == 200, "its own connection is not among them"


def test_a_request_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "EXCHANGE_S", 0.5)
    with serving(FakeService()) as client:
        address = (client.base_url.host, client.base_url.port)
        for request in (b"", b"GET /live HT", b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"):
            with socket.create_connection(address, timeout=10) as slow:
                slow.sendall(request)
                while slow.recv(4096):
                    pass


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "LOCALHOST"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert (
        rejection("GET", {"host": f"[{host}]:1" if ":" in host else f"{host}:1"}, is_authorized=True, on_loopback=True)
        is None
    )


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "example.com", "localhost.example.com", "10.0.0.1", "127.0.0.1.nip.io"]
)
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)
    assert rejection("GET", {"host": host}, is_authorized=True, on_loopback=True) is not None


def test_the_cache_does_not_wait_for_a_slow_computation() -> None:
    go, values = threading.Event(), iter([1, 2])

    def compute() -> int:
        assert go.wait(30)
        return next(values)

    cache = BackgroundCache(compute, interval_s=0.0, timeout_s=0.01)
    assert cache.get() is None
    go.set()
    cache = BackgroundCache(compute, interval_s=3600.0, timeout_s=30)
    assert cache.get() is not None
    assert cache.get() == cache.get(), "computed once an hour"


def test_an_old_value_counts_for_nothing_while_its_computation_hangs() -> None:
    """So the lag of sinks is unknown while the store hangs, and not what it was before."""
    go = threading.Event()
    go.set()
    cache = BackgroundCache(lambda: go.wait(30), interval_s=0.0, timeout_s=0.1, max_age_s=0.4)
    assert wait_until(lambda: cache.get() is True, 30)
    go.clear()
    assert wait_until(lambda: cache.get() is None, 30)
    go.set()
    assert wait_until(lambda: cache.get() is True, 30)
