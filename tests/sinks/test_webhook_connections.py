"""Which receivers the sink connects to: public addresses, verified certificates, with the right credentials."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest
from tests.contract.webhook_receiver import SECRET, Answer, HttpReceiver, Reaction, Received
from tests.fixtures.tls import Tls
from tests.sinks.webhook_scene import Scene

from tailrace import settings
from tailrace.delivery.sink_settings import SinkContext
from tailrace.errors import SinkError, SinkRefused
from tailrace.finding import Finding, Severity
from tailrace.http import address
from tailrace.http.address import is_public
from tailrace.sinks.webhook import WebhookOptions, WebhookSink, authorization, dispatcher

PUBLIC = ["8.8.8.8", "1.1.1.1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1", "2606:4700::1111"]
NOT_PUBLIC = [
    *("127.0.0.1", "127.1.2.3", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.2.1", "198.18.0.1"),
    *("224.0.0.1", "240.0.0.1", "255.255.255.255", "::1", "::", "::ffff:127.0.0.1", "::ffff:169.254.169.254"),
    *("::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "fe80::1", "fe80::1%eth0", "fec0::1"),
    *("fd00:ec2::254", "fc00::1", "2001:db8::1", "2001:0:1::1", "ff02::1", "100::1", "5f00::1", "", "x"),
]


@pytest.fixture
def server() -> Iterator[HttpReceiver]:
    with HttpReceiver() as server:
        yield server


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure is reported."""
    monkeypatch.setattr(dispatcher, "_PATIENCE_S", 0.0)


def _resolve_by(monkeypatch: pytest.MonkeyPatch, resolve: Callable[..., list[Any]]) -> None:
    """Resolve the sink's host names so. Other threads of the process resolve names, too."""
    replaced = SimpleNamespace(getaddrinfo=resolve, SOCK_STREAM=socket.SOCK_STREAM)
    monkeypatch.setattr(address, "socket", replaced)


@pytest.mark.parametrize("ip", PUBLIC)
def test_public_addresses(ip: str) -> None:
    assert is_public(ip)


@pytest.mark.parametrize("ip", NOT_PUBLIC)
def test_addresses_that_are_not_public(ip: str) -> None:
    assert not is_public(ip)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "0"])
def test_private_receivers_are_refused(server: HttpReceiver, tmp_path: Path, host: str) -> None:
    scene = Scene(server, tmp_path)
    with pytest.raises(SinkRefused, match="which is not a public address") as caught:
        scene.deliver(url=f"http://{host}:{server.port}/hook", allow_private=False)
    assert "allow_private = true" in caught.value.hint
    assert not server.connections


