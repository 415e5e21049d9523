"""The statements of a history in MySQL."""

from __future__ import annotations

from typing import Final

from tailrace.change import Lsn
from tailrace.sinks.database.history import COLUMNS, STAGED
from tailrace.sinks.database.staged_rows import StagedRows
from tailrace.sinks.database.table_write import RowGroup, TableWrite
from tailrace.sinks.mysql.identifier import quote
from tailrace.sinks.mysql.mirror_statement import (
    BY_KEY,
    MysqlRunner,
    RowSource,
    complete,
    matches,
    present_digest,
    staged_digest,
)
from tailrace.sinks.mysql.table_definition import ROW_NUMBER

_CURRENT: Final = "t._valid_to IS NULL"


class MysqlHistory:
    """Fulfils `HistoryStatements`."""

    def __init__(self, runner: MysqlRunner) -> None:
        self._runner = runner

    def source(self, change: TableWrite[StagedRows], rows: StagedRows) -> RowSource:
        return self._runner.source(change, rows)

    def complete(self, change: TableWrite[StagedRows], group: RowGroup[StagedRows], source: RowSource) -> RowSource:
        return complete(self._runner, change, group, source, only=_CURRENT, also=STAGED)

    def end(self, change: TableWrite[StagedRows], rows: StagedRows) -> None:
        runner = self._runner
        columns, table = runner.columns(change.relation), runner.table(change.target)
        source = runner.source_table(change, runner.source(change, rows))
        sets = "SET t._valid_to = d.to_time, t._valid_to_position = d.to_position"
        if rows.fields[0].name.startswith("k"):
            key = matches(change.relation, columns, "k")
            join = f"UPDATE {source} d {BY_KEY} {table} t ON {key} AND {_CURRENT} {sets}"
            runner.run(join, rows.count, change, "an end")
            return
        number = quote(ROW_NUMBER)
        statement = (
            f"UPDATE {table} t JOIN ("
            f" SELECT t.place, d.to_time, d.to_position FROM"
            f" (SELECT place, digest, row_number() OVER (PARTITION BY digest) AS number FROM"
            f"  (SELECT {number} AS place, {present_digest(columns)} AS digest FROM {table} t WHERE {_CURRENT}) p) t"
            f" JOIN (SELECT to_time, to_position, digest, row_number() OVER (PARTITION BY digest) AS number FROM"
            f"  (SELECT to_time, to_position, {staged_digest(columns)} AS digest FROM {source}) s) d"
            f" ON d.digest = t.digest AND d.number = t.number"
            f") d ON d.place = t.{number} {sets}"
        )
        runner.run(statement, rows.count, change, "an end")

    def end_all(self, target: tuple[str, str], time: str | None, position: str) -> None:
        moment = "now(6)" if time is None else f"'{time.removesuffix('Z')}'"
        self._runner.session.execute(
            f"UPDATE {self._runner.table(target)} t SET _valid_to = {moment}, _valid_to_position = '{position}'"
            f" WHERE {_CURRENT}"
        )

    def insert(self, change: TableWrite[StagedRows], rows: StagedRows, source: RowSource) -> None:
        runner = self._runner
        columns = runner.columns(change.relation)
        names = ", ".join([*(quote(column.name) for column in columns), *COLUMNS])
        values = ", ".join([*(f"c{i}" for i in range(len(columns))), *STAGED])
        statement = (
            f"INSERT INTO {runner.table(change.target)} ({names})"
            f" SELECT {values} FROM {runner.source_table(change, source)}"
        )
        runner.run(statement, rows.count, change, "an insert")

    def restore(self, target: tuple[str, str], lsn: Lsn) -> None:
        table, execute = self._runner.table(target), self._runner.session.execute
        execute(f"DELETE FROM {table} WHERE {_lsn('_valid_from_position')} >= {int(lsn)}")
        execute(
            f"UPDATE {table} SET _valid_to = NULL, _valid_to_position = NULL"
            f" WHERE {_lsn('_valid_to_position')} >= {int(lsn)}"
        )


def _lsn(position: str) -> str:
    """The commit LSN of a position, as a number."""
    high = f"CAST(CONV(SUBSTRING_INDEX({position}, '/', 1), 16, 10) AS UNSIGNED)"
    low = f"CAST(CONV(SUBSTRING_INDEX(SUBSTRING_INDEX({position}, ':', 1), '/', -1), 16, 10) AS UNSIGNED)"
    return f"({high} << 32 | {low})"
