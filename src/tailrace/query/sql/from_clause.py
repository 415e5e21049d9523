"""FROM: tables, joins, subqueries and functions, and the names that they give to the rest of a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tailrace.query.query_error import QueryError
from tailrace.query.sql import pg_type, set_function
from tailrace.query.sql.cast import convert
from tailrace.query.sql.column_name import column_name
from tailrace.query.sql.pg_type import INT8, TEXT
from tailrace.query.sql.scope import FromItem, NamedColumn, Scope, TableName, renamed
from tailrace.query.sql.signature import functions, resolve_function
from tailrace.query.sql.syntax import Node, names, refuse, unwrap
from tailrace.query.sql.typed import Typed
from tailrace.query.sql.unification import unify

if TYPE_CHECKING:
    from tailrace.query.sql.select import QueryTranslator

_JOINS: Final = {"JOIN_INNER": "JOIN", "JOIN_LEFT": "LEFT JOIN", "JOIN_RIGHT": "RIGHT JOIN", "JOIN_FULL": "FULL JOIN"}
_TABLE_FUNCTIONS: Final = frozenset(("pg_show_all_settings", "pg_get_keywords", "pg_available_extensions"))


class FromClause:
    def __init__(self, queries: QueryTranslator) -> None:
        self._queries = queries

    def item(self, node: Node, scope: Scope, is_ordered: bool = False) -> FromItem:
        """An item of FROM. With `is_ordered`, the order of its rows matters."""
        tag, fields = unwrap(node)
        match tag:
            case "RangeVar":
                return self._table(fields, is_ordered)
            case "RangeSubselect":
                return self._subselect(fields, scope, is_ordered)
            case "JoinExpr":
                return self._join(fields, scope)
            case "RangeFunction":
                return self._function(fields, scope)
        raise refuse({"RangeTableSample": "TABLESAMPLE"}.get(tag, tag))

    def _table(self, fields: Node, is_ordered: bool) -> FromItem:
        name, schema = fields["relname"], fields.get("schemaname")
        alias_node = fields.get("alias", {})
        alias = self._queries.alias()
        aliases = names(alias_node.get("colnames", []))
        common = None
        if schema is None:
            common = self._queries.common_table(name)
        if common is not None and common.is_sorted and is_ordered:
            raise refuse("an aggregate over the order of this query", "Write ORDER BY inside the aggregate.")
        if common is not None:
            sql = f"{common.sql} AS {alias}"
            given = [NamedColumn(c.name, c.value.in_column(f"{alias}._c{n}")) for n, c in enumerate(common.columns, 1)]
            table_schema, key = None, frozenset[str]()
        else:
            source = self._queries.catalog.source(fields.get("catalogname"), schema, name)
            sql = f"{source.sql} AS {alias}"
            given = [
                NamedColumn(c.name, replace(c.value, sql=c.value.sql.replace("{t}", alias))) for c in source.columns
            ]
            table_schema = source.schema
            key = frozenset(c.value.sql for c in given if c.name in source.key)
        columns = tuple(renamed(given, aliases))
        shown = alias_node.get("aliasname", name)
        table = TableName(shown, columns, None if "aliasname" in alias_node else table_schema, key)
        return FromItem(sql, (table,), columns)

    def _subselect(self, fields: Node, scope: Scope, is_ordered: bool) -> FromItem:
        parent = scope if fields.get("lateral") else scope.parent
        query = self._queries.query(fields["subquery"], parent)
        alias = self._queries.alias()
        alias_node = fields.get("alias", {})
        given = [NamedColumn(c.name, c.value.in_column(f"{alias}._c{n}")) for n, c in enumerate(query.resolved(), 1)]
        columns = tuple(renamed(given, names(alias_node.get("colnames", []))))
        outputs = ", ".join(f"_c{n}" for n in range(1, max(len(given), 1) + 1))
        text, order = query.sorted_sql() if is_ordered else (query.sql(), [])
        if is_ordered and not order and "sortClause" in unwrap(fields["subquery"])[1]:
            raise refuse("an aggregate over the order of this subquery", "Write ORDER BY inside the aggregate.")
        sql = f"{'LATERAL ' if fields.get('lateral') else ''}({text}) AS {alias}({outputs})"
        tables = (TableName(alias_node["aliasname"], columns),) if alias_node else ()
        return FromItem(sql, tables, columns, order=", ".join(f"{alias}.{item}" for item in order))

    def _join(self, fields: Node, scope: Scope) -> FromItem:
        left = self.item(fields["larg"], scope)
        around = Scope(scope.parent, [*scope.items, left])
        right = self.item(fields["rarg"], around)
        kind = _JOINS[fields.get("jointype", "JOIN_INNER")]
        if "join_using_alias" in fields:
            raise refuse("an alias of JOIN … USING")
        shared: list[str] = []
        if fields.get("isNatural"):
            shared = [c.name for c in left.columns if any(c.name == d.name for d in right.columns)]
        elif "usingClause" in fields:
            shared = names(fields["usingClause"])
        inside = Scope(scope.parent, [*scope.items, left, right])
        columns = (*left.columns, *right.columns)
        if shared:
            condition, columns = self._using(shared, left, right, kind)
        elif "quals" in fields:
            condition = self._queries.expressions.condition(fields["quals"], inside, "JOIN/ON")
        else:
            condition = "true"
        sql = f"({left.sql} {kind} {right.sql} ON {condition})"
        if condition == "true" and kind == "JOIN":
            sql = f"({left.sql} CROSS JOIN {right.sql})"
        tables = (*left.tables, *right.tables)
        if "alias" in fields:
            alias = fields["alias"]
            columns = tuple(renamed(list(columns), names(alias.get("colnames", []))))
            tables = (TableName(alias["aliasname"], columns),)
        return FromItem(sql, tables, columns)

    def _using(
        self, shared: Sequence[str], left: FromItem, right: FromItem, kind: str
    ) -> tuple[str, tuple[NamedColumn, ...]]:
        tests, merged = [], []
        for name in shared:
            sides = []
            for item, side in ((left, "left"), (right, "right")):
                found = [c.value for c in item.columns if c.name == name]
                if len(found) != 1:
                    problem = "42703" if not found else "42702"
                    raise QueryError(
                        problem,
                        f'column "{name}" specified in USING clause does not exist in {side} table'
                        if not found
                        else f'common column name "{name}" appears more than once in {side} table',
                    )
                sides.append(found[0])
            a, b = sides
            tests.append(self._queries.expressions.operations.binary("=", a, b).sql)
            x, y = unify([a, b], "JOIN/USING")
            value = {"RIGHT JOIN": y, "FULL JOIN": replace(x, sql=f"coalesce({x.sql}, {y.sql})")}.get(kind, x)
            merged.append(NamedColumn(name, value))
        rest = [c for item in (left, right) for c in item.columns if c.name not in shared]
        return " AND ".join(tests), (*merged, *rest)

    def _function(self, fields: Node, scope: Scope) -> FromItem:
        if fields.get("is_rowsfrom") and len(fields["functions"]) > 1:
            raise refuse("ROWS FROM")
        call = fields["functions"][0]["List"]["items"][0]
        alias_node = fields.get("alias", {})
        alias = self._queries.alias()
        aliases = names(alias_node.get("colnames", []))
        if fields.get("coldeflist"):
            raise refuse("a column definition list")
        tag, node = unwrap(call)
        if tag != "FuncCall":
            value = self._queries.expressions.value(call, scope)
            return self._scalar_item(value, column_name(call), alias, alias_node, aliases)
        parts = names(node["funcname"])
        name = parts[-1]
        shown = alias_node.get("aliasname", name)
        if parts[0] == "tailrace" or name in _TABLE_FUNCTIONS:
            source = self._queries.catalog.table_function(".".join(p for p in parts if p != "pg_catalog"))
            if source is None:
                raise QueryError("42883", f"function {'.'.join(parts)} does not exist")
            columns = tuple(
                renamed(
                    [
                        NamedColumn(c.name, replace(c.value, sql=c.value.sql.replace("{t}", alias)))
                        for c in source.columns
                    ],
                    aliases,
                )
            )
            return FromItem(f"{source.sql} AS {alias}", (TableName(shown, columns),), columns)
        around = Scope(scope.parent, scope.items)
        arguments = [self._queries.expressions.translate(a, around) for a in node.get("args", [])]
        if name == "_pg_expandarray":
            return self._expanded_array(arguments[0], alias, shown, aliases)
        if not functions(name) or not any(s.kind == "s" for s in functions(name)):
            value = self._queries.expressions.value(call, around)
            return self._scalar_item(value, name, alias, alias_node, aliases)
        if name == "unnest" and len(arguments) > 1:
            raise refuse(
                "unnest of several arrays", "Unnest one array, and use the others' elements at its ordinality."
            )
        resolved = resolve_function(name, [a.type for a in arguments])
        made = [convert(a, t) for a, t in zip(arguments, resolved.arguments, strict=True)]
        lists = set_function.lists(resolved, made)
        ordinality = bool(fields.get("ordinality"))
        is_constant = all(a.is_constant for a in made)
        if name == "generate_series" and is_constant and not ordinality and made[0].name in ("int4", "int8"):
            given = ", ".join(a.sql for a in made)
            type_ = resolved.result
            value = Typed(f"CAST({alias}._c1 AS {'INTEGER' if type_.name == 'int4' else 'BIGINT'})", type_)
            sql = f"generate_series({given}) AS {alias}(_c1)"
            columns_list = [NamedColumn(name, value)]
        else:
            selected = [f"unnest({c.value.sql}) AS _c{n}" for n, c in enumerate(lists, 1)]
            columns_list = [NamedColumn(c.name, replace(c.value, sql=f"{alias}._c{n}")) for n, c in enumerate(lists, 1)]
            if ordinality:
                place = len(lists) + 1
                selected.append(f"unnest(generate_series(1, len({lists[0].value.sql}))) AS _c{place}")
                columns_list.append(NamedColumn("ordinality", Typed(f"{alias}._c{place}", INT8)))
            sql = f"LATERAL (SELECT {', '.join(selected)}) AS {alias}"
        if len(lists) == 1 and columns_list[0].name == name and "aliasname" in alias_node:
            # Functions that name their result, as jsonb_array_elements does with `value`, keep the name.
            columns_list[0] = replace(columns_list[0], name=shown)
        columns = tuple(renamed(columns_list, aliases))
        scalar = shown if len(lists) == 1 and not ordinality else None
        return FromItem(sql, (TableName(shown, columns),), columns, scalar)

    def _scalar_item(self, value: Typed, name: str, alias: str, alias_node: Node, aliases: list[str]) -> FromItem:
        """A function in FROM that returns one value: a table of one row."""
        if value.fields:
            raise refuse("a row in FROM")
        shown = alias_node.get("aliasname", name)
        columns = tuple(renamed([NamedColumn(shown, replace(value, sql=f"{alias}._c1", is_constant=False))], aliases))
        return FromItem(f"LATERAL (SELECT {value.sql} AS _c1) AS {alias}", (TableName(shown, columns),), columns, shown)

    def _expanded_array(self, value: Typed, alias: str, shown: str, aliases: list[str]) -> FromItem:
        element = pg_type.base_type(value.base.element or TEXT)
        numbers = f"generate_series(1, len({value.sql}))"
        sql = f"LATERAL (SELECT unnest({value.sql}) AS _c1, unnest({numbers}) AS _c2) AS {alias}"
        given = [
            NamedColumn("x", Typed(f"{alias}._c1", element)),
            NamedColumn("n", Typed(f"CAST({alias}._c2 AS INTEGER)", pg_type.INT4)),
        ]
        columns = tuple(renamed(given, aliases))
        return FromItem(sql, (TableName(shown, columns),), columns)