def test_one_private_address_among_public_ones_is_refused(
    server: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(host: str, port: int, **more: Any) -> list[Any]:
        kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
        return [(*kind, (ip, port)) for ip in ("8.8.8.8", "127.0.0.1")]

    _resolve_by(monkeypatch, resolve)
    with pytest.raises(SinkRefused, match=r"hooks\.example resolves to 127\.0\.0\.1"):
        Scene(server, tmp_path).deliver(url=f"http://hooks.example:{server.port}/", allow_private=False)
    assert not server.connections


def test_the_address_that_was_checked_gets_the_request(
    server: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that resolves differently a moment later leads nowhere else."""
    asked: list[str] = []

    def resolve(host: str, port: int, **more: Any) -> list[Any]:
        asked.append(host)
        ip = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))]

    _resolve_by(monkeypatch, resolve)
    scene = Scene(server, tmp_path)
    scene.deliver(url=f"http://hooks.example:{server.port}/hook", connections=1)
    scene.assert_all_accepted()
    assert asked == ["hooks.example"]
    assert {received.headers["host"] for received in server.requests} == {f"hooks.example:{server.port}"}


@pytest.mark.usefixtures("impatient")
def test_a_receiver_that_is_not_there(tmp_path: Path, server: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(server, tmp_path)

    def fail(host: str, *more: Any, **named: Any) -> Any:
        if host == "nowhere.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return socket.getaddrinfo(host, *more, **named)

    _resolve_by(monkeypatch, fail)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url, words in (
        (f"http://127.0.0.1:{port}/", "cannot connect: Connection refused"),
        ("http://nowhere.example/", "host nowhere.example cannot be resolved: Name or service not known"),
    ):
        with pytest.raises(SinkError, match=words):
            scene.deliver(url=url, connections=1)
        scene.store.delete("cursors/tested/attempts.json")
    scene.deliver()
    scene.assert_all_accepted()


def test_certificates_are_verified(tls: Tls, tmp_path: Path) -> None:
    with HttpReceiver(context=tls.context) as server:
        scene = Scene(server, tmp_path)
        for url, authority in (
            (server.url, tls.stranger.file),
            (server.url, None),
            (server.url.replace("localhost", "127.0.0.1"), tls.authority.file),
        ):
            more = {} if authority is None else {"tls_ca": str(authority)}
            with pytest.raises(SinkRefused, match="certificate verify failed"):
                scene.deliver(url=url, **more)
        assert not server.requests
        scene.deliver(tls_ca=str(tls.authority.file))
        scene.assert_all_accepted()


def test_client_certificates(tls: Tls, tmp_path: Path) -> None:
    tls.authority.context_for("client")
    tls.stranger.context_for("stranger-client")
    context = tls.authority.context_for("localhost")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(tls.authority.file)
    directory = tls.authority.file.parent
    with HttpReceiver(context=context) as server:
        scene = Scene(server, tmp_path)
        more = {"tls_ca": str(tls.authority.file), "connections": 1}
        for certificate in (None, directory / "stranger-client.pem"):
            own = {} if certificate is None else {"tls_certificate": str(certificate)}
            with pytest.raises(SinkRefused, match="rejects the client's certificate"):
                scene.deliver(**more, **own)
        assert not server.requests
        scene.deliver(**more, tls_certificate=str(directory / "client.pem"))
        scene.assert_all_accepted()


@pytest.mark.usefixtures("impatient")
def test_a_port_that_does_not_speak_tls(server: HttpReceiver, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="TLS failed"):
        Scene(server, tmp_path).deliver(url=server.url.replace("http", "https"), connections=1)


def test_bearer_and_basic(server: HttpReceiver, tmp_path: Path) -> None:
    scene = Scene(server, tmp_path)
    scene.deliver(bearer="t0ken")
    assert {received.headers["authorization"] for received in server.requests} == {"Bearer t0ken"}
    server.requests.clear()
    scene.deliver(name="other", url=server.url.replace("localhost", "ann:p%40ss@localhost"))
    pair = base64.b64encode(b"ann:p@ss").decode()
    assert {received.headers["authorization"] for received in server.requests} == {f"Basic {pair}"}


@dataclass
class TokenServer:
    """Issues tokens to a client, each valid until the next one is issued."""

    expires_in: int = 3600
    in_body: bool = False
    status: int = 200
    issued: list[str] = field(default_factory=list)
    fields: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def react(self, received: Received) -> Reaction:
        form = parse_qs(received.content.decode())
        pair = base64.b64encode(b"client:s%26cret").decode()
        right = (form.get("client_id"), form.get("client_secret")) == (["client"], ["s&cret"])
        if not (right if self.in_body else received.headers.get("authorization") == f"Basic {pair}"):
            return Answer(401, body=b'{"error": "invalid_client"}')
        if self.status != 200:
            return Answer(self.status)
        with self._lock:
            self.fields.append(form)
            self.issued.append(f"token{len(self.issued)}")
            raw = {"access_token": self.issued[-1], "token_type": "Bearer", "expires_in": self.expires_in}
        return Answer(200, {"content-type": "application/json"}, json.dumps(raw).encode())

    def settings(self, server: HttpReceiver) -> dict[str, Any]:
        return {
            "oauth_url": f"http://localhost:{server.port}/token",
            "oauth_client_id": "client",
            "oauth_client_secret": "s&cret",
            "oauth_fields": {"scope": "hooks"},
        }


@pytest.mark.parametrize("in_body", [False, True])
def test_tokens_by_client_credentials(server: HttpReceiver, tmp_path: Path, in_body: bool) -> None:
    tokens, scene = TokenServer(in_body=in_body), Scene(server, tmp_path)
    with HttpReceiver(tokens.react, secret="") as issuer:
        scene.deliver(**tokens.settings(issuer))
    assert tokens.issued == ["token0"], "a token is used until it expires"
    assert tokens.fields[0]["grant_type"] == ["client_credentials"]
    assert tokens.fields[0]["scope"] == ["hooks"]
    assert {received.headers["authorization"] for received in server.requests} == {"Bearer token0"}
    scene.assert_all_accepted()


def test_tokens_are_renewed(server: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they expire, and when the receiver rejects one."""
    tokens, scene = TokenServer(), Scene(server, tmp_path)
    server.react = lambda r: Answer(401 if r.headers["authorization"] == "Bearer token0" else 200)
    with HttpReceiver(tokens.react, secret="") as issuer:
        scene.deliver(**tokens.settings(issuer), connections=1)
        assert tokens.issued == ["token0", "token1"]
        scene.assert_all_accepted()
        monkeypatch.setattr(authorization, "_EARLY_S", 3600.0)
        monkeypatch.setattr(tokens, "expires_in", 1e-9)
        scene.deliver(**tokens.settings(issuer), name="other", connections=1)
        assert len(tokens.issued) == 2 + len(scene.changes)
        # One that always rejects them is not asked forever.
        server.react = lambda _: Answer(401)
        with pytest.raises(SinkRefused, match="answered 401"):
            scene.deliver(**tokens.settings(issuer), name="third", connections=1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("status", "secret", "kind"), [(503, "s&cret", SinkError), (400, "s&cret", SinkRefused), (200, "no", SinkRefused)]
)
def test_no_token(server: HttpReceiver, tmp_path: Path, status: int, secret: str, kind: type[Exception]) -> None:
    tokens = TokenServer(status=status)
    with HttpReceiver(tokens.react, secret="") as issuer:
        given = {**tokens.settings(issuer), "oauth_client_secret": secret, "connections": 1}
        with pytest.raises(kind, match="the token request was answered with"):
            Scene(server, tmp_path).deliver(**given)
    assert not server.requests


def test_private_token_servers_are_refused(
    server: HttpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = TokenServer()
    with HttpReceiver(tokens.react, secret="") as issuer:
        given = {**tokens.settings(issuer), "url": "https://8.8.8.8/", "allow_private": False}
        with pytest.raises(SinkRefused, match="which is not a public address"):
            Scene(server, tmp_path).deliver(**given)
    assert not tokens.issued


def _check(server: HttpReceiver, directory: Path, **more: Any) -> list[Finding]:
    given = {"url": server.url, "allow_private": True, **more}
    if "secret" in given:
        given["secret"] = settings.Secret(given["secret"])
    if "oauth_client_secret" in given:
        given["oauth_client_secret"] = settings.Secret(given["oauth_client_secret"])
    context = SinkContext(settings.StoreSettings((directory / "store").as_uri()))
    return list(WebhookSink("hook", WebhookOptions(**given), context).check())


def test_check_sends_no_change(server: HttpReceiver, tls: Tls, tmp_path: Path) -> None:
    found = _check(server, tmp_path)
    assert [(f.severity, f.message) for f in found] == [
        (Severity.WARNING, "http:// sends changes and credentials unencrypted"),
        (Severity.WARNING, "secret is not set, so requests are not signed"),
    ]
    server.react = lambda _: Answer(401)
    assert "the receiver answers OPTIONS with 401" in {f.message for f in _check(server, tmp_path, secret=SECRET)}
    server.react = lambda _: Answer(301, {"location": "/x"})
    assert [f.severity for f in _check(server, tmp_path, secret=SECRET)] == [Severity.WARNING, Severity.ERROR]
    assert {received.method for received in server.requests} == {"OPTIONS"}
    with pytest.raises(SinkRefused, match="which is not a public address"):
        _check(server, tmp_path, allow_private=False)
    tokens = TokenServer()
    with HttpReceiver(tokens.react, secret="") as issuer:
        _check(server, tmp_path, **tokens.settings(issuer))
        assert tokens.issued == ["token0"]
    with HttpReceiver(context=tls.context) as other:
        assert _check(other, tmp_path, secret=SECRET, tls_ca=tls.authority.file) == []
        with pytest.raises(SinkRefused, match="certificate verify failed"):
            _check(other, tmp_path, secret=SECRET)
