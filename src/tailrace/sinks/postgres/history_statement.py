"""The statements of a history in PostgreSQL."""

from __future__ import annotations

from psycopg import sql

from tailrace.change import Lsn
from tailrace.sinks.database.history import COLUMNS, STAGED
from tailrace.sinks.database.staged_rows import StagedRows
from tailrace.sinks.database.table_write import RowGroup, TableWrite
from tailrace.sinks.postgres.mirror_statement import StatementRunner, columns, complete, matches, table_of, whole_row

_CURRENT = sql.SQL("t._valid_to IS NULL")
_OWN = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
_STAGED = sql.SQL(", ").join([sql.Identifier("d", name) for name in STAGED])


class PostgresHistory:
    """Fulfils `HistoryStatements`. A source is a table."""

    def __init__(self, runner: StatementRunner) -> None:
        self._runner = runner

    def source(self, change: TableWrite[StagedRows], rows: StagedRows) -> sql.Identifier:
        return self._runner.source(rows, change.name)

    def complete(
        self, change: TableWrite[StagedRows], group: RowGroup[StagedRows], source: sql.Identifier
    ) -> sql.Identifier:
        return complete(self._runner, change, group, source, only=_CURRENT, also=STAGED)

    def end(self, change: TableWrite[StagedRows], rows: StagedRows) -> None:
        table, source = table_of(change), self.source(change, rows)
        sets = sql.SQL("UPDATE {} t SET _valid_to = d.to_time, _valid_to_position = d.to_position FROM ").format(table)
        if rows.fields[0].name.startswith("k"):
            statement = sets + sql.SQL("{} d WHERE {} AND {}").format(source, matches(change.relation, "k"), _CURRENT)
            self._runner.run(statement, rows.count, change, "an end", by_index=not rows.is_staged)
            return
        present, staged = whole_row(change.relation)
        statement = sets + sql.SQL(
            "(SELECT place, to_time, to_position FROM"
            " (SELECT ctid AS place, {present} AS whole, row_number() OVER (PARTITION BY {present}) AS number"
            "  FROM {table} t WHERE {current}) t"
            " JOIN (SELECT {staged} AS whole, to_time, to_position, row_number() OVER (PARTITION BY {staged}) AS number"
            "  FROM {source}) d USING (whole, number)) d WHERE t.ctid = d.place"
        ).format(present=present, table=table, current=_CURRENT, staged=staged, source=source)
        self._runner.run(statement, rows.count, change, "an end", by_index=False)

    def end_all(self, target: tuple[str, str], time: str | None, position: str) -> None:
        statement = sql.SQL("UPDATE {} t SET _valid_to = {}, _valid_to_position = {} WHERE {}").format(
            sql.Identifier(*target), sql.Literal(time or "now"), sql.Literal(position), _CURRENT
        )
        self._runner.connection.execute(statement)

    def insert(self, change: TableWrite[StagedRows], rows: StagedRows, source: sql.Identifier) -> None:
        names = columns(change.relation.columns)
        values = sql.SQL("").join(
            [sql.SQL("d.{}, ").format(sql.Identifier(f"c{i}")) for i in range(len(change.relation.columns))]
        )
        separator = sql.SQL(", " if change.relation.columns else "")
        statement = sql.SQL("INSERT INTO {} ({}{}{}) SELECT {}{} FROM {} d").format(
            table_of(change), names, separator, _OWN, values, _STAGED, source
        )
        self._runner.run(statement, rows.count, change, "an insert", by_index=False)

    def restore(self, target: tuple[str, str], lsn: Lsn) -> None:
        table = sql.Identifier(*target)
        after = sql.SQL("split_part({}, ':', 1)::pg_lsn >= {}::pg_lsn")
        begun = after.format(sql.SQL("t._valid_from_position"), sql.Literal(str(lsn)))
        ended = after.format(sql.SQL("t._valid_to_position"), sql.Literal(str(lsn)))
        self._runner.connection.execute(sql.SQL("DELETE FROM {} t WHERE {}").format(table, begun))
        reopen = sql.SQL("UPDATE {} t SET _valid_to = NULL, _valid_to_position = NULL WHERE {}")
        self._runner.connection.execute(reopen.format(table, ended))
