"""The query server: listening, TLS, authentication, connection limits and shutdown."""

from __future__ import annotations

import contextlib
import logging
import secrets
import select
import socket
import ssl
import struct
import threading
import time
from dataclasses import dataclass
from statistics import mode
from types import TracebackType
from typing import Final, Self

from tailrace.errors import ConfigError
from tailrace.lake.options import IcebergOptions
from tailrace.postgres import protocol
from tailrace.query import query_error, scram
from tailrace.query.client_connection import ClientConnection
from tailrace.query.client_session import ClientSession
from tailrace.query.duckdb_engine import DuckDBEngine
from tailrace.query.lake_view import LakeView
from tailrace.query.query_error import QueryError
from tailrace.query.scram import Exchange, Verifier
from tailrace.query.session_settings import REPORTED
from tailrace.settings import QuerySettings
from tailrace.settings.address import is_loopback
from tailrace.store import Store

_LOG: Final = logging.getLogger("tailrace.query")
# Long enough for a slow network, short enough that half-open connections do not fill the server.
_LOGIN_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 10.0


@dataclass(eq=False)
class _PendingLogin:
    """A connection that has not logged in yet."""

    socket: socket.socket
    deadline: float


@dataclass(frozen=True)
class Client:
    socket: socket.socket
    session: ClientSession
    secret: int


