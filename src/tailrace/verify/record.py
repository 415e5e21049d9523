"""`cursors/<sink>/verified.json`: what the last verification of a sink found, for status and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from tailrace import stored_json
from tailrace.change import Lsn
from tailrace.errors import CorruptError
from tailrace.log.retention import CURSORS
from tailrace.store import Store

if TYPE_CHECKING:
    from tailrace.verify.report import SinkReport

_RECORD: Final = "verified.json"


@dataclass(frozen=True)
class VerificationRecord:
    sink: str
    verified_at: datetime
    """When the first snapshot of the source was taken."""
    position: Lsn
    """All tables were compared at this LSN or a later one."""
    rows: int
    differences: int
    """Rows that differed, and were not corrected."""
    tables: int
    tables_not_compared: int
    """Tables of which something could not be compared."""
    seconds: float

    @classmethod
    def of(cls, reports: Sequence[SinkReport]) -> VerificationRecord:
        """What the reports of one sink say together, each of which has other tables."""
        tables = [table for report in reports for table in report.tables]
        return cls(
            reports[0].sink,
            min(report.verified_at for report in reports),
            Lsn(min(report.source_lsn for report in reports)),
            sum(table.rows for table in tables),
            sum(len(table.differences) for table in tables),
            len(tables),
            sum(not table.is_complete for table in tables),
            round(sum(report.seconds for report in reports), 3),
        )

    def save(self, store: Store) -> None:
        raw = asdict(self) | {"verified_at": self.verified_at.isoformat(), "position": str(self.position)}
        store.replace(f"{CURSORS}/{self.sink}/{_RECORD}", json.dumps(raw).encode())


def load_records(store: Store) -> Iterator[VerificationRecord]:
    """Of every sink that was ever verified."""
    for info in store.list(CURSORS):
        parts = info.key.split("/")
        if len(parts) == 3 and parts[2] == _RECORD and (data := store.get(info.key)) is not None:
            try:
                raw = stored_json.parse(data)
                at, position = datetime.fromisoformat(raw["verified_at"]), Lsn.parse(raw["position"])
                record = stored_json.typed(VerificationRecord(**raw | {"verified_at": at, "position": position}))
            except stored_json.ERRORS as error:
                raise CorruptError(f"{info.key} is not the record of a verification", "remove it") from error
            yield record
