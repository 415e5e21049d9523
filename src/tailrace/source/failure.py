"""What a failure of PostgreSQL or libpq means: wait and try again, ask the operator, or the slot is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.pq import DiagnosticField

from tailrace.errors import SlotLost, SourceError, SourceRefused, TailraceError

Failure = BaseException | pq.abc.PGconn | pq.abc.PGresult


class _Rule(NamedTuple):
    """Applies when SQLSTATE and words both match; the words alone decide where there is no SQLSTATE.

    libpq gives none for anything that goes wrong while connecting or when a connection breaks. A server that
    speaks another language than English is then taken for unreachable: retried, and told about.
    """

    error: type[TailraceError]
    sqlstate: str
    words: str
    hint: str


_SLOT_LOST = (
    "changes were lost with it: drop the slot, run capture again, and take new snapshots of the tables; "
    "raise max_slot_wal_keep_size so that it does not happen again"
)
_CHECK = "run `tailrace check`: it prints the SQL that mends it"
PUBLICATION_MISSED: Final = (
    "it was missing when changes were made, and this slot has lost them: make sure that it is there now, "
    "drop the slot, then run `tailrace capture --accept-gap`, which takes new snapshots"
)
_CREDENTIALS = "check user and password: source.url, source.password_file or PGPASSWORD"
_WAIT = "it is tried again; nothing has to be done unless it stays so"

_RULES: Final = (
    _Rule(
        SlotLost,
        "55000",
        r"can no longer (get changes from|access|be)|slot .*invalidated|cannot read from .*slot",
        _SLOT_LOST,
    ),
    _Rule(SlotLost, "58P01", r"WAL segment \S+ has already been removed", _SLOT_LOST),
    _Rule(
        SlotLost,
        "42704",
        r"replication slot .* does not exist",
        "somebody dropped it: run capture again for a new one, and take new snapshots of the tables",
    ),
    _Rule(SourceRefused, "42704", r"publication .* does not exist", PUBLICATION_MISSED),
    _Rule(SourceRefused, "55000", r"wal_level", "set wal_level = logical and restart the server"),
    _Rule(SourceRefused, "55000", r"not currently accepting connections", "ask who administers the database"),
    _Rule(SourceRefused, "55000", r"", _CHECK),
    _Rule(
        SourceError,
        "55006",
        r"replication slot .* is active",
        "another capture runs, or the server has not noticed yet that the last one is gone (wal_sender_timeout)",
    ),
    _Rule(SourceRefused, "53400", r"all replication slots are in use", _CHECK),
    _Rule(SourceError, "53300", r"too many (clients|connections)|connection slots|max_wal_senders", _WAIT),
    _Rule(SourceError, "53...", r"", _WAIT),
    _Rule(SourceError, "57P0[1235]", r"terminating connection|shutting down|starting up|recovery mode", _WAIT),
    _Rule(
        SourceRefused,
        "28000",
        r"no pg_hba.conf entry|pg_hba.conf rejects",
        "add a line for this user, database and address to pg_hba.conf, and reload the server",
    ),
    _Rule(
        SourceRefused,
        "28...",
        r"authentication failed|no password supplied|role .* does not exist|not permitted to log in",
        _CREDENTIALS,
    ),
    _Rule(SourceRefused, "3D000|57P04", r"database .* does not exist", "correct the database in source.url"),
    _Rule(SourceRefused, "28...|3D000|57P04", r"", _CREDENTIALS),
    _Rule(SourceRefused, "42501", r"permission denied|must be (superuser|owner)|must have", _CHECK),
    _Rule(
        SourceRefused,
        "22021|22P05",
        r"",
        "the database holds bytes that are no text in its encoding (SQL_ASCII accepts anything): correct the row",
    ),
    _Rule(
        SourceRefused,
        "54000|XX000",
        r"invalid memory alloc|enlarge string buffer|out of memory",
        "a row is larger than PostgreSQL can send as text (1 GB): take that table out of the publication",
    ),
    _Rule(SourceRefused, "(0A|42|3F|22|54)...", r"", _CHECK),
    _Rule(
        SourceRefused,
        "",
        r"does not match host name",
        "connect by a name that is in the server's certificate; verify-ca checks the certificate but no name",
    ),
    _Rule(
        SourceRefused,
        "",
        r"certificate verify failed|self.signed certificate|unknown ca",
        "set source.sslrootcert to the certificate of the authority that signed the server's",
    ),
    _Rule(
        SourceRefused,
        "",
        r"root certificate file .* does not exist|could not (read|load) .*certificate",
        "correct source.sslrootcert",
    ),
    _Rule(
        SourceRefused,
        "",
        r"server does not support SSL",
        'set ssl = on at the server, or source.sslmode = "disable" where the network is trusted',
    ),
    _Rule(
        SourceRefused,
        "",
        r"server does not support GSS|channel binding|invalid \w+ value|invalid port number",
        "correct source.url",
    ),
    _Rule(
        SourceRefused,
        "",
        r"unrecognized configuration parameter|unsupported startup parameter",
        "connect to PostgreSQL 14 or newer itself, not through a connection pooler",
    ),
    _Rule(
        SourceError,
        "",
        r"could not translate host name|failed to resolve host",
        "it is tried again; if it stays so, correct the host in source.url",
    ),
    _Rule(SourceError, "", r"Connection refused", "is the server running, and does it listen at that address?"),
)


def classify(failure: Failure) -> TailraceError:
    """What to raise for an error of psycopg, a connection that broke, or a result that is an error."""
    if isinstance(failure, TailraceError):
        return failure
    message, sqlstate, server_hint = _words(failure)
    for rule in _RULES:
        by_state = bool(sqlstate) and re.fullmatch(rule.sqlstate, sqlstate or "")
        if (by_state if sqlstate else rule.words) and re.search(rule.words, message, re.DOTALL):
            return rule.error(message, rule.hint + (f" (the server says: {server_hint})" if server_hint else ""))
    return SourceError(message, server_hint or _WAIT)


@contextmanager
def classified() -> Iterator[None]:
    """Errors of psycopg leave as ours."""
    try:
        yield
    except psycopg.Error as error:
        raise classify(error) from None


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
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
