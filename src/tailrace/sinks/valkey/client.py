"""A client with what the sink needs: logging in, pipelined commands, and transactions. Arrow makes the commands.

Tailrace has its own for speed (docs/decisions.md). hiredis parses the answers.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final

import hiredis

from tailrace.errors import SinkError, SinkRefused
from tailrace.sinks.valkey.command import CommandBatch, command
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.valkey_error import RECONNECTING, ServerError, as_sink_error

_CONNECT_S: Final = 10.0
_ANSWER_S: Final = 60.0
"""How long to wait for the next answer. A large transaction keeps a server busy for seconds."""
_RECEIVE_BYTES: Final = 256 * 1024


class ValkeyClient:
    """One connection. Not thread-safe."""

    def __init__(self, options: ValkeyOptions, name: str) -> None:
        """Connect and log in.

        Args:
            options: Address and credentials.
            name: Identifies the connection in the server's `CLIENT LIST`.
        """
        self._options = options
        self._reader = hiredis.Reader(replyError=ServerError, protocolError=ServerError)
        self._socket = _connect(options)
        try:
            self._log_in(name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def call(self, *arguments: str | bytes | int) -> Any:
        """Run one command and return its answer. Raises a ServerError if that is an error."""
        self._write(command(*arguments))
        (answer,) = self._answers(1)
        if isinstance(answer, ServerError):
            raise answer
        return answer

    def run(self, *arguments: str | bytes | int) -> Any:
        """Run one command and return its answer. An error is raised as the sink's."""
        try:
            return self.call(*arguments)
        except ServerError as error:
            raise as_sink_error(error, str(arguments[0])) from None

    def pipeline(self, batch: CommandBatch) -> list[Any]:
        """Run commands one after the other and return their answers, which may be errors."""
        self._write(*batch.parts())
        return self._answers(batch.count)

    def transaction(self, batch: CommandBatch) -> Sequence[Any] | None:
        """Run commands as one transaction, and return their answers, which may be errors.

        None: a key that was watched has changed, and nothing was run. Raises the sink's error if the server accepts
        one of the commands not at all; then nothing was run either.
        """
        self._write(command("MULTI"), *batch.parts(), command("EXEC"))
        *queued, answer = self._answers(batch.count + 2)
        if isinstance(answer, ServerError):
            refused = next((each for each in queued if isinstance(each, ServerError)), answer)
            raise as_sink_error(refused, "a transaction") from None
        result: Sequence[Any] | None = answer
        return result

    def _log_in(self, name: str) -> None:
        options = self._options
        batch = CommandBatch()
        if options.password is not None:
            batch.add("AUTH", options.user or "default", options.password.reveal())
        batch.add("CLIENT", "SETNAME", name)
        batch.add("SELECT", options.database)
        for answer, action in zip(self.pipeline(batch), ["log in", "log in", "SELECT"][-batch.count :], strict=True):
            if isinstance(answer, ServerError):
                raise as_sink_error(answer, action)

    def _write(self, *parts: bytes | memoryview) -> None:
        try:
            for data in parts:
                self._socket.sendall(data)
        except OSError as error:
            raise _lost(error) from error

    def _answers(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            answer = self._reader.gets()
            if answer is not False:
                found.append(answer)
                continue
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except OSError as error:
                raise _lost(error) from error
            if not data:
                raise SinkError("the server closed the connection", RECONNECTING)
            self._reader.feed(data)
        return found


def _connect(options: ValkeyOptions) -> socket.socket:
    host, port = options.address
    try:
        connection = socket.create_connection((host, port), timeout=_CONNECT_S)
    except OSError as error:
        raise SinkError(f"{host}:{port}: {error}", "Is the server running, and is this its port?") from error
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        context = options.tls_context()
        if context is not None:
            connection = context.wrap_socket(connection, server_hostname=host)
        connection.settimeout(_ANSWER_S)
        return connection
    except ssl.SSLError as error:
        connection.close()
        raise SinkRefused(
            f"{host}:{port}: {error}",
            "Set `tls_ca` to the authority that signed the server's certificate, and use the host name in the"
            " certificate in `url`. Is this a TLS port?",
        ) from error
    except OSError as error:
        connection.close()
        raise _lost(error) from error
    except BaseException:
        connection.close()
        raise


def _lost(error: OSError) -> SinkError:
    return SinkError(f"the connection to the server was lost: {error}", RECONNECTING)
