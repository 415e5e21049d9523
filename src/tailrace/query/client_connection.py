"""One client's connection: the simple and the extended query protocol, served by one thread.

Sends block while the client does not read, so at most a few batches are buffered for it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tailrace.change import Type
from tailrace.postgres import protocol
from tailrace.postgres.protocol import BodyReader, ResultField
from tailrace.query import command, copy_format, parameter, query_error
from tailrace.query.client_session import ClientSession, PreparedStatement
from tailrace.query.lexer import Token, split_statements, tokenize, without_space
from tailrace.query.query_error import QueryError
from tailrace.query.result import Completion, ResultSet
from tailrace.query.row_encoding import data_row_messages
from tailrace.query.sql.cast import convert
from tailrace.query.sql.typed import Typed

# Buffered output is sent once it reaches this size; chunks of a result are larger anyway.
_FLUSH_BYTES: Final = 64 * 1024
_WITH_ROWS: Final = (command.Select, command.Show, command.Explain, command.Fetch)


@dataclass
class Portal:
    prepared: PreparedStatement
    values: Sequence[Typed]
    formats: Sequence[int]
    result: ResultSet | Completion | None = None
    sent: int = 0

    def close(self) -> None:
        if isinstance(self.result, ResultSet):
            self.result.close()


class ClientConnection:
    def __init__(self, sock: socket.socket, session: ClientSession) -> None:
        self._socket = sock
        self._session = session
        self._out = bytearray()
        self._prepared_statements = session.prepared_statements
        self._portals: dict[str, Portal] = {}
        self._is_skipping = False

    def serve(self) -> None:
        """Handle messages until the client terminates the connection."""
        self._ready()
        try:
            while True:
                self._socket.settimeout(None)
                kind, body = protocol.read_message(self._socket)
                if kind == b"X":
                    return
                # Also limits how long one chunk waits for a client that does not read.
                self._socket.settimeout(self._session.settings.timeout_s)
                self._handle(kind, BodyReader(body))
        finally:
            self._close_portals()

    def _send(self, data: bytes | memoryview) -> None:
        if len(data) >= _FLUSH_BYTES:
            self._flush()
            self._socket.sendall(data)
            return
        self._out += data
        if len(self._out) >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._out:
            data, self._out = self._out, bytearray()
            self._socket.sendall(data)

    def _ready(self) -> None:
        self._send(protocol.ready(self._session.status))
        self._flush()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, (OSError, protocol.ClientDisconnectedError, protocol.ProtocolError)) and not isinstance(
            error, QueryError
        ):
            raise error
        failure = query_error.from_exception(error)
        self._session.fail_transaction()
        self._send(protocol.error(failure.sqlstate, failure.message, failure.hint))
        self._flush()  # a client in a pipeline waits for the error, and its Flush message would be skipped

    def _handle(self, kind: bytes, body: BodyReader) -> None:
        if kind == b"S":
            self._is_skipping = False
            if self._session.status == b"I":
                self._close_portals()
            self._ready()
            return
        if self._is_skipping:
            return
        self._session.begin_statement()
        try:
            match kind:
                case b"Q":
                    self._simple(body.text())
                case b"P":
                    self._parse(body)
                case b"B":
                    self._bind(body)
                case b"D":
                    self._describe(body)
                case b"E":
                    self._execute(body)
                case b"C":
                    self._close(body)
                case b"H":
                    self._flush()
                case b"d" | b"c" | b"f":
                    pass  # the remainder of a refused COPY
                case _:
                    raise protocol.ProtocolError(f"unknown message type {kind!r}")
        except Exception as error:
            self._fail(error)
            self._is_skipping = True
        finally:
            self._session.end_statement()

    # The simple protocol

    def _simple(self, text: str) -> None:
        try:
            found = list(split_statements(tokenize(text)))
            if not found:
                self._send(protocol.EMPTY_QUERY)
            for statement in found:
                self._run(statement)
        except Exception as error:
            self._fail(error)
        if self._session.status == b"I":
            self._close_portals()
        self._ready()

    def _run(self, statement: Sequence[Token]) -> None:
        if (copy := self._copy(statement)) is not None:
            self._send_copy(copy)
            return
        result = self._session.run(statement)
        if isinstance(result, Completion):
            self._send_completion(result)
            return
        try:
            self._send(protocol.row_description(result.fields))
            sent = self._send_rows(result, [0] * len(result.fields), 0)
            self._send(protocol.complete(_tag(result, sent)))
        finally:
            result.close()

    def _send_completion(self, result: Completion) -> None:
        for notice in result.notices:
            self._send(notice)
        self._send(protocol.complete(result.tag))

    def _send_rows(self, result: ResultSet, formats: Sequence[int], limit: int) -> int:
        sent = 0
        for batch in result.take(limit):
            for chunk in data_row_messages(batch, result.types, formats):
                self._send(chunk)
            sent += batch.num_rows
        return sent

    def _copy(self, statement: Sequence[Token]) -> command.Copy | None:
        if without_space(statement)[0].word != "copy":
            return None
        found = command.parse(statement)
        return found if isinstance(found, command.Copy) else None

    def _send_copy(self, copy: command.Copy) -> None:
        if self._session.status == b"E":
            raise QueryError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        result = self._session.select(copy.query)
        try:
            self._send(protocol.copy_out([int(copy.format == "binary")] * len(result.fields)))
            sent = 0
            for message in copy_format.header(copy, result.fields):
                self._send(message)
            for batch in result.take(0):
                for chunk in copy_format.data_messages(copy, batch, result.types):
                    self._send(chunk)
                sent += batch.num_rows
            for message in copy_format.trailer(copy):
                self._send(message)
            self._send(protocol.COPY_DONE)
            self._send(protocol.complete(f"COPY {sent}"))
        finally:
            result.close()

    # The extended protocol

    def _parse(self, body: BodyReader) -> None:
        name, text = body.text(), body.text()
        types = tuple([body.int32() & 0xFFFFFFFF for _ in range(body.int16())])
        found = list(split_statements(tokenize(text)))
        if len(found) > 1:
            raise QueryError("42601", "cannot insert multiple commands into a prepared statement")
        if name and name in self._prepared_statements:
            raise QueryError("42P05", f'prepared statement "{name}" already exists')
        statement = found[0] if found else []
        if statement:
            command.parse(statement)
        self._prepared_statements[name] = PreparedStatement(statement, types)
        self._send(protocol.PARSE_COMPLETE)

    def _bind(self, body: BodyReader) -> None:
        name, source = body.text(), body.text()
        prepared = self._prepared_statement(source)
        formats = [body.int16() for _ in range(body.int16())]
        raw = [body.value() for _ in range(body.int16())]
        results = [body.int16() for _ in range(body.int16())]
        types = [*prepared.types, *[0] * max(0, len(raw) - len(prepared.types))]
        value_formats = formats * len(raw) if len(formats) == 1 else formats or [0] * len(raw)
        if len(value_formats) != len(raw):
            raise QueryError("08P01", f"bind message has {len(formats)} parameter formats but {len(raw)} parameters")
        values = [parameter.value(v, t, bool(f)) for v, t, f in zip(raw, types, value_formats, strict=False)]
        if (old := self._portals.pop(name, None)) is not None:
            old.close()
        self._portals[name] = Portal(prepared, values, results)
        self._send(protocol.BIND_COMPLETE)

    def _prepared_statement(self, name: str) -> PreparedStatement:
        if name not in self._prepared_statements:
            raise QueryError("26000", f'prepared statement "{name}" does not exist')
        return self._prepared_statements[name]

    def _portal(self, name: str) -> Portal:
        if name not in self._portals:
            raise QueryError("34000", f'portal "{name}" does not exist')
        return self._portals[name]

    def _describe(self, body: BodyReader) -> None:
        kind, name = body.byte(), body.text()
        if kind == b"S":
            prepared = self._prepared_statement(name)
            types: Sequence[int] = prepared.types
            fields = None
            if prepared.statement:
                types, fields = self._session.describe(prepared.statement, prepared.types)
                self._prepared_statements[name] = PreparedStatement(prepared.statement, tuple(types))
            self._send(protocol.parameter_description([t or 25 for t in types]))
            self._send(protocol.NO_DATA if fields is None else protocol.row_description(fields))
            return
        if name not in self._portals and name in self._session.cursors:  # a declared cursor is a portal, too
            self._send(protocol.row_description(self._session.cursors[name].fields))
            return
        portal = self._portal(name)
        result = self._start(portal)
        if isinstance(result, ResultSet):
            self._send(protocol.row_description(_with_formats(result.fields, _formats(portal, result))))
        else:
            self._send(protocol.NO_DATA)

    def _start(self, portal: Portal) -> ResultSet | Completion | None:
        """Start a query no later than at Describe: its columns are certain only once it runs."""
        statement = portal.prepared.statement
        if portal.result is None and statement and isinstance(command.parse(statement), _WITH_ROWS):
            portal.result = self._run_portal(portal)
        return portal.result

    def _run_portal(self, portal: Portal) -> ResultSet | Completion:
        types: dict[int, Type] = {}
        return self._session.run(
            portal.prepared.statement, lambda number: _parameter_value(portal, number, types), any(portal.formats)
        )

    def _execute(self, body: BodyReader) -> None:
        name, limit = body.text(), body.int32()
        portal = self._portal(name)
        if not portal.prepared.statement:
            self._send(protocol.EMPTY_QUERY)
            return
        if portal.result is None and (copy := self._copy(portal.prepared.statement)) is not None:
            self._send_copy(copy)
            return
        result = self._start(portal)
        if result is None:
            result = portal.result = self._run_portal(portal)
        if isinstance(result, Completion):
            self._send_completion(result)
            return
        sent = self._send_rows(result, _formats(portal, result), max(limit, 0))
        portal.sent += sent
        if limit > 0 and sent == limit and not result.is_exhausted():
            self._send(protocol.SUSPENDED)
            return
        self._send(protocol.complete(_tag(result, portal.sent if limit <= 0 else sent)))
        result.close()

    def _close(self, body: BodyReader) -> None:
        kind, name = body.byte(), body.text()
        if kind == b"S":
            self._prepared_statements.pop(name, None)
        elif (portal := self._portals.pop(name, None)) is not None:
            portal.close()
        self._send(protocol.CLOSE_COMPLETE)

    def _close_portals(self) -> None:
        for portal in self._portals.values():
            portal.close()
        self._portals.clear()


def _parameter_value(portal: Portal, number: int, types: dict[int, Type]) -> Typed:
    """A parameter's value. One without a type gets the type that its first place in the statement demands."""
    if not 1 <= number <= len(portal.values):
        raise QueryError("08P01", f"there is no parameter ${number}")
    value = portal.values[number - 1]
    if number in types:
        return convert(value, types[number])
    return replace(value, infer=lambda type_: types.setdefault(number, type_)) if value.is_unknown else value


def _formats(portal: Portal, result: ResultSet) -> list[int]:
    if len(portal.formats) > 1:
        if len(portal.formats) != len(result.fields):
            raise QueryError("08P01", f"{len(portal.formats)} result formats for {len(result.fields)} columns")
        return list(portal.formats)
    return [portal.formats[0] if portal.formats else 0] * len(result.fields)


def _with_formats(fields: Sequence[ResultField], formats: Sequence[int]) -> list[ResultField]:
    return [ResultField(f.name, f.oid, f.size, f.modifier, n) for f, n in zip(fields, formats, strict=True)]


def _tag(result: ResultSet, sent: int) -> str:
    return result.tag if result.tag in ("SHOW", "EXPLAIN") else f"{result.tag} {sent}"
