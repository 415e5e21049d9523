"""What a check found: a problem or a note, with the commands that fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    """Capture or the sink cannot run, or would do harm."""
    WARNING = "warning"
    """It runs, but misses something or may fail later."""
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    severity: Severity
    subject: str
    message: str
    fix: str = ""
    """What to run, with the necessary privileges. For a source: SQL to paste into psql."""


def can_run(findings: Iterable[Finding]) -> bool:
    """Whether none of the findings is an error."""
    return not any(finding.severity is Severity.ERROR for finding in findings)
