"""Classifies failures of PostgreSQL and libpq: retry, or report to the operator."""

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
RETRYING: Final = "retrying automatically; no action needed unless it persists"


class Rule(NamedTuple):
    """Applies if both SQLSTATE and message match; if there is no SQLSTATE, the message alone decides.

    libpq gives no SQLSTATE for failures to connect and for broken connections. A server whose messages are not in
    English is then treated as unreachable: Tailrace reports the failure and retries.
    """

    error: type[TailraceError]
    sqlstate: str
    pattern: str
    hint: str


class Classifier:
    """Classifies the failures of one kind of server.

    `section` is the name of its settings in hints: `source`, `sink`. `broken` is the error to retry, `refused` the
    error to report. `rules` take precedence over the rules for all servers; those in `otherwise` apply last.
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
        self._rules = (*rules, *_shared_rules(section, broken, refused), *otherwise)

    def __call__(self, failure: Failure) -> TailraceError:
        """The error to raise for a psycopg error, a broken connection, or a result that reports an error."""
        if isinstance(failure, TailraceError):
            return failure
        message, sqlstate, server_hint = _diagnostics(failure)
        for rule in self._rules:
            by_state = bool(sqlstate) and re.fullmatch(rule.sqlstate, sqlstate or "")
            if (by_state if sqlstate else rule.pattern) and re.search(rule.pattern, message, re.DOTALL):
                return rule.error(message, rule.hint + (f" (the server says: {server_hint})" if server_hint else ""))
        return self._broken(message, server_hint or RETRYING)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise psycopg's errors inside the context as Tailrace's."""
        try:
            yield
        except psycopg.Error as error:
            raise self(error) from None


def _shared_rules(section: str, broken: type[TailraceError], refused: type[TailraceError]) -> tuple[Rule, ...]:
    credentials = (
        f"check user and password: {section}.url, {section}.password_file or PGPASSWORD; "
        "for `tailrace audit` and `tailrace bridge`, check their environment variables"
    )
    return (
        Rule(refused, "55000", r"not currently accepting connections", "ask the database administrator"),
        Rule(broken, "53300", r"too many (clients|connections)|connection slots|max_wal_senders", RETRYING),
        Rule(broken, "53...", r"", RETRYING),
        Rule(broken, "57P0[1235]", r"terminating connection|shutting down|starting up|recovery mode", RETRYING),
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
        Rule(refused, "", r"permission denied for database", "grant the role CONNECT on that database"),
        Rule(refused, "3D000|57P04", r"database .* does not exist", f"correct the database in {section}.url"),
        Rule(refused, "28...|3D000|57P04", r"", credentials),
        Rule(
            refused,
            "",
            r"does not match host name",
            "connect by a name in the server's certificate; sslmode verify-ca checks the certificate but not the name",
        ),
        Rule(
            refused,
            "",
            r"certificate verify failed|self.signed certificate|unknown ca",
            f"set {section}.sslrootcert to the certificate of the authority that signed the server's certificate",
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
            f'set ssl = on at the server, or {section}.sslmode = "disable" if the network is trusted',
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
            "connect directly to PostgreSQL 14 or newer, not through a connection pooler",
        ),
        Rule(
            broken,
            "",
            r"could not translate host name|failed to resolve host",
            f"retrying automatically; if it persists, correct the host in {section}.url",
        ),
        Rule(broken, "", r"Connection refused", "check that the server runs and listens at that address"),
    )


def _diagnostics(failure: Failure) -> tuple[str, str | None, str]:
    """Message, SQLSTATE and the server's hint; never its DETAIL, which may quote a row."""
    if isinstance(failure, psycopg.Error):
        primary = failure.diag.message_primary
        return primary or _one_line(str(failure)), failure.sqlstate, failure.diag.message_hint or ""
    if isinstance(failure, pq.PGresult):
        fields = (DiagnosticField.MESSAGE_PRIMARY, DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_HINT)
        primary, sqlstate, hint = ((failure.error_field(f) or b"").decode(errors="replace") for f in fields)
        # If decoding a change failed, the context says which one.
        context = failure.error_field(DiagnosticField.CONTEXT) or b""
        if primary and (found := re.search(rb"LSN ([0-9A-F]+/[0-9A-F]+)", context)):
            primary += f", at {found[1].decode()}"
        return primary or _one_line(failure.get_error_message()), sqlstate or None, hint
    if isinstance(failure, pq.PGconn):
        return _one_line(failure.get_error_message()), None, ""
    return _one_line(str(failure)) or type(failure).__name__, None, ""


def _one_line(text: str) -> str:
    """The message on one line, without psycopg's "connection failed" and libpq's question whether the server runs."""
    lines = [line.strip() for line in text.removeprefix("connection failed: ").splitlines()]
    return "; ".join(line for line in lines if line and not line.startswith("Is the server running"))
