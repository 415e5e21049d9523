"""A history: every version of every row, with the times and positions between which it was valid."""

from __future__ import annotations

from psycopg import sql

from tailrace.change import Lsn
from tailrace.sinks.database.staged_rows import StagedRows
from tailrace.sinks.postgres.mirror_table import StatementRunner, columns, complete, matches, whole_row
from tailrace.sinks.postgres.table_write import TableWrite

_CURRENT = sql.SQL("t._valid_to IS NULL")
_OWN = sql.SQL("_valid_from, _valid_from_position, _valid_to, _valid_to_position, _operation")
_STAGED = sql.SQL("d.from_time, d.from_position, d.to_time, d.to_position, d.operation")


def apply(runner: StatementRunner, table: sql.Identifier, change: TableWrite[StagedRows]) -> None:
    """End versions first, then insert new ones."""
    if change.is_truncate:
        assert change.time_and_position is not None
        end_all(runner, table, change.time_and_position)
        return
    name = ".".join(change.target)
    inserts = []
    for group in change.versions:
        source = runner.source(group.rows, name)
        if group.unsent:
            own = ("from_time", "from_position", "to_time", "to_position", "operation")
            source = complete(runner, table, change, group, source, only=_CURRENT, also=own)
        inserts.append((group.rows, source))
    if change.ended is not None:
        _end(runner, table, change, change.ended)
    for rows, source in inserts:
        names = columns(change.relation.columns)
        values = sql.SQL("").join(
            [sql.SQL("d.{}, ").format(sql.Identifier(f"c{i}")) for i in range(len(change.relation.columns))]
        )
        separator = sql.SQL(", " if change.relation.columns else "")
        statement = sql.SQL("INSERT INTO {} ({}{}{}) SELECT {}{} FROM {} d").format(
            table, names, separator, _OWN, values, _STAGED, source
        )
        runner.run(statement, rows.count, change, "an insert", by_index=False)


def end_all(runner: StatementRunner, table: sql.Identifier, time_and_position: tuple[str, str]) -> None:
    """End all current versions."""
    statement = sql.SQL("UPDATE {} t SET _valid_to = {}, _valid_to_position = {} WHERE {}")
    runner.connection.execute(
        statement.format(table, sql.Literal(time_and_position[0]), sql.Literal(time_and_position[1]), _CURRENT)
    )


def restore(runner: StatementRunner, table: sql.Identifier, lsn: Lsn) -> None:
    """Restore the table to before this commit LSN: changes from there on are delivered again."""
    after = sql.SQL("split_part({}, ':', 1)::pg_lsn >= {}::pg_lsn")
    begun = after.format(sql.SQL("t._valid_from_position"), sql.Literal(str(lsn)))
    ended = after.format(sql.SQL("t._valid_to_position"), sql.Literal(str(lsn)))
    runner.connection.execute(sql.SQL("DELETE FROM {} t WHERE {}").format(table, begun))
    reopen = sql.SQL("UPDATE {} t SET _valid_to = NULL, _valid_to_position = NULL WHERE {}")
    runner.connection.execute(reopen.format(table, ended))


def _end(runner: StatementRunner, table: sql.Identifier, change: TableWrite[StagedRows], rows: StagedRows) -> None:
    source = runner.source(rows, ".".join(change.target))
    sets = sql.SQL("UPDATE {} t SET _valid_to = d.to_time, _valid_to_position = d.to_position FROM ").format(table)
    if rows.fields[0].name.startswith("k"):
        statement = sets + sql.SQL("{} d WHERE {} AND {}").format(source, matches(change.relation, "k"), _CURRENT)
        runner.run(statement, rows.count, change, "an end", by_index=not rows.is_staged)
        return
    present, staged = whole_row(change.relation)
    statement = sets + sql.SQL(
        "(SELECT place, to_time, to_position FROM"
        " (SELECT ctid AS place, {present} AS whole, row_number() OVER (PARTITION BY {present}) AS number"
        "  FROM {table} t WHERE {current}) t"
        " JOIN (SELECT {staged} AS whole, to_time, to_position, row_number() OVER (PARTITION BY {staged}) AS number"
        "  FROM {source}) d USING (whole, number)) d WHERE t.ctid = d.place"
    ).format(present=present, table=table, current=_CURRENT, staged=staged, source=source)
    runner.run(statement, rows.count, change, "an end", by_index=False)
