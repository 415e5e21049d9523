"""Queries: SELECT, VALUES, UNION and the like, WITH, grouping, windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tailrace.query.query_error import READ_ONLY, QueryError
from tailrace.query.sql.cast import convert
from tailrace.query.sql.catalog import Catalog
from tailrace.query.sql.column_name import column_name
from tailrace.query.sql.comparison import equality_key, order_key
from tailrace.query.sql.expression import Expressions
from tailrace.query.sql.from_clause import FromClause
from tailrace.query.sql.grouping import Grouping
from tailrace.query.sql.pg_type import INT8, TEXT
from tailrace.query.sql.query import Query
from tailrace.query.sql.scope import CommonTable, NamedColumn, Scope
from tailrace.query.sql.syntax import Node, fingerprint, names, refuse, unwrap
from tailrace.query.sql.typed import Typed
from tailrace.query.sql.unification import unify
from tailrace.query.sql.window import Windows, sort_item
from tailrace.query.sql.with_clause import WithClause

_ONLY_SINK: Final = "Only the sink writes to the lake."
_SET_OPERATIONS: Final = {"SETOP_UNION": "UNION", "SETOP_INTERSECT": "INTERSECT", "SETOP_EXCEPT": "EXCEPT"}


@dataclass
class QueryTranslator:
    catalog: Catalog
    _number: int = 0
    common: list[dict[str, CommonTable]] = field(default_factory=list)
    """The queries of WITH, from the outermost to the innermost."""

    def __post_init__(self) -> None:
        self.expressions = Expressions(self)
        self.windows = Windows(self.expressions)
        self._from_clause = FromClause(self)
        self._with_clause = WithClause(self)
        self._grouping = Grouping(self.expressions)

    def alias(self, kind: str = "t") -> str:
        self._number += 1
        return f"_{kind}{self._number}"

    def common_table(self, name: str) -> CommonTable | None:
        return next((c[name] for c in reversed(self.common) if name in c), None)

    def query(self, node: Node, parent: Scope | None = None) -> Query:
        select = node.get("SelectStmt", node)
        if "SelectStmt" not in node and len(node) == 1 and next(iter(node)).endswith("Stmt"):
            raise QueryError(READ_ONLY, "cannot execute this statement in a read-only transaction", _ONLY_SINK)
        if select.get("intoClause"):
            raise QueryError(READ_ONLY, "cannot execute SELECT INTO in a read-only transaction", _ONLY_SINK)
        if select.get("lockingClause"):
            raise QueryError(READ_ONLY, "cannot execute SELECT FOR UPDATE in a read-only transaction", _ONLY_SINK)
        self.common.append({})
        try:
            prefix = self._with_clause.sql(select["withClause"], parent) if "withClause" in select else ""
            found = self._body(select, parent)
        finally:
            self.common.pop()
        return replace(found, prefix=prefix + found.prefix)

    def _body(self, select: Node, parent: Scope | None) -> Query:
        if select.get("op", "SETOP_NONE") != "SETOP_NONE":
            return self._set_operation(select, parent)
        if "valuesLists" in select:
            return self._values(select, parent)
        return self._select(select, parent)

    # WITH

    # Set operations

    def _set_operation(self, select: Node, parent: Scope | None) -> Query:
        word = _SET_OPERATIONS[select["op"]]
        left, right = self.query(select["larg"], parent), self.query(select["rarg"], parent)
        if len(left.columns) != len(right.columns):
            raise QueryError("42601", f"each {word} query must have the same number of columns")
        targets = []
        for a, b in zip(left.columns, right.columns, strict=True):
            x, _ = unify([a.value, b.value], word)
            targets.append(replace(x, is_constant=False, literal=None))
        arms = [query.converted(targets) for query in (left, right)]
        is_all = bool(select.get("all"))
        keys = [equality_key(replace(t, sql=f"_c{n}")) for n, t in enumerate(targets, 1)]
        is_simple = all(key == f"_c{n}" for n, key in enumerate(keys, 1))
        if is_simple or (is_all and word == "UNION"):
            sql = f"({arms[0]}) {word} {'ALL ' if is_all else ''}({arms[1]})"
        elif word == "UNION":
            # Of equal values with different texts, the first query's is shown, as PostgreSQL does when it hashes.
            first, second = (f"SELECT *, {n} AS _arm FROM ({arm}) AS _a" for n, arm in enumerate(arms, 1))
            distinct = f"SELECT DISTINCT ON ({', '.join(keys)}) * EXCLUDE (_arm)"
            sql = f"{distinct} FROM (({first}) UNION ALL ({second})) AS _u ORDER BY _arm"
        else:
            raise refuse(f"{word} of these types", "Cast numerics to a fixed scale, or use EXISTS.")
        columns = [
            NamedColumn(c.name, replace(t, sql=f"_c{n}"))
            for n, (c, t) in enumerate(zip(left.columns, targets, strict=True), 1)
        ]
        return self._ordered(select, columns, sql, parent)

    def _ordered(self, select: Node, columns: list[NamedColumn], sql: str, parent: Scope | None) -> Query:
        """A query of finished columns with ORDER BY and LIMIT on top, which see only the columns' names."""
        tail = self._limits(select, parent)
        order = []
        for item in select.get("sortClause", []):
            sort = item["SortBy"]
            place = self._output_place(sort["node"], columns)
            if place is None:
                raise QueryError(
                    "0A000",
                    "invalid UNION/INTERSECT/EXCEPT ORDER BY clause",
                    "Only result column names can be used, not expressions or functions.",
                )
            # Qualified, because a name alone would mean the value as it is sent.
            order.append(sort_item(order_key(replace(columns[place].value, sql=f"_s._c{place + 1}")), sort))
        suffix = (f" ORDER BY {', '.join(order)}" if order else "") + tail

        def build(values: Sequence[Typed]) -> str:
            outputs = ", ".join(f"{v.sql} AS _c{n}" for n, v in enumerate(values, 1))
            is_same = all(v.sql == f"_c{n}" for n, v in enumerate(values, 1))
            if is_same and not suffix:
                return sql
            return f"SELECT {outputs} FROM ({sql}) AS _s{suffix}"

        return Query(columns, build)

    def _output_place(self, node: Node, columns: Sequence[NamedColumn]) -> int | None:
        """The column that ORDER BY or GROUP BY names by its number or its name; None if it is an expression."""
        tag, fields = unwrap(node)
        if tag == "A_Const" and "ival" in fields:
            place = int(fields["ival"].get("ival", 0)) - 1
            if not 0 <= place < len(columns):
                raise QueryError("42P10", f"ORDER BY position {place + 1} is not in select list")
            return place
        if tag == "ColumnRef" and len(fields["fields"]) == 1 and "String" in fields["fields"][0]:
            name = names(fields["fields"])[0]
            found = [n for n, c in enumerate(columns) if c.name == name]
            if len({columns[n].value.sql for n in found}) > 1:
                raise QueryError("42702", f'ORDER BY "{name}" is ambiguous')
            return found[0] if found else None
        return None

    def _limits(self, select: Node, parent: Scope | None) -> str:
        if select.get("limitOption") == "LIMIT_OPTION_WITH_TIES":
            raise refuse("FETCH FIRST … WITH TIES")
        found = ""
        for key, word in (("limitCount", "LIMIT"), ("limitOffset", "OFFSET")):
            if key in select:
                value = self.expressions.translate(select[key], Scope(parent))
                if not value.is_null:
                    found += f" {word} {convert(value, INT8).sql}"
        return found

    # VALUES

    def _values(self, select: Node, parent: Scope | None) -> Query:
        scope = Scope(parent)
        rows = [[self.expressions.translate(v, scope) for v in row["List"]["items"]] for row in select["valuesLists"]]
        if len({len(row) for row in rows}) > 1:
            raise QueryError("42601", "VALUES lists must all be the same length")
        made = [unify(column, "VALUES") for column in zip(*rows, strict=True)]
        lines = ", ".join(f"({', '.join(column[n].sql for column in made)})" for n in range(len(rows)))
        outputs = ", ".join(f"_c{n}" for n in range(1, len(made) + 1))
        sql = f"SELECT * FROM (VALUES {lines}) AS _v({outputs})"
        columns = [
            NamedColumn(f"column{n}", replace(column[0], sql=f"_c{n}", is_constant=False, literal=None))
            for n, column in enumerate(made, 1)
        ]
        return self._ordered(select, columns, sql, parent)

    # SELECT

    def _select(self, select: Node, parent: Scope | None) -> Query:
        scope = Scope(parent)
        sources = select.get("fromClause", [])
        is_ordered = len(sources) == 1 and _sees_order([select.get("targetList"), select.get("havingClause")])
        for item in sources:
            scope.items.append(self._from_clause.item(item, scope, is_ordered))
        targets = self._target_nodes(select.get("targetList", []), scope)
        grouping = self._grouping.sql(select, scope, targets)
        for item in select.get("windowClause", []):
            definition = item["WindowDef"]
            scope.windows[definition["name"]] = definition
        having = self.expressions.condition(select["havingClause"], scope, "HAVING") if "havingClause" in select else ""
        columns = [
            NamedColumn(
                name, self.expressions.translate(node, scope) if isinstance(node, dict) else scope.grouped(node)
            )
            for name, node in targets
        ]
        # After the select list, as in PostgreSQL: the first place of a parameter decides its type.
        before_groups = Scope(parent, scope.items)
        where = select.get("whereClause", "") and self.expressions.condition(
            select["whereClause"], before_groups, "WHERE"
        )
        for column in columns:
            if column.value.fields and not column.value.is_struct:
                raise refuse("a row in a select list", "Select its columns: t.*")
        order, order_places, sorted_by = self._sort_items(select, scope, targets, columns)
        limits = self._limits(select, parent)
        source = f" FROM {', '.join(item.sql for item in scope.items)}" if scope.items else ""
        middle = source + (f" WHERE {where}" if where else "") + grouping + (f" HAVING {having}" if having else "")
        tail = (f" ORDER BY {', '.join(order)}" if order else "") + limits
        distinct = select.get("distinctClause")
        if distinct is not None:
            is_plain_distinct = not any(distinct[0].values()) if distinct[0] else True
            if is_plain_distinct:
                return self._distinct(columns, middle, order_places, limits)
            places = [(self._output_place(node, columns), node) for node in distinct]
            wanted = [columns[p].value if p is not None else self.expressions.value(node, scope) for p, node in places]
            first = sorted_by[: len({v.sql for v in wanted})]
            if not {v.sql for v in wanted} >= set(first):
                raise QueryError("42P10", "SELECT DISTINCT ON expressions must match initial ORDER BY expressions")
            keys = [equality_key(v) for v in wanted]
            head = f"SELECT DISTINCT ON ({', '.join(keys)}) "
        else:
            head = "SELECT "
        has_sets = any("unnest(" in c.value.sql for c in columns)

        def build(values: Sequence[Typed]) -> str:
            if has_sets and tail:
                listed = [f"{c.value.sql} AS _c{n}" for n, c in enumerate(columns, 1)]
                listed += [
                    f"{o.rpartition(' NULLS ')[0].rpartition(' ')[0]} AS _o{n}"
                    for n, (p, _) in enumerate(order_places)
                    if p is None
                    for o in [order[n]]
                ]
                inner = ", ".join(listed)
                outer = ", ".join(
                    v.sql.replace(c.value.sql, f"_c{n}") + f" AS _c{n}"
                    for n, (v, c) in enumerate(zip(values, columns, strict=True), 1)
                )
                sorts = [
                    sort_item(order_key(replace(columns[p].value, sql=f"_d._c{p + 1}")), s)
                    if p is not None
                    else sort_item(f"_o{n}", s)
                    for n, (p, s) in enumerate(order_places)
                ]
                ending = (f" ORDER BY {', '.join(sorts)}" if sorts else "") + limits
                return f"SELECT {outer} FROM ({head}{inner}{middle}) AS _d{ending}"
            outputs = ", ".join(f"{v.sql} AS _c{n}" for n, v in enumerate(values, 1))
            return f"{head}{outputs or 'NULL AS _c1'}{middle}{tail}"

        sort_keys = () if distinct is not None or has_sets or not columns else order
        return Query(columns, build, sort_keys=sort_keys)

    def _distinct(
        self,
        columns: list[NamedColumn],
        middle: str,
        places: Sequence[tuple[int | None, Node]],
        limits: str,
    ) -> Query:
        """SELECT DISTINCT: the order applies to the distinct rows."""
        values = [convert(c.value, TEXT) if c.value.is_unknown else c.value for c in columns]
        inner = ", ".join(f"{v.sql} AS _c{n}" for n, v in enumerate(values, 1))
        keys = [equality_key(replace(v, sql=f"_c{n}")) for n, v in enumerate(values, 1)]
        if all(key == f"_c{n}" for n, key in enumerate(keys, 1)):
            sql = f"SELECT DISTINCT {inner}{middle}"
        else:
            sql = f"SELECT DISTINCT ON ({', '.join(keys)}) * FROM (SELECT {inner}{middle}) AS _k"
        order = []
        for place, sort in places:
            if place is None:
                raise QueryError("42P10", "for SELECT DISTINCT, ORDER BY expressions must appear in select list")
            order.append(sort_item(order_key(replace(values[place], sql=f"_d._c{place + 1}")), sort))
        made = [
            NamedColumn(c.name, replace(v, sql=f"_c{n}", is_constant=False, literal=None))
            for n, (c, v) in enumerate(zip(columns, values, strict=True), 1)
        ]
        suffix = (f" ORDER BY {', '.join(order)}" if order else "") + limits

        def build(outputs: Sequence[Typed]) -> str:
            listed = ", ".join(f"{v.sql} AS _c{n}" for n, v in enumerate(outputs, 1))
            return f"SELECT {listed} FROM ({sql}) AS _d{suffix}"

        return Query(made, build)

    def _target_nodes(self, targets: Sequence[Node], scope: Scope) -> list[tuple[str, Any]]:
        """The select list: name and node of each item, or the column itself for those of `*`."""
        found: list[tuple[str, Any]] = []
        for item in targets:
            target = item["ResTarget"]
            node = target["val"]
            if "ColumnRef" in node and "A_Star" in node["ColumnRef"]["fields"][-1]:
                parts = names(node["ColumnRef"]["fields"][:-1])
                if not parts:
                    if not scope.items:
                        raise QueryError("42601", "SELECT * with no tables specified is not valid")
                    found += [(c.name, c.value) for source in scope.items for c in source.columns]
                else:
                    table = scope.table(parts[-1], parts[-2] if len(parts) > 1 else None)
                    found += [(c.name, c.value) for c in table.columns]
            elif "A_Indirection" in node and "A_Star" in node["A_Indirection"]["indirection"][-1]:
                raise refuse("the expansion of a row")
            else:
                found.append((target.get("name") or column_name(node), node))
        return found

    # GROUP BY, ORDER BY, windows

    def _sort_items(
        self, select: Node, scope: Scope, targets: list[tuple[str, Any]], columns: Sequence[NamedColumn]
    ) -> tuple[list[str], list[tuple[int | None, Node]], list[str]]:
        """The items of ORDER BY, the columns of the select list that they are, and their values."""
        order, places, values = [], [], []
        for item in select.get("sortClause", []):
            sort = item["SortBy"]
            if sort.get("useOp"):
                raise refuse("ORDER BY … USING")
            place = self._output_place(sort["node"], columns)
            if place is None:
                mark = fingerprint(sort["node"])
                place = next(
                    (n for n, (_, node) in enumerate(targets) if isinstance(node, dict) and fingerprint(node) == mark),
                    None,
                )
            value = columns[place].value if place is not None else self.expressions.value(sort["node"], scope)
            if value.is_unknown:
                value = convert(value, TEXT)
            if place is None and (same := [n for n, c in enumerate(columns) if c.value.sql == value.sql]):
                place = same[0]
            if value.is_constant:
                continue
            order.append(sort_item(order_key(value), sort))
            places.append((place, sort))
            values.append(value.sql)
        return order, places, values


_ORDERED_AGGREGATES: Final = frozenset(
    ("array_agg", "string_agg", "json_agg", "jsonb_agg", "json_object_agg", "jsonb_object_agg", "xmlagg")
)


def _sees_order(node: Any) -> bool:
    """Whether an aggregate in an expression depends on the order of the rows, and does not state it itself."""
    if isinstance(node, dict):
        call = node.get("FuncCall", {})
        if call and names(call["funcname"])[-1] in _ORDERED_AGGREGATES and "agg_order" not in call:
            return True
        return any(_sees_order(value) for key, value in node.items() if key != "subselect")
    return isinstance(node, list) and any(map(_sees_order, node))
