"""Random queries over a random table: filters, joins, groups, windows, set operations, subqueries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.query.generated import AGGREGATES, COLUMNS, ExpressionGenerator

_MANY_TEXTS: Final = frozenset(("n", "iv", "jb", "na", "cmp", "j", "f8", "f4"))
"""Columns whose equal values may have different texts: which of them DISTINCT shows depends on PostgreSQL's plan."""

_STARTS: Final = ("UNBOUNDED PRECEDING", "2 PRECEDING", "CURRENT ROW", "1 FOLLOWING")
_ENDS: Final = ("UNBOUNDED FOLLOWING", "3 FOLLOWING", "1 FOLLOWING")


class QueryGenerator(ExpressionGenerator):
    """Makes queries whose rows have one order: by the primary key, or by all columns."""

    def query(self) -> str:
        rng = self.rng
        kinds: list[Callable[[], str]] = [
            *[self._select] * 6, self._filter, self._filter, self._sort, self._aggregate, self._aggregate, self._group,
            self._group, self._join, self._distinct, self._window, self._window, self._set_operation, self._subquery,
            self._common, self._values,
        ]  # fmt: skip
        return rng.choice(kinds)()

    def _plain_column(self) -> str:
        return self.rng.choice([c for c in self.table.columns if c not in _MANY_TEXTS])

    def _order(self) -> str:
        return self.rng.choice(("", " DESC", " NULLS FIRST", " DESC NULLS LAST"))

    def _select(self) -> str:
        return f"SELECT id, {self.expression()} FROM {self.table.name} ORDER BY id"

    def _filter(self) -> str:
        test = self.rng.choice((self._comparison, self._membership, self._pattern, self._time))()
        return f"SELECT id FROM {self.table.name} WHERE {test} ORDER BY id"

    def _sort(self) -> str:
        column, other = self.column(), self.column()
        limit = self.rng.choice(("", " LIMIT 7", " LIMIT 5 OFFSET 3", " OFFSET 30"))
        collation = ' COLLATE "C"' if column in ("t", "v") and self.rng.random() < 0.3 else ""
        return (
            f"SELECT {column}, id FROM {self.table.name}"
            f" ORDER BY {column}{collation}{self._order()}, {other}{self._order()}, id{limit}"
        )

    def _call_of_aggregate(self) -> str:
        rng = self.rng
        aggregate = rng.choice(AGGREGATES)
        argument = {"string_agg": "t, ',' ORDER BY id", "jsonb_object_agg": "id, " + self.column()}.get(
            aggregate, self.expression(0) if rng.random() < 0.3 else self.column()
        )
        if aggregate.endswith("_agg") and aggregate not in ("string_agg", "jsonb_object_agg"):
            argument += rng.choice((" ORDER BY id", f" ORDER BY {self.column()}, id"))
        if aggregate == "any_value":
            argument = "id - id"
        aggregate = f"{aggregate}(" if "(" not in aggregate else f"{aggregate} "
        filtered = f" FILTER (WHERE {self._comparison()})" if rng.random() < 0.2 else ""
        return f"{aggregate}{argument}){filtered}"

    def _aggregate(self) -> str:
        where = f" WHERE {self._comparison()}" if self.rng.random() < 0.3 else ""
        return f"SELECT {self._call_of_aggregate()}, count(*) FROM {self.table.name}{where}"

    def _group(self) -> str:
        rng, name, column = self.rng, self.table.name, self._plain_column()
        having = rng.choice(("", " HAVING count(*) > 4", f" HAVING min(id) < 9 AND max({self.column()}) IS NOT NULL"))
        return rng.choice(
            [
                # The texts of equal values may differ, so only the groups' sizes are compared.
                f"SELECT count(*), min(id) FROM {name} GROUP BY {self.column()} ORDER BY 2",
                f"SELECT {column}, count(*), min(id) FROM {name} GROUP BY {column}{having} ORDER BY 3",
                f"SELECT {column} AS x, {self._call_of_aggregate()}, min(id) FROM {name} GROUP BY x ORDER BY 3",
                f"SELECT min(id), count(*) FROM {name} GROUP BY {self.expression(0)} ORDER BY 1",
                f"SELECT a.id, a.{column}, {self.column()} IS NULL, max(x) FROM {name} a, generate_series(1, 2) x"
                f" GROUP BY a.id HAVING a.{column} IS NOT NULL ORDER BY a.{self.column()}{self._order()}, a.id",
                f"SELECT percentile_cont({rng.random():.3f}) WITHIN GROUP (ORDER BY {rng.choice(('i4', 'f8', 'np'))}"
                f"{rng.choice(('', ' DESC'))}), percentile_disc({rng.random():.2f}) WITHIN GROUP (ORDER BY {column})"
                f" FROM {name} WHERE {rng.choice(('id > 3', 'f8 < 100', 'b'))}",
                f"SELECT b, {column}, grouping(b, {column}), count(*), min(id) FROM {name}"
                f" GROUP BY {rng.choice(('ROLLUP', 'CUBE'))}(b, {column}) ORDER BY 5, 3, 4",
            ]
        )

    def _join(self) -> str:
        rng, name, column = self.rng, self.table.name, self.column()
        kind = rng.choice(("JOIN", "JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN"))
        other = rng.choice((column, column, self.column()))
        return rng.choice(
            [
                f"SELECT a.id, b.id FROM {name} a {kind} {name} b ON a.{column} = b.{other} ORDER BY 1, 2",
                f"SELECT id, a.b, b.i4 FROM {name} a {kind} (SELECT * FROM {name} WHERE id % 3 = 0) b USING (id)"
                " ORDER BY id",
                f"SELECT a.id, x.c FROM {name} a LEFT JOIN LATERAL"
                f" (SELECT count(*) AS c FROM {name} b WHERE b.{column} < a.{column}) x ON true ORDER BY 1",
            ]
        )

    def _distinct(self) -> str:
        rng, name, column = self.rng, self.table.name, self._plain_column()
        return rng.choice(
            [
                f"SELECT DISTINCT {column} FROM {name} ORDER BY 1{self._order()}",
                f"SELECT DISTINCT {column}, b FROM {name} ORDER BY 2, 1{self._order()} LIMIT 9",
                f"SELECT DISTINCT ON ({column}) {column} FROM {name} ORDER BY {column}{self._order()}",
                f"SELECT DISTINCT ON ({column}) {column}, id FROM {name} ORDER BY {column}{self._order()}, id",
                f"SELECT count(*) FROM (SELECT DISTINCT {self.column()} FROM {name}) x",
            ]
        )

    def _window(self) -> str:
        rng, name, column = self.rng, self.table.name, self.column()
        order = f"{rng.choice(('id', f'{self.column()}{self._order()}, id'))}"
        calls = (
            f"row_number() OVER (PARTITION BY {self.column()} ORDER BY {order})",
            f"rank() OVER (ORDER BY {column}{self._order()})",
            f"dense_rank() OVER (PARTITION BY b ORDER BY {column}{self._order()})",
            f"lag({column}) OVER (ORDER BY {order})",
            f"lead({column}, 2, {self.literal(column)}) OVER (ORDER BY {order})",
            f"{rng.choice(('first_value', 'last_value', 'count', 'sum'))}({column})"
            f" OVER (PARTITION BY b ORDER BY {order})",
            f"nth_value({column}, 2) OVER (ORDER BY {order})",
            f"sum({column}) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING)",
            f"count(*) OVER (ORDER BY {column} RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
            f"count(*) OVER (ORDER BY {self.column()} GROUPS 1 PRECEDING EXCLUDE TIES)",
            f"array_agg({column}) OVER (ORDER BY id ROWS 2 PRECEDING)",
            f"{rng.choice(('count', 'sum', 'min', 'avg', 'last_value'))}({column}) OVER (ORDER BY {order}"
            f" {rng.choice(('ROWS', 'GROUPS'))} BETWEEN {rng.choice(_STARTS)} AND {rng.choice(_ENDS)}"
            f"{rng.choice(('', ' EXCLUDE CURRENT ROW', ' EXCLUDE GROUP'))})",
            f"count(*) OVER (ORDER BY {rng.choice(('i4', 'f8', 'd'))}"
            " RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
            f"sum(id) OVER (ORDER BY i2{rng.choice(('', ' DESC'))} RANGE BETWEEN {rng.randrange(9)} PRECEDING AND"
            f" {rng.randrange(9)} FOLLOWING)",
            f"{rng.choice(('ntile(4)', 'percent_rank()', 'cume_dist()'))} OVER (PARTITION BY b ORDER BY {order})",
            f"lag({column}, {rng.choice(('0', '-1', 'i2 % 3', 'NULL'))}) OVER (ORDER BY {order})",
            f"max({self._plain_column()}) FILTER (WHERE {self._comparison()}) OVER (ORDER BY {order})",
            f"{rng.choice(('min', 'max'))}({self._plain_column()}) OVER (PARTITION BY b ORDER BY {order})",
            f"{rng.choice(AGGREGATES[:5])}({column}) OVER ()",
        )
        return f"SELECT id, {rng.choice(calls)} FROM {name} ORDER BY id"

    def _set_operation(self) -> str:
        rng, name = self.rng, self.table.name
        word = rng.choice(("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"))
        column = self._plain_column()
        other = rng.choice((column, column, self.literal(column), self._plain_column(), "NULL"))
        if column == "ch" or "ch" in other or {column, other} & {"np", "c"}:
            other = column  # otherwise equal values have different texts
        return f"SELECT {column} FROM {name} {word} SELECT {other} FROM {name} WHERE id > 20 ORDER BY 1{self._order()}"

    def _subquery(self) -> str:
        rng, name, column = self.rng, self.table.name, self.column()
        other = rng.choice((column, column, self.column()))
        word, negation = rng.choice(("IN", "NOT IN", "= ANY", "> ALL", "<> ANY", "<= ANY")), rng.choice(("", "NOT "))
        return rng.choice(
            [
                f"SELECT id FROM {name} WHERE {column} {word} (SELECT {other} FROM {name} WHERE id < 9) ORDER BY id",
                f"SELECT id FROM {name} WHERE ({column}, b) {negation}IN (SELECT {other}, b FROM {name} WHERE id < 9)"
                " ORDER BY id",
                f"SELECT id, ({column}, i2) {negation}IN (SELECT {column}, i4 FROM {name} WHERE id < 7)"
                f" FROM {name} ORDER BY id",
                f"SELECT id, {column} {word} (SELECT {other} FROM {name} WHERE id < 5) FROM {name} ORDER BY id",
                f"SELECT id, (SELECT max({column}) FROM {name} b WHERE b.id < a.id) FROM {name} a ORDER BY id",
                f"SELECT id FROM {name} a WHERE {rng.choice(('', 'NOT '))}EXISTS"
                f" (SELECT 1 FROM {name} b WHERE b.{column} = a.{other} AND b.id > a.id) ORDER BY id",
                f"SELECT id, ARRAY(SELECT {column} FROM {name} b WHERE b.id <= 3 ORDER BY id) FROM {name} ORDER BY id",
                f"SELECT id, x FROM {name}, unnest({rng.choice(('ia', 'ta', 'na', 'ea'))}) WITH ORDINALITY AS u(x, o)"
                " ORDER BY id, o",
                f"SELECT id, k, v FROM {name}, jsonb_each(CASE WHEN jsonb_typeof(jb) = 'object' THEN jb END) x(k, v)"
                " ORDER BY id, k",
            ]
        )

    def _common(self) -> str:
        rng, name, column = self.rng, self.table.name, self.column()
        expression = self.expression(0)
        return rng.choice(
            [
                f"WITH w AS (SELECT id, {expression} AS x FROM {name})"
                f" SELECT x, id FROM w ORDER BY x{self._order()}, id",
                f"WITH w AS (SELECT id, {expression} AS x FROM {name})"
                f" SELECT a.id, b.id FROM w a JOIN w b ON a.x = b.x AND a.id < b.id ORDER BY 1, 2",
                f"WITH w(i, y) AS MATERIALIZED (SELECT id, {column} FROM {name} ORDER BY id LIMIT 9)"
                f" SELECT count(y), min(i) FROM w WHERE y IS DISTINCT FROM {self.literal(column)}",
                f"WITH RECURSIVE w AS (SELECT 1 AS i, NULL::{COLUMNS[column][0]} AS y UNION ALL"
                f" SELECT i + 1, {column} FROM w JOIN {name} ON id = i WHERE i < 8) SELECT i, y FROM w ORDER BY i",
                f"SELECT id, x FROM (SELECT id, {expression} AS x FROM {name}) s WHERE x IS NOT NULL ORDER BY id",
            ]
        )

    def _values(self) -> str:
        column, rng = self.column(), self.rng
        given = f"({self.literal(column)}::{COLUMNS[column][0]}), ({self.literal(column)}), (NULL)"
        return rng.choice(
            [
                f"SELECT x FROM (VALUES {given}) v(x) ORDER BY x{self._order()}",
                f"SELECT x::text, count(*) FROM (VALUES {given}) v(x) GROUP BY 1 ORDER BY 1",
                f"SELECT id FROM {self.table.name} JOIN (VALUES {given}) v(x) ON {column} = x ORDER BY 1",
                f"SELECT coalesce({column}, x) FROM {self.table.name}, (VALUES {given}) v(x)"
                " WHERE id < 4 ORDER BY id, 1",
            ]
        )
