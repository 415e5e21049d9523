"""What a failure of the destination means: wait, ask the operator, or a change that it can never take."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from tailrace.errors import PoisonError, SinkDiverged, SinkError, SinkRefused, TailraceError
from tailrace.postgres.failure import WAIT, Classifier, Rule
from tailrace.sinks.base import REWIND
from tailrace.sinks.database.rows import Field, Positions

_RULES: Final = (
    # Somebody at the destination waits for us as we for him, or it has become a standby.
    Rule(SinkError, "40...|55P03|25006", r"", WAIT),
    Rule(
        SinkRefused,
        "42501",
        r"",
        "the sink's user must own its tables, and be allowed to create schemas and temporary tables in the database",
    ),
)
_OTHERWISE: Final = (
    Rule(
        SinkRefused,
        "2BP01",
        r"",
        "something at the destination is made from it: drop that, and make it again afterwards",
    ),
    Rule(
        SinkRefused,
        "23...",
        r"",
        "a constraint that was added at the destination does not hold for the source's rows: drop it",
    ),
    Rule(
        SinkRefused,
        "(0A|42|3F|22|54|55|P0|38|39|44)...",
        r"",
        "see what the server's log says; mend it, or load the tables anew",
    ),
)

classify: Final = Classifier("sink", SinkError, SinkRefused, _RULES, _OTHERWISE)
classified: Final = classify.errors


def refused_rows(
    error: psycopg.Error, table: str, fields: tuple[Field, ...], positions: Positions | None
) -> TailraceError:
    """Of a COPY that failed: a value that the destination does not take, or anything else."""
    if not re.match("22|54|0A", error.sqlstate or ""):
        return classify(error)
    # The context quotes the value: line and column are all that is taken from it.
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
        f"{table}{where}{at}: the destination does not take a value: {kind(error)}",
        "is its type there another, or an enum short of a label? mend that, or set the change aside (on_poison)",
        positions_of,
    )


def kind(error: psycopg.Error) -> str:
    """What is wrong with a value, without the value."""
    return re.sub("(?<!^)(?=[A-Z])", " ", type(error).__name__).lower()


def diverged(sink: str, table: str, span: str, what: str) -> SinkDiverged:
    return SinkDiverged(
        f"{table}, {span}: {what}: somebody else wrote to the replica; nothing of this step was applied",
        REWIND.format(sink),
    )
