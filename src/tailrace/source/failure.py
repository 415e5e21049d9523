"""What a failure of the source means: beyond what holds for any PostgreSQL, a slot may be lost."""

from __future__ import annotations

from typing import Final

from tailrace.errors import SlotLost, SourceError, SourceRefused
from tailrace.postgres.failure import Classifier, Rule

_SLOT_LOST = (
    "changes were lost with it: drop the slot, run capture again, and take new snapshots of the tables; "
    "raise max_slot_wal_keep_size so that it does not happen again"
)
_CHECK = "run `tailrace check`: it prints the SQL that mends it"
PUBLICATION_MISSED: Final = (
    "it was missing when changes were made, and this slot has lost them: make sure that it is there now, "
    "drop the slot, then run `tailrace capture --accept-gap`, which takes new snapshots"
)

_RULES: Final = (
    Rule(
        SlotLost,
        "55000",
        r"can no longer (get changes from|access|be)|slot .*invalidated|cannot read from .*slot",
        _SLOT_LOST,
    ),
    Rule(SlotLost, "58P01", r"WAL segment \S+ has already been removed", _SLOT_LOST),
    Rule(
        SlotLost,
        "42704",
        r"replication slot .* does not exist",
        "somebody dropped it: run capture again for a new one, and take new snapshots of the tables",
    ),
    Rule(SourceRefused, "42704", r"publication .* does not exist", PUBLICATION_MISSED),
    Rule(SourceRefused, "55000", r"wal_level", "set wal_level = logical and restart the server"),
    Rule(
        SourceError,
        "55006",
        r"replication slot .* is active",
        "another capture runs, or the server has not noticed yet that the last one is gone (wal_sender_timeout)",
    ),
    Rule(SourceRefused, "53400", r"all replication slots are in use", _CHECK),
)
_OTHERWISE: Final = (
    Rule(SourceRefused, "55000", r"", _CHECK),
    Rule(SourceRefused, "42501", r"permission denied|must be (superuser|owner)|must have", _CHECK),
    Rule(
        SourceRefused,
        "22021|22P05",
        r"",
        "the database holds bytes that are no text in its encoding (SQL_ASCII accepts anything): correct the row",
    ),
    Rule(
        SourceRefused,
        "54000|XX000",
        r"invalid memory alloc|enlarge string buffer|out of memory",
        "a row is larger than PostgreSQL can send as text (1 GB): take that table out of the publication",
    ),
    Rule(SourceRefused, "(0A|42|3F|22|54)...", r"", _CHECK),
)

classify: Final = Classifier("source", SourceError, SourceRefused, _RULES, _OTHERWISE)
classified: Final = classify.errors