class QueryServer:
    """Accepts connections while its context lasts.

    Args:
        options: The lake's warehouse.
        sink: The name of the sink that writes the lake.
        settings: Address, users, TLS and limits; port 0 picks a free port.
    """

    def __init__(self, options: IcebergOptions, sink: str, settings: QuerySettings) -> None:
        self._settings = settings
        _check(settings)
        self._tls = _tls(settings)
        self._verifiers = {name: Verifier.parse(text) for name, text in settings.users.items()}
        self._pepper = secrets.token_bytes(32)
        self._usual_rounds = mode(verifier.rounds for verifier in self._verifiers.values()) if settings.users else 0
        self.lake = LakeView(Store.open(options.warehouse, options.options), sink, options.root)
        self.engine = DuckDBEngine(options, settings, self.lake)
        self._clients: dict[int, Client] = {}
        self._lock = threading.Lock()
        self._process = 0
        self._pending: list[_PendingLogin] = []
        self._stopping = threading.Event()
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
        self._start(self._accept, "accept")
        self._start(self._watch, "watch")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def clients(self) -> list[Client]:
        """The clients that have logged in."""
        with self._lock:
            return list(self._clients.values())

    @property
    def port(self) -> int:
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop accepting, cancel running statements and report that to their clients."""
        self._stopping.set()
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
            threads[-1].join(_POLL_SECONDS)
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
        while not self._stopping.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                # Pending logins count, too: otherwise their number would be unlimited.
                is_full = len(self._pending) + len(self._clients) >= 2 * self._settings.max_connections
                pending = _PendingLogin(sock, time.monotonic() + _LOGIN_SECONDS)
                self._pending += [] if is_full else [pending]
            if is_full:
                sock.close()
                continue
            self._start(self._serve, "client", pending)

    def _watch(self) -> None:
        """Cancel statements that time out or whose client disconnected. Disconnect clients that log in too slowly."""
        while not self._stopping.wait(_POLL_SECONDS):
            with self._lock:
                late = [pending for pending in self._pending if time.monotonic() > pending.deadline]
            for pending in late:
                # The plain socket's method, even with TLS: another thread is reading from the TLS socket.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(pending.socket, socket.SHUT_RDWR)
            for client in self.clients:
                client.session.check_time()
                if client.session.is_busy and _is_disconnected(client.socket):
                    client.session.cancel("client disconnected")

    def _serve(self, pending: _PendingLogin) -> None:
        process: int | None = None
        sock = pending.socket
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(_LOGIN_SECONDS)
            parameters = self._negotiate(pending)
            sock = pending.socket
            if parameters is None:
                return
            user = self._authenticate(sock, parameters)
            process, session = self._admit(sock, user, parameters)
            with self._lock:
                self._pending.remove(pending)
            ClientConnection(sock, session).serve()
        except QueryError as refusal:
            with contextlib.suppress(OSError):
                sock.sendall(protocol.error(refusal.sqlstate, refusal.message, refusal.hint, "FATAL"))
        except (protocol.ProtocolError, UnicodeDecodeError) as error:
            with contextlib.suppress(OSError):
                sock.sendall(protocol.error("08P01", f"protocol violation: {error}", "", "FATAL"))
        except (protocol.ClientDisconnectedError, OSError):
            pass  # there is no client to report to
        except Exception as error:
            _LOG.exception("connection failed")
            failure = query_error.from_exception(error)
            with contextlib.suppress(OSError):
                sock.sendall(protocol.error(failure.sqlstate, failure.message, failure.hint, "FATAL"))
        finally:
            with self._lock:
                if pending in self._pending:
                    self._pending.remove(pending)
            if process is not None:
                self._release(process)
            pending.socket.close()

    def _negotiate(self, pending: _PendingLogin) -> dict[str, str] | None:
        """Start TLS if requested and return the startup parameters; None after serving a cancel request."""
        for _ in range(3):
            sock = pending.socket
            code, body = protocol.read_startup(sock)
            if code == protocol.TLS:
                sock.sendall(b"S" if self._tls else b"N")
                if self._tls:
                    pending.socket = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                    pending.socket.do_handshake()
            elif code == protocol.GSS:
                sock.sendall(b"N")
            elif code == protocol.CANCEL:
                self._cancel(body)
                return None
            elif code >> 16 == 3:
                parameters = protocol.parameters(body)
                unknown = [name for name in parameters if name.startswith("_pq_.")]
                if code != protocol.VERSION_3 or unknown:
                    sock.sendall(protocol.negotiation(unknown))
                return parameters
            else:
                break
        raise protocol.ProtocolError("unsupported protocol version")

    def _cancel(self, body: bytes) -> None:
        if len(body) != 8:
            return
        process, secret = struct.unpack("!iI", body)
        with self._lock:
            client = self._clients.get(process)
        if client is not None and secrets.compare_digest(client.secret.to_bytes(4, "big"), secret.to_bytes(4, "big")):
            client.session.cancel()

    def _authenticate(self, sock: socket.socket, parameters: dict[str, str]) -> str:
        user = parameters.get("user", "")
        if not user:
            raise QueryError("28000", "no user name in the startup packet")
        if not self._verifiers:
            sock.sendall(protocol.authentication(0))
            return user
        if not isinstance(sock, ssl.SSLSocket) and not is_loopback(sock.getpeername()[0]):
            raise QueryError("28000", "this server requires TLS", "Connect with sslmode=require or stronger.")
        exchange = Exchange(self._verifiers.get(user) or self._unknown(user))
        try:
            sock.sendall(protocol.authentication(10, scram.MECHANISM.encode() + b"\0\0"))
            reader = protocol.BodyReader(_password(sock))
            if reader.text() != scram.MECHANISM:
                raise scram.AuthenticationError
            sock.sendall(protocol.authentication(11, exchange.first(reader.value() or b"")))
            final = exchange.final(_password(sock))
        except (scram.AuthenticationError, ValueError):
            raise QueryError("28P01", f'password authentication failed for user "{user}"') from None
        sock.sendall(protocol.authentication(12, final) + protocol.authentication(0))
        return user

    def _unknown(self, user: str) -> Verifier:
        return Verifier.for_unknown_user(user, self._pepper, self._usual_rounds)

    def _admit(self, sock: socket.socket, user: str, parameters: dict[str, str]) -> tuple[int, ClientSession]:
        version = self.lake.version()
        database = version.database if version is not None else parameters.get("database", user)
        with self._lock:
            if self._stopping.is_set():
                raise QueryError("57P03", "the server is shutting down")
            if len(self._clients) >= self._settings.max_connections:
                raise QueryError("53300", "sorry, too many clients already", "Raise max_connections in [query].")
            self._process += 1
            process, secret = self._process, secrets.randbits(32)
            max_seconds = self._settings.statement_timeout_s
            session = ClientSession(self.engine, self.lake, user, database, max_seconds, process)
            self._clients[process] = Client(sock, session, secret)
        try:
            _apply(session, parameters)
            statuses = [
                protocol.parameter_status(session.settings.display_name(n), session.settings.get(n) or "")
                for n in REPORTED
            ]
            sock.sendall(b"".join(statuses) + protocol.key_data(process, secret))
        except BaseException:
            self._release(process)
            raise
        return process, session

    def _release(self, process: int) -> None:
        with self._lock:
            client = self._clients.pop(process, None)
        if client is not None:
            client.session.close()


def _apply(session: ClientSession, parameters: dict[str, str]) -> None:
    """Apply the settings of a startup packet. The time zone is ignored: every timestamptz is sent with its offset."""
    settings = {k: v for k, v in parameters.items() if k not in ("user", "database", "replication", "options")}
    words = parameters.get("options", "").split()
    for word in [w.removeprefix("-c") for w in words if w not in ("-c",)]:
        name, equals, value = word.removeprefix("--").partition("=")
        if equals:
            settings[name.replace("-", "_") if "." not in name else name] = value.replace("\\ ", " ")
    if parameters.get("replication", "false").lower() not in ("false", "off", "0", "no"):
        raise QueryError("0A000", "replication is not supported", "Replicate from the source.")
    for name, value in settings.items():
        if name.lower() != "timezone" and not name.startswith("_pq_."):
            session.settings.change(name, value)


def _password(sock: socket.socket) -> bytes:
    kind, body = protocol.read_message(sock, protocol.MAX_BEFORE_AUTHENTICATION)
    if kind != b"p":
        raise protocol.ProtocolError("expected a password message")
    return body


def _is_disconnected(sock: socket.socket) -> bool:
    poll = select.poll()
    try:
        poll.register(sock.fileno(), select.POLLRDHUP if hasattr(select, "POLLRDHUP") else select.POLLHUP)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


def _check(settings: QuerySettings) -> None:
    if is_loopback(settings.host):
        return
    if not settings.users:
        raise ConfigError(
            f"refusing to listen on {settings.host} without users: everybody could read the lake",
            "add users to [query] users, or listen on 127.0.0.1",
        )
    if settings.tls_cert is None:
        raise ConfigError(
            f"refusing to listen on {settings.host} without TLS: traffic could be intercepted",
            "set tls_cert and tls_key in [query], or listen on 127.0.0.1",
        )


def _tls(settings: QuerySettings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or getattr(error, "reason", "") or "not a certificate and its key"
        raise ConfigError(f"tls_cert {settings.tls_cert} cannot be used: {reason}", "use PEM files") from None
    return context
