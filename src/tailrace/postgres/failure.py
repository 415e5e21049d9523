"""What a failure of PostgreSQL or libpq means: wait and try again, or ask the operator."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.pq import DiagnosticField

from tailrace.errors import TailraceError

Failure = BaseException | pq.abc.PGconn | pq.abc.PGresult
WAIT: Final = "it is tried again; nothing has to be done unless it stays so"


class Rule(NamedTuple):
    """Applies when SQLSTATE and words both match; the words alone decide where there is no SQLSTATE.

    libpq gives none for anything that goes wrong while connecting or when a connection breaks. A server that
    speaks another language than English is then taken for unreachable: retried, and told about.
    """

    error: type[TailraceError]
    sqlstate: str
    words: str
    hint: str


class Classifier:
    """Failures of one kind of server. `section` is what hints call its settings: `source`, `sink`.

    Rules of its own come before those that hold for any server, or, in `otherwise`, after them.
    """

    def __init__(
        self,
        section: str,
        broken: type[TailraceError],
        refused: type[TailraceError],
        rules: Sequence[Rule] = (),
        otherwise: Sequence[Rule] = (),
    ) -> None:
        self._broken = broken
        self._rules = (*rules, *_shared(section, broken, refused), *otherwise)

    def __call__(self, failure: Failure) -> TailraceError:
        """What to raise for an error of psycopg, a connection that broke, or a result that is an error."""
        if isinstance(failure, TailraceError):
            return failure
        message, sqlstate, server_hint = _words(failure)
        for rule in self._rules:
            by_state = bool(sqlstate) and re.fullmatch(rule.sqlstate, sqlstate or "")
            if (by_state if sqlstate else rule.words) and re.search(rule.words, message, re.DOTALL):
                return rule.error(message, rule.hint + (f" (the server says: {server_hint})" if server_hint else ""))
        return self._broken(message, server_hint or WAIT)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of psycopg leave as ours."""
        try:
            yield
        except psycopg.Error as error:
            raise self(error) from None


def _shared(section: str, broken: type[TailraceError], refused: type[TailraceError]) -> tuple[Rule, ...]:
    credentials = (
        f"check user and password: {section}.url, {section}.password_file or PGPASSWORD; "
        "of `tailrace audit` and `tailrace bridge`, the environment that they are run with"
    )
    return (
        Rule(refused, "55000", r"not currently accepting connections", "ask who administers the database"),
        Rule(broken, "53300", r"too many (clients|connections)|connection slots|max_wal_senders", WAIT),
        Rule(broken, "53...", r"", WAIT),
        Rule(broken, "57P0[1235]", r"terminating connection|shutting down|starting up|recovery mode", WAIT),
        Rule(
            refused,
            "28000",
            r"no pg_hba.conf entry|pg_hba.conf rejects",
            "add a line for this user, database and address to pg_hba.conf, and reload the server",
        ),
        Rule(
            refused,
            "28...",
            r"authentication failed|no password supplied|role .* does not exist|not permitted to log in",
            credentials,
        ),
        Rule(refused, "3D000|57P04", r"database .* does not exist", f"correct the database in {section}.url"),
        Rule(refused, "28...|3D000|57P04", r"", credentials),
        Rule(
            refused,
            "",
            r"does not match host name",
            "connect by a name that is in the server's certificate; verify-ca checks the certificate but no name",
        ),
        Rule(
            refused,
            "",
            r"certificate verify failed|self.signed certificate|unknown ca",
            f"set {section}.sslrootcert to the certificate of the authority that signed the server's",
        ),
        Rule(
            refused,
            "",
            r"root certificate file .* does not exist|could not (read|load) .*certificate",
            f"correct {section}.sslrootcert",
        ),
        Rule(
            refused,
            "",
            r"server does not support SSL",
            f'set ssl = on at the server, or {section}.sslmode = "disable" where the network is trusted',
        ),
        Rule(
            refused,
            "",
            r"server does not support GSS|channel binding|invalid \w+ value|invalid port number",
            f"correct {section}.url",
        ),
        Rule(
            refused,
            "",
            r"unrecognized configuration parameter|unsupported startup parameter",
            "connect to PostgreSQL 14 or newer itself, not through a connection pooler",
        ),
        Rule(
            broken,
            "",
            r"could not translate host name|failed to resolve host",
            f"it is tried again; if it stays so, correct the host in {section}.url",
        ),
        Rule(broken, "", r"Connection refused", "is the server running, and does it listen at that address?"),
    )


def _words(failure: Failure) -> tuple[str, str | None, str]:
    """Message, SQLSTATE, the server's hint. Never its DETAIL: that may quote a row."""
    if isinstance(failure, psycopg.Error):
        primary = failure.diag.message_primary
        return primary or _one_line(str(failure)), failure.sqlstate, failure.diag.message_hint or ""
    if isinstance(failure, pq.PGresult):
        fields = (DiagnosticField.MESSAGE_PRIMARY, DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_HINT)
        primary, sqlstate, hint = ((failure.error_field(f) or b"").decode(errors="replace") for f in fields)
        # Where decoding a change failed, the context says which.
        context = failure.error_field(DiagnosticField.CONTEXT) or b""
        if primary and (found := re.search(rb"LSN ([0-9A-F]+/[0-9A-F]+)", context)):
            primary += f", at {found[1].decode()}"
        return primary or _one_line(failure.get_error_message()), sqlstate or None, hint
    if isinstance(failure, pq.PGconn):
        return _one_line(failure.get_error_message()), None, ""
    return _one_line(str(failure)) or type(failure).__name__, None, ""


def _one_line(text: str) -> str:
    """Without psycopg's words that it failed, and libpq's question whether the server runs: both are said anyway."""
    lines = [line.strip() for line in text.removeprefix("connection failed: ").splitlines()]
    return "; ".join(line for line in lines if line and not line.startswith("Is the server running"))
