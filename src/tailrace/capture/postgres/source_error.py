"""Classifies failures of the source: the rules for every PostgreSQL server, and those for slots and publications."""

from __future__ import annotations

from typing import Final

from tailrace.errors import SlotLost, SourceError, SourceRefused
from tailrace.postgres.classifier import Classifier, Rule

_SLOT_LOST = (
    "its changes are lost: drop the slot, run capture again, and take new snapshots of the tables; "
    "raise max_slot_wal_keep_size to prevent this"
)
_CHECK = "run `tailrace check`, which prints the SQL that fixes it"
PUBLICATION_MISSED: Final = (
    "it did not exist when changes were made, so this slot lost them: make sure that it exists now, "
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
        "it was dropped: run capture again to create a new one, and take new snapshots of the tables",
    ),
    Rule(SourceRefused, "42704", r"publication .* does not exist", PUBLICATION_MISSED),
    Rule(SourceRefused, "55000", r"wal_level", "set wal_level = logical and restart the server"),
    Rule(
        SourceError,
        "55006",
        r"replication slot .* is active",
        "another capture uses it, or the server has not yet noticed that the last one ended (wal_sender_timeout)",
    ),
    Rule(
        SourceRefused,
        "53300",
        r"max_wal_senders\W+currently 0\b",
        "the server allows no replication: set max_wal_senders = 10 and wal_level = logical (for the archive alone, "
        "replica), and restart the server",
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
        "the database holds bytes that are invalid in its encoding (SQL_ASCII accepts anything): correct the row",
    ),
    Rule(
        SourceRefused,
        "54000|XX000",
        r"invalid memory alloc|enlarge string buffer|out of memory",
        "a row is larger than PostgreSQL can send as text (1 GB): remove that table from the publication",
    ),
    Rule(SourceRefused, "(0A|42|3F|22|54)...", r"", _CHECK),
)

classify: Final = Classifier("source", SourceError, SourceRefused, _RULES, _OTHERWISE)
source_errors: Final = classify.errors
