"""The query server: who may connect from where, how they are let in, how many at once, and how all of it ends."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import secrets
import select
import socket
import ssl
import struct
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tailrace.errors import ConfigError
from tailrace.query import failure, scram, wire
from tailrace.query.connection import Connection
from tailrace.query.engine import Engine
from tailrace.query.failure import Failure
from tailrace.query.lake import Lake
from tailrace.query.scram import Exchange, Verifier
from tailrace.query.session import Session
from tailrace.query.session_settings import REPORTED
from tailrace.settings import Query
from tailrace.sinks.iceberg.options import IcebergOptions
from tailrace.store import Store

_LOG: Final = logging.getLogger("tailrace.query")
# Long enough for a slow line, short enough that half-open connections do not fill the server.
_LOGIN_SECONDS: Final = 20.0
_WATCH_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 10.0


@dataclass(eq=False)
class _Arriving:
    """Somebody who has not been let in yet."""

    socket: socket.socket
    deadline: float


@dataclass(frozen=True)
class Client:
    socket: socket.socket
    session: Session
    secret: int


class Server:
    """Listens while its context lasts."""

    def __init__(self, options: IcebergOptions, sink: str, settings: Query) -> None:
        self._settings = settings
        _check(settings)
        self._tls = _tls(settings)
        self._verifiers = {name: Verifier.of(text) for name, text in settings.users.items()}
        self._pepper = secrets.token_bytes(32)
        self.lake = Lake(Store.open(options.warehouse, options.options), sink, options.root)
        self.engine = Engine(options, settings, self.lake)
        self._clients: dict[int, Client] = {}
        self._lock = threading.Lock()
        self._process = 0
        self._arriving: list[_Arriving] = []
        self._over = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((self._settings.host, self._settings.port))
        except OSError as error:
            self._listener.close()
            self.engine.close()
            address = f"{self._settings.host}:{self._settings.port}"
            raise ConfigError(f"cannot listen on {address}: {error.strerror}", "choose another --port") from None
        self._listener.listen(128)
        self._start(self._accept, "accepting")
        self._start(self._watch, "watching")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def clients(self) -> list[Client]:
        """Those that were let in."""
        with self._lock:
            return list(self._clients.values())

    @property
    def port(self) -> int:
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Statements under way are cancelled, and their clients told so."""
        self._over.set()
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            clients, threads = list(self._clients.values()), list(self._threads)
        for client in clients:
            client.session.cancel("terminating connection due to administrator command")
            with contextlib.suppress(OSError):
                client.socket.shutdown(socket.SHUT_RD)
        deadline = time.monotonic() + _CLOSE_SECONDS
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            for client in clients:
                client.session.check_time()
            threads[-1].join(_WATCH_SECONDS)
            threads = [thread for thread in threads if thread.is_alive()] or threads[-1:]
        for client in clients:
            with contextlib.suppress(OSError):
                client.socket.shutdown(socket.SHUT_RDWR)
        self.engine.close()

    def _start(self, target: object, name: str, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)  # type: ignore[arg-type]
        with self._lock:
            self._threads = {t for t in self._threads if t.is_alive()} | {thread}
        thread.start()

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._over.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                # Also those that have not said who they are: else they could be any number.
                is_full = len(self._arriving) + len(self._clients) >= 2 * self._settings.max_connections
                arriving = _Arriving(sock, time.monotonic() + _LOGIN_SECONDS)
                self._arriving += [] if is_full else [arriving]
            if is_full:
                sock.close()
                continue
            self._start(self._serve, "client", arriving)

    def _watch(self) -> None:
        """Statements that take too long, and those whose client is gone; whoever does not say in time who it is."""
        while not self._over.wait(_WATCH_SECONDS):
            with self._lock:
                late = [arriving for arriving in self._arriving if time.monotonic() > arriving.deadline]
            for arriving in late:
                # A plain socket's, also of one with TLS, which another thread is reading from.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(arriving.socket, socket.SHUT_RDWR)
            for client in self.clients:
                client.session.check_time()
                if client.session.is_busy and _is_gone(client.socket):
                    client.session.cancel("the client is gone")

    def _serve(self, arriving: _Arriving) -> None:
        process: int | None = None
        sock = arriving.socket
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(_LOGIN_SECONDS)
            parameters = self._greeted(arriving)
            sock = arriving.socket
            if parameters is None:
                return
            user = self._authenticated(sock, parameters)
            process, session = self._admitted(sock, user, parameters)
            with self._lock:
                self._arriving.remove(arriving)
            Connection(sock, session).serve()
        except Failure as refusal:
            with contextlib.suppress(OSError):
                sock.sendall(wire.error(refusal.sqlstate, refusal.message, refusal.hint, "FATAL"))
        except (wire.Malformed, UnicodeDecodeError) as error:
            with contextlib.suppress(OSError):
                sock.sendall(wire.error("08P01", f"protocol violation: {error}", "", "FATAL"))
        except (wire.Disconnected, OSError):
            pass  # nobody is left to be told
        except Exception as error:
            _LOG.exception("a connection broke off")
            told = failure.of(error)
            with contextlib.suppress(OSError):
                sock.sendall(wire.error(told.sqlstate, told.message, told.hint, "FATAL"))
        finally:
            with self._lock:
                if arriving in self._arriving:
                    self._arriving.remove(arriving)
                client = self._clients.pop(process, None) if process is not None else None
            if client is not None:
                client.session.close()
            arriving.socket.close()

    def _greeted(self, arriving: _Arriving) -> dict[str, str] | None:
        """TLS where it is asked for; then the startup packet, or a request to cancel, which is carried out."""
        for _ in range(3):
            sock = arriving.socket
            code, body = wire.read_startup(sock)
            if code == wire.TLS:
                sock.sendall(b"S" if self._tls else b"N")
                if self._tls:
                    arriving.socket = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                    arriving.socket.do_handshake()
            elif code == wire.GSS:
                sock.sendall(b"N")
            elif code == wire.CANCEL:
                self._cancel(body)
                return None
            elif code >> 16 == 3:
                parameters = wire.parameters(body)
                unknown = [name for name in parameters if name.startswith("_pq_.")]
                if code != wire.VERSION_3 or unknown:
                    sock.sendall(wire.negotiation(unknown))
                return parameters
            else:
                break
        raise wire.Malformed("an unknown version of the protocol")

    def _cancel(self, body: bytes) -> None:
        if len(body) != 8:
            return
        process, secret = struct.unpack("!iI", body)
        with self._lock:
            client = self._clients.get(process)
        if client is not None and secrets.compare_digest(client.secret.to_bytes(4, "big"), secret.to_bytes(4, "big")):
            client.session.cancel()

    def _authenticated(self, sock: socket.socket, parameters: dict[str, str]) -> str:
        user = parameters.get("user", "")
        if not user:
            raise Failure("28000", "no user name in the startup packet")
        if not self._verifiers:
            sock.sendall(wire.authentication(0))
            return user
        if not isinstance(sock, ssl.SSLSocket) and not _is_loopback(sock.getpeername()[0]):
            raise Failure("28000", "this server lets nobody in without TLS", "connect with sslmode=require or better")
        exchange = Exchange(self._verifiers.get(user) or Verifier.of_nobody(user, self._pepper))
        try:
            sock.sendall(wire.authentication(10, scram.MECHANISM.encode() + b"\0\0"))
            reader = wire.Reader(_password(sock))
            if reader.text() != scram.MECHANISM:
                raise scram.Refused
            sock.sendall(wire.authentication(11, exchange.first(reader.value() or b"")))
            final = exchange.final(_password(sock))
        except (scram.Refused, ValueError):
            raise Failure("28P01", f'password authentication failed for user "{user}"') from None
        sock.sendall(wire.authentication(12, final) + wire.authentication(0))
        return user

    def _admitted(self, sock: socket.socket, user: str, parameters: dict[str, str]) -> tuple[int, Session]:
        moment = self.lake.moment()
        database = moment.database if moment is not None else parameters.get("database", user)
        with self._lock:
            if self._over.is_set():
                raise Failure("57P03", "the server is shutting down")
            if len(self._clients) >= self._settings.max_connections:
                raise Failure("53300", "sorry, too many clients already", "raise max_connections in [query]")
            self._process += 1
            process, secret = self._process, secrets.randbits(32)
            most = self._settings.statement_timeout_s
            session = Session(self.engine, self.lake, user, database, most, process)
            self._clients[process] = Client(sock, session, secret)
        _apply(session, parameters)
        told = [wire.parameter_status(session.settings.told(n), session.settings.get(n) or "") for n in REPORTED]
        sock.sendall(b"".join(told) + wire.key_data(process, secret))
        return process, session


