"""Error classes for errors of the destination: retry, ask the operator, or a change that it can never accept."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from tailrace.errors import PoisonError, SinkError, SinkRefused, TailraceError
from tailrace.postgres.classifier import RETRYING, Classifier, Rule
from tailrace.sinks.database.staged_rows import Positions, StagingField

_RULES: Final = (
    # A deadlock, a lock timeout, or the destination has become a standby.
    Rule(SinkError, "40...|55P03|25006", r"", RETRYING),
    Rule(
        SinkRefused,
        "42501",
        r"",
        "the sink's user must own its tables and be allowed to create schemas and temporary tables in the database: "
        "`tailrace check` prints the SQL",
    ),
)
_OTHERWISE: Final = (
    Rule(
        SinkRefused,
        "2BP01",
        r"",
        "an object at the destination depends on it: drop that object and recreate it afterwards",
    ),
    Rule(
        SinkRefused,
        "23...",
        r"",
        "the source's rows violate a constraint that was added at the destination: drop it",
    ),
    Rule(
        SinkRefused,
        "(0A|42|3F|22|54|55|P0|38|39|44)...",
        r"",
        "see the server's log; correct the cause, or load the tables again",
    ),
)

classify: Final = Classifier("sink", SinkError, SinkRefused, _RULES, _OTHERWISE)
classify_errors: Final = classify.errors


def copy_error(
    error: psycopg.Error, table: str, fields: tuple[StagingField, ...], positions: Positions | None
) -> TailraceError:
    """The error of a failed COPY: PoisonError if the destination does not accept a value.

    Args:
        error: What psycopg raised.
        table: The target, for the message.
        fields: The columns that were copied.
        positions: The positions of the rows, if known.
    """
    if not re.match("22|54|0A", error.sqlstate or ""):
        return classify(error)
    # The context quotes the value: use only its line and column.
    found = re.match(r"COPY .*?, line (\d+)(?:, column (\w+))?", error.diag.context or "", re.DOTALL)
    where = ""
    positions_of: tuple[str, ...] = ()
    if found:
        names = {f.name: f.type if isinstance(f.type, str) else f.type.name for f in fields}
        where = f", column {names.get(found[2], found[2])}" if found[2] else ""
        if positions is not None:
            positions_of = (str(positions[int(found[1]) - 1]),)
    at = f" at {positions_of[0]}" if positions_of else ""
    return PoisonError(
        f"{table}{where}{at}: the destination does not accept a value: {describe(error)}",
        "if its type there differs or an enum lacks a label, correct that, or make it a dead letter (on_poison)",
        positions_of,
    )


def describe(error: psycopg.Error) -> str:
    """What is wrong with a value, without quoting the value."""
    return re.sub("(?<!^)(?=[A-Z])", " ", type(error).__name__).lower()
