"""Error classes for errors of the server: retry, ask the operator, or a change that it can never accept."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pymysql
from pymysql.constants import ER

from tailrace.errors import PoisonError, SinkError, SinkRefused, TailraceError
from tailrace.sinks.database.staged_rows import StagedRows

DUPLICATE_KEY: Final = 1062
NO_SUCH_TABLE: Final = 1146
NO_SUCH_COLUMN: Final = 1054
NOTHING_TO_DROP: Final = 1091
UNKNOWN_DATABASE: Final = 1049
LOCK_TIMEOUT: Final = 1205
ENGINE_UNAVAILABLE: Final = frozenset({1286, 3161})
_RETRYING: Final = "retrying automatically; no action needed unless it persists"
_LOST: Final = frozenset({0, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 4031})
"""The connection is lost, or the server shuts down."""
_BUSY: Final = frozenset(
    {1021, 1030, 1037, 1040, 1041, 1114, 1180, 1194, 1195, 1203, LOCK_TIMEOUT, 1213, 1226, 1290, 1317, 1836, 3572}
)
"""Deadlocks, lock timeouts, a full disk, too many connections, staging tables that a crash has damaged, and a server
that is read-only for now."""
_HINTS: Final = {
    "check user and password: url, password_file, or the environment": {1045, 1698, 1862, 2059, 2061},
    "grant the user CREATE, ALTER, DROP, INDEX, SELECT, INSERT, UPDATE, DELETE and CREATE TEMPORARY TABLES": {
        *(1044, 1142, 1143, 1227, 1370)
    },
    "create the database, or correct its name in url": {UNKNOWN_DATABASE},
    "set local_infile = 1 at the server: LOAD DATA LOCAL writes large steps": {1148, 3948, 4166},
    "correct tls and the files that it needs": {2026},
    "the sink needs a larger max_allowed_packet at the server": {1153},
    "the source's rows violate a constraint that was added at the destination: drop it": {
        1216,
        1217,
        1451,
        1452,
        3819,
        4025,
    },
}
_VALUE: Final = frozenset({1048, 1264, 1265, 1292, 1366, 1367, 1406, 1411, 1425, 1426, 1441, 3140, 3141, 1300, 1301})
"""The server does not accept a value. Messages of these quote it."""
_PLACE: Final = re.compile(r"(?:column (.+?) )?at row (\d+)", re.DOTALL)


def number_of(error: pymysql.Error) -> int:
    """The error's number; 0 for an error of a connection that is closed."""
    return int(error.args[0]) if error.args and isinstance(error.args[0], int) else 0


def classify(error: pymysql.Error) -> TailraceError:
    """The error to raise for one of PyMySQL's."""
    number = number_of(error)
    if isinstance(getattr(error, "original_exception", None), ssl.SSLCertVerificationError):
        return SinkRefused(_message(error), "set tls_ca to the authority that signed the server's certificate")
    if number in _LOST | _BUSY:
        return SinkError(f"{_message(error)} ({number})", _RETRYING)
    hint = next((hint for hint, numbers in _HINTS.items() if number in numbers), "")
    return SinkRefused(
        f"{_message(error)} ({number})", hint or "see the server's log; correct the cause, or load the tables again"
    )


@contextmanager
def classify_errors() -> Iterator[None]:
    """Raise PyMySQL's errors inside the context as Tailrace's."""
    try:
        yield
    except pymysql.Error as error:
        raise classify(error) from None


def is_value_error(number: int) -> bool:
    """Whether the server does not accept a value."""
    return number in _VALUE


def value_error(number: int, message: str, table: str, columns: Sequence[str], rows: StagedRows) -> PoisonError:
    """The error for a value that the server does not accept.

    Args:
        number: The number of the error or warning.
        message: Its text, of which only the row's number and the column are used.
        table: The target, for the message.
        columns: The names under which the rows were written.
        rows: The rows.
    """
    found = _PLACE.search(message)
    column = ""
    at: tuple[str, ...] = ()
    if found is not None:
        fields = dict(zip(columns, rows.fields, strict=False))
        # 'name', or `database`.`table`.`name`.
        name = (found[1] or "").rpartition("`.`")[2].strip("`'")
        if name in fields:
            declared = fields[name].type
            column = f", column {declared if isinstance(declared, str) else declared.name}"
        row = int(found[2]) - 1
        at = (str(rows.positions[row]),) if rows.positions is not None and 0 <= row < rows.count else ()
    where = f" at {at[0]}" if at else ""
    return PoisonError(
        f"{table}{column}{where}: the destination does not accept a value: {describe(number)}",
        "if its type there differs, correct that, or make it a dead letter (on_poison)",
        at,
    )


def describe(number: int) -> str:
    """What an error's number means, without the values that messages quote."""
    names = [name for name, value in vars(ER).items() if value == number]
    return f"{names[0].replace('_', ' ').lower() if names else 'error'} ({number})"


def _message(error: pymysql.Error) -> str:
    number = number_of(error)
    if is_value_error(number) or number == DUPLICATE_KEY:
        return describe(number)
    return str(error.args[1]) if len(error.args) > 1 and error.args[1] else "the connection to the server was lost"