def _apply(session: Session, parameters: dict[str, str]) -> None:
    """Settings of a startup packet. A time zone is left out: every moment that is told carries its offset."""
    given = {k: v for k, v in parameters.items() if k not in ("user", "database", "replication", "options")}
    words = parameters.get("options", "").split()
    for word in [w.removeprefix("-c") for w in words if w not in ("-c",)]:
        name, equals, value = word.removeprefix("--").partition("=")
        if equals:
            given[name.replace("-", "_") if "." not in name else name] = value.replace("\\ ", " ")
    if parameters.get("replication", "false").lower() not in ("false", "off", "0", "no"):
        raise Failure("0A000", "there is no replication here", "replicate from the source")
    for name, value in given.items():
        if name.lower() != "timezone" and not name.startswith("_pq_."):
            session.settings.change(name, value)


def _password(sock: socket.socket) -> bytes:
    kind, body = wire.read_message(sock, wire.MAX_BEFORE_AUTHENTICATION)
    if kind != b"p":
        raise wire.Malformed("something else than a password")
    return body


def _is_gone(sock: socket.socket) -> bool:
    poll = select.poll()
    try:
        poll.register(sock.fileno(), select.POLLRDHUP if hasattr(select, "POLLRDHUP") else select.POLLHUP)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False


def _check(settings: Query) -> None:
    if _is_loopback(settings.host):
        return
    if not settings.users:
        raise ConfigError(
            f"without users, {settings.host} is no address to listen on: everybody could read the lake",
            "name users in [query] users, or listen on 127.0.0.1",
        )
    if settings.tls_cert is None:
        raise ConfigError(
            f"without TLS, {settings.host} is no address to listen on: anybody on the way could read along",
            "set tls_cert and tls_key in [query], or listen on 127.0.0.1",
        )


def _tls(settings: Query) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or getattr(error, "reason", "") or "not a certificate and its key"
        raise ConfigError(f"tls_cert {settings.tls_cert} cannot be used: {reason}", "PEM files are expected") from None
    return context
