"""One client's connection: messages in, messages out, both protocols; a thread of its own.

Sends block when the client does not read: nothing is gathered for it beyond a few batches.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.query import command, copying, failure, parameter, wire
from tailrace.query.answer import Rows, Word
from tailrace.query.encoding import data_rows
from tailrace.query.failure import Failure
from tailrace.query.lexer import Token, statements, tokens, words
from tailrace.query.session import Prepared, Session
from tailrace.query.wire import Field, Reader

# What has been gathered is sent from here on; a result's pieces are larger anyway.
_FLUSH: Final = 64 * 1024
_WITH_ROWS: Final = (command.Select, command.Show, command.Explain, command.Fetch)


@dataclass
class Portal:
    prepared: Prepared
    values: Sequence[str]
    formats: Sequence[int]
    answer: Rows | Word | None = None
    sent: int = 0

    def close(self) -> None:
        if isinstance(self.answer, Rows):
            self.answer.close()


class Connection:
    def __init__(self, sock: socket.socket, session: Session) -> None:
        self._socket = sock
        self._session = session
        self._out = bytearray()
        self._prepared = session.prepared
        self._portals: dict[str, Portal] = {}
        self._is_skipping = False

    def serve(self) -> None:
        """Until the client says goodbye."""
        self._ready()
        try:
            while True:
                self._socket.settimeout(None)
                kind, body = wire.read_message(self._socket)
                if kind == b"X":
                    return
                # Also bounds how long one piece may wait for a client that does not read.
                self._socket.settimeout(self._session.settings.timeout_s)
                self._handle(kind, Reader(body))
        finally:
            self._close_portals()

    def _send(self, data: bytes | memoryview) -> None:
        if len(data) >= _FLUSH:
            self._flush()
            self._socket.sendall(data)
            return
        self._out += data
        if len(self._out) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        if self._out:
            data, self._out = self._out, bytearray()
            self._socket.sendall(data)

    def _ready(self) -> None:
        self._send(wire.ready(self._session.status))
        self._flush()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, (OSError, wire.Disconnected, wire.Malformed)) and not isinstance(error, Failure):
            raise error
        told = failure.of(error)
        self._session.failed()
        self._send(wire.error(told.sqlstate, told.message, told.hint))
        self._flush()  # a client in a pipeline waits for it, and its wish to see it would be skipped

    def _handle(self, kind: bytes, body: Reader) -> None:
        if kind == b"S":
            self._is_skipping = False
            if self._session.status == b"I":
                self._close_portals()
            self._ready()
            return
        if self._is_skipping:
            return
        self._session.begin()
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
                    pass  # what is left of a COPY that was refused
                case _:
                    raise wire.Malformed(f"a message of kind {kind!r}")
        except Exception as error:
            self._fail(error)
            self._is_skipping = True
        finally:
            self._session.end()

    # The simple protocol

    def _simple(self, text: str) -> None:
        try:
            found = list(statements(tokens(text)))
            if not found:
                self._send(wire.EMPTY_QUERY)
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
        answer = self._session.run(statement)
        if isinstance(answer, Word):
            self._send_word(answer)
            return
        try:
            self._send(wire.row_description(answer.fields))
            sent = self._send_rows(answer, [0] * len(answer.fields), 0)
            self._send(wire.complete(_tag(answer, sent)))
        finally:
            answer.close()

    def _send_word(self, answer: Word) -> None:
        for notice in answer.notices:
            self._send(notice)
        self._send(wire.complete(answer.tag))

    def _send_rows(self, answer: Rows, formats: Sequence[int], limit: int) -> int:
        sent = 0
        for batch in answer.take(limit):
            for piece in data_rows(batch, answer.types, formats):
                self._send(piece)
            sent += batch.num_rows
        return sent

    def _copy(self, statement: Sequence[Token]) -> command.Copy | None:
        if words(statement)[0].word != "copy":
            return None
        found = command.parse(statement)
        return found if isinstance(found, command.Copy) else None

    def _send_copy(self, copy: command.Copy) -> None:
        if self._session.status == b"E":
            raise Failure("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        answer = self._session.select(copy.query)
        try:
            self._send(wire.copy_out([int(copy.format == "binary")] * len(answer.fields)))
            sent = 0
            for head in copying.head(copy, answer.fields):
                self._send(head)
            for batch in answer.take(0):
                for piece in copying.pieces(copy, batch, answer.types):
                    self._send(piece)
                sent += batch.num_rows
            for tail in copying.tail(copy):
                self._send(tail)
            self._send(wire.COPY_DONE)
            self._send(wire.complete(f"COPY {sent}"))
        finally:
            answer.close()

    # The extended protocol

    def _parse(self, body: Reader) -> None:
        name, text = body.text(), body.text()
        types = tuple([body.int32() & 0xFFFFFFFF for _ in range(body.int16())])
        found = list(statements(tokens(text)))
        if len(found) > 1:
            raise Failure("42601", "cannot insert multiple commands into a prepared statement")
        if name and name in self._prepared:
            raise Failure("42P05", f'prepared statement "{name}" already exists')
        statement = found[0] if found else []
        if statement:
            command.parse(statement)
        self._prepared[name] = Prepared(statement, types)
        self._send(wire.PARSE_COMPLETE)

    def _bind(self, body: Reader) -> None:
        name, source = body.text(), body.text()
        prepared = self._named(source)
        formats = [body.int16() for _ in range(body.int16())]
        raw = [body.value() for _ in range(body.int16())]
        results = [body.int16() for _ in range(body.int16())]
        types = [*prepared.types, *[0] * max(0, len(raw) - len(prepared.types))]
        given = formats * len(raw) if len(formats) == 1 else formats or [0] * len(raw)
        if len(given) != len(raw):
            raise Failure("08P01", f"bind message has {len(formats)} parameter formats but {len(raw)} parameters")
        values = [parameter.as_sql(v, t, bool(f)) for v, t, f in zip(raw, types, given, strict=False)]
        if (old := self._portals.pop(name, None)) is not None:
            old.close()
        self._portals[name] = Portal(prepared, values, results)
        self._send(wire.BIND_COMPLETE)

    def _named(self, name: str) -> Prepared:
        if name not in self._prepared:
            raise Failure("26000", f'prepared statement "{name}" does not exist')
        return self._prepared[name]

    def _portal(self, name: str) -> Portal:
        if name not in self._portals:
            raise Failure("34000", f'portal "{name}" does not exist')
        return self._portals[name]

    def _describe(self, body: Reader) -> None:
        kind, name = body.byte(), body.text()
        if kind == b"S":
            prepared = self._named(name)
            types: Sequence[int] = prepared.types
            if any(t.text.startswith("$") for t in prepared.statement):
                columns = self._session.columns(prepared.statement)
                types = parameter.guessed(prepared.statement, prepared.types, columns)
                self._prepared[name] = Prepared(prepared.statement, tuple(types))
            self._send(wire.parameter_description([t or 25 for t in types]))
            fields = self._session.described(prepared.statement, types) if prepared.statement else None
            self._send(wire.NO_DATA if fields is None else wire.row_description(fields))
            return
        if name not in self._portals and name in self._session.cursors:  # one that was declared is a portal, too
            self._send(wire.row_description(self._session.cursors[name].fields))
            return
        portal = self._portal(name)
        answer = self._started(portal)
        if isinstance(answer, Rows):
            self._send(wire.row_description(_with_formats(answer.fields, _formats(portal, answer))))
        else:
            self._send(wire.NO_DATA)

    def _started(self, portal: Portal) -> Rows | Word | None:
        """A query begins when it is described, if not before: only then its columns are known for certain."""
        statement = portal.prepared.statement
        if portal.answer is None and statement and isinstance(command.parse(statement), _WITH_ROWS):
            portal.answer = self._answer(portal)
        return portal.answer

    def _answer(self, portal: Portal) -> Rows | Word:
        return self._session.run(portal.prepared.statement, lambda number: _value(portal, number), any(portal.formats))

    def _execute(self, body: Reader) -> None:
        name, limit = body.text(), body.int32()
        portal = self._portal(name)
        if not portal.prepared.statement:
            self._send(wire.EMPTY_QUERY)
            return
        if portal.answer is None and (copy := self._copy(portal.prepared.statement)) is not None:
            self._send_copy(copy)
            return
        answer = self._started(portal)
        if answer is None:
            answer = portal.answer = self._answer(portal)
        if isinstance(answer, Word):
            self._send_word(answer)
            return
        sent = self._send_rows(answer, _formats(portal, answer), max(limit, 0))
        portal.sent += sent
        if limit > 0 and sent == limit and not answer.is_exhausted():
            self._send(wire.SUSPENDED)
            return
        self._send(wire.complete(_tag(answer, portal.sent if limit <= 0 else sent)))
        answer.close()

    def _close(self, body: Reader) -> None:
        kind, name = body.byte(), body.text()
        if kind == b"S":
            self._prepared.pop(name, None)
        elif (portal := self._portals.pop(name, None)) is not None:
            portal.close()
        self._send(wire.CLOSE_COMPLETE)

    def _close_portals(self) -> None:
        for portal in self._portals.values():
            portal.close()
        self._portals.clear()


def _value(portal: Portal, number: int) -> str:
    if not 1 <= number <= len(portal.values):
        raise Failure("08P01", f"there is no parameter ${number}")
    return portal.values[number - 1]


def _formats(portal: Portal, answer: Rows) -> list[int]:
    if len(portal.formats) > 1:
        if len(portal.formats) != len(answer.fields):
            raise Failure("08P01", f"{len(portal.formats)} result formats for {len(answer.fields)} columns")
        return list(portal.formats)
    return [portal.formats[0] if portal.formats else 0] * len(answer.fields)


def _with_formats(fields: Sequence[Field], formats: Sequence[int]) -> list[Field]:
    return [Field(f.name, f.oid, f.size, f.modifier, n) for f, n in zip(fields, formats, strict=True)]


def _tag(answer: Rows, sent: int) -> str:
    return answer.tag if answer.tag in ("SHOW", "EXPLAIN") else f"{answer.tag} {sent}"
