"""A history: every version of every row, with the time and the positions between which it was valid."""

from __future__ import annotations

from psycopg import sql

from tailrace.change import Lsn
from tailrace.sinks.database.rows import Rows
from tailrace.sinks.postgres.effect import Effect
from tailrace.sinks.postgres.mirror import Work, columns, completed, matches, whole_row

_CURRENT = sql.SQL("t._valid_to IS NULL")
_OWN = sql.SQL("_valid_from, _valid_from_position, _valid_to, _valid_to_position, _operation")
_BROUGHT = sql.SQL("d.from_time, d.from_position, d.to_time, d.to_position, d.operation")


def apply(work: Work, where: sql.Identifier, effect: Effect[Rows]) -> None:
    """Versions that end first, then those that begin."""
    if effect.is_truncate:
        assert effect.moment is not None
        end(work, where, effect.moment)
        return
    name = ".".join(effect.target)
    coming = []
    for some in effect.versions:
        source = work.source(some.rows, name)
        if some.unsent:
            own = ("from_time", "from_position", "to_time", "to_position", "operation")
            source = completed(work, where, effect, some, source, only=_CURRENT, also=own)
        coming.append((some.rows, source))
    if effect.closed is not None:
        _close(work, where, effect, effect.closed)
    for rows, source in coming:
        names = columns(effect.relation.columns)
        values = sql.SQL("").join(
            [sql.SQL("d.{}, ").format(sql.Identifier(f"c{i}")) for i in range(len(effect.relation.columns))]
        )
        separator = sql.SQL(", " if effect.relation.columns else "")
        statement = sql.SQL("INSERT INTO {} ({}{}{}) SELECT {}{} FROM {} d").format(
            where, names, separator, _OWN, values, _BROUGHT, source
        )
        work.run(statement, rows.count, effect, "an insert", by_index=False)


def end(work: Work, where: sql.Identifier, moment: tuple[str, str]) -> None:
    """Of all that is valid."""
    statement = sql.SQL("UPDATE {} t SET _valid_to = {}, _valid_to_position = {} WHERE {}")
    work.connection.execute(statement.format(where, sql.Literal(moment[0]), sql.Literal(moment[1]), _CURRENT))


def return_to(work: Work, where: sql.Identifier, lsn: Lsn) -> None:
    """As it was before what commits at this LSN: it is told again."""
    after = sql.SQL("split_part({}, ':', 1)::pg_lsn >= {}::pg_lsn")
    begun = after.format(sql.SQL("t._valid_from_position"), sql.Literal(str(lsn)))
    ended = after.format(sql.SQL("t._valid_to_position"), sql.Literal(str(lsn)))
    work.connection.execute(sql.SQL("DELETE FROM {} t WHERE {}").format(where, begun))
    reopen = sql.SQL("UPDATE {} t SET _valid_to = NULL, _valid_to_position = NULL WHERE {}")
    work.connection.execute(reopen.format(where, ended))


def _close(work: Work, where: sql.Identifier, effect: Effect[Rows], rows: Rows) -> None:
    source = work.source(rows, ".".join(effect.target))
    sets = sql.SQL("UPDATE {} t SET _valid_to = d.to_time, _valid_to_position = d.to_position FROM ").format(where)
    if rows.fields[0].name.startswith("k"):
        statement = sets + sql.SQL("{} d WHERE {} AND {}").format(source, matches(effect.relation, "k"), _CURRENT)
        work.run(statement, rows.count, effect, "an end", by_index=not rows.is_staged)
        return
    there, brought = whole_row(effect.relation)
    statement = sets + sql.SQL(
        "(SELECT place, to_time, to_position FROM"
        " (SELECT ctid AS place, {there} AS whole, row_number() OVER (PARTITION BY {there}) AS number"
        "  FROM {where} t WHERE {current}) t"
        " JOIN (SELECT {brought} AS whole, to_time, to_position, row_number() OVER (PARTITION BY {brought}) AS number"
        "  FROM {source}) d USING (whole, number)) d WHERE t.ctid = d.place"
    ).format(there=there, where=where, current=_CURRENT, brought=brought, source=source)
    work.run(statement, rows.count, effect, "an end", by_index=False)
