"""Calls of functions, aggregates and window functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tailrace.change import Type
from tailrace.query.query_error import QueryError
from tailrace.query.sql import aggregate, function, pg_type, set_function
from tailrace.query.sql.cast import convert
from tailrace.query.sql.comparison import equality_key
from tailrace.query.sql.pg_type import INT4, TEXT, array_of
from tailrace.query.sql.scope import Scope
from tailrace.query.sql.signature import can_coerce, functions, resolve_function
from tailrace.query.sql.syntax import Node, names, refuse, unwrap
from tailrace.query.sql.typed import REG, Typed, constant_text, list_of, null_of, numeric_text, text_literal
from tailrace.query.sql.unification import align
from tailrace.query.table_view import sql_literal

if TYPE_CHECKING:
    from tailrace.query.sql.expression import Expressions, Rule


_CITEXT_FUNCTIONS: Final = frozenset(
    ("regexp_match", "regexp_matches", "regexp_replace", "regexp_split_to_array", "regexp_split_to_table", "replace",
     "split_part", "strpos", "translate", "position")
)  # fmt: skip


class Calls:
    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._queries = expressions.queries
        self._catalog = expressions.catalog

    def rules(self) -> dict[str, Rule]:
        return {
            "FuncCall": self._call,
            "GroupingFunc": self._grouping,
        }

    def _call(self, node: Node, scope: Scope) -> Typed:
        parts = names(node["funcname"])
        name = parts[-1]
        if len(parts) > 1 and parts[0] not in ("pg_catalog", "information_schema"):
            raise QueryError("42883", f"function {'.'.join(parts)} does not exist")
        given = node.get("args", [])
        if (special := self._special_call(name, given, node, scope)) is not None:
            return special
        signatures = functions(name)
        kinds = {s.kind for s in signatures}
        if "over" in node or "a" in kinds or "w" in kinds:
            return self._aggregate(name, node, scope, kinds)
        if node.get("agg_order") or node.get("agg_distinct") or node.get("agg_filter") or node.get("agg_star"):
            raise QueryError("42809", f"{name} is not an aggregate function")
        arguments = [
            self._expressions.translate(unwrap(a)[1]["arg"] if "NamedArgExpr" in a else a, scope) for a in given
        ]
        if any("NamedArgExpr" in a for a in given) and name != "make_interval":
            raise refuse(f"named arguments of {name}")
        if name == "make_interval":
            return self._make_interval(given, arguments)
        return self.call(name, arguments, is_variadic=bool(node.get("func_variadic")))

    def _make_interval(self, given: list[Node], arguments: list[Typed]) -> Typed:
        order = ["years", "months", "weeks", "days", "hours", "mins", "secs"]
        parts = dict.fromkeys(order, "0")
        for place, (argument, value) in enumerate(zip(given, arguments, strict=True)):
            word = argument["NamedArgExpr"]["name"] if "NamedArgExpr" in argument else order[place]
            type_ = pg_type.FLOAT8 if word == "secs" else INT4
            if not can_coerce(value.type, type_):
                given_type = pg_type.display_name(value.type)
                raise QueryError("42883", f"function make_interval({word} => {given_type}) does not exist")
            parts[word] = convert(value, type_).sql
        rendering: Any = function.FUNCTIONS["make_interval()"]
        return rendering([Typed(parts[word], INT4) for word in order], pg_type.INTERVAL)  # type: ignore[no-any-return]

    def call(self, name: str, arguments: Sequence[Typed], is_variadic: bool = False) -> Typed:
        """A call of a function that is neither an aggregate nor a window function."""
        type_ = pg_type.find_built_in(name) if len(arguments) == 1 else None
        if type_ is not None and name not in ("text", "char", "bool", "name"):
            has_rendering = any(s.key in function.FUNCTIONS for s in functions(name) if len(s.arguments) == 1)
            if not has_rendering:
                return self._expressions.cast(arguments[0], type_)
        if name in _CITEXT_FUNCTIONS and any(pg_type.is_citext(a.base) for a in arguments):
            raise refuse(f"{name} of citext", "Cast to text.")
        if any(a.fields for a in arguments) and name not in (
            "row_to_json",
            "to_json",
            "to_jsonb",
            "json_build_object",
            "jsonb_build_object",
            "json_build_array",
            "jsonb_build_array",
        ):
            raise refuse(f"{name} of a row")
        resolved = resolve_function(name, [a.type for a in arguments], is_variadic)
        made = [self._argument(a, t) for a, t in zip(arguments, resolved.arguments, strict=True)]
        if resolved.signature.kind == "s":
            return set_function.render(resolved, made)
        if is_variadic:
            raise refuse(f"VARIADIC in a call of {name}")
        if name in function.SYSTEM:
            given = [numeric_text(a) if a.name == "numeric" else a.sql for a in made]
            return Typed(f"{name}({', '.join(given)})", resolved.result)
        for key in dict.fromkeys((resolved.signature.key, _variadic_key(resolved.signature.key))):
            found = function.render(key, made, resolved.result)
            if found is not None:
                return found
        types = ", ".join(pg_type.display_name(t) for t in resolved.arguments)
        raise refuse(f"function {name}({types})")

    def _argument(self, value: Typed, type_: Type) -> Typed:
        if value.fields:
            return value
        return (
            self._expressions.reg_cast(value, type_)
            if value.literal is not None and type_.name in REG
            else convert(value, type_)
        )

    def _special_call(self, name: str, given: list[Node], node: Node, scope: Scope) -> Typed | None:
        """Functions that the session answers, and those with names that PostgreSQL's grammar makes."""
        if "over" in node:
            return None
        if not given and (sql := self._catalog.constant(name)) is not None:
            type_ = {"version": TEXT, "pg_backend_pid": INT4}.get(name, pg_type.NAME)
            return Typed(sql, type_)
        if name in (
            "current_setting",
            "set_config",
            "current_schemas",
            "to_regclass",
            "to_regtype",
            "parse_ident",
            "_pg_expandarray",
            "pg_typeof",
        ):
            return self._session_call(name, [self._expressions.translate(a, scope) for a in given])
        if name == "timezone" and len(given) == 2:
            return None
        if name == "position" and len(given) == 2:
            # The grammar has already put the arguments in the order of the function.
            return None
        if name == "xmlexists" or name.startswith("xml"):
            raise refuse(name)
        return None

    def _session_call(self, name: str, arguments: list[Typed]) -> Typed:
        texts = [
            constant_text(a, "an argument") if a.is_constant and a.sql.startswith("'") else None for a in arguments
        ]
        match name:
            case "current_setting":
                if texts[0] is None:
                    raise refuse("current_setting of a name that is not a literal")
                value = self._catalog.setting(texts[0])
                if value is None and len(arguments) < 2:
                    raise QueryError("42704", f'unrecognized configuration parameter "{texts[0]}"')
                return Typed("CAST(NULL AS VARCHAR)", TEXT) if value is None else text_literal(value, TEXT)
            case "set_config":
                if len(arguments) != 3 or texts[0] is None or texts[1] is None:
                    raise refuse("set_config with arguments that are not literals")
                self._catalog.set_config(texts[0], texts[1], arguments[2].sql == "true")
                return text_literal(texts[1], TEXT)
            case "current_schemas":
                schemas = self._catalog.search_path()
                if arguments[0].sql == "true":
                    schemas = ["pg_catalog", *schemas]
                return list_of([sql_literal(s) for s in schemas], array_of(pg_type.NAME))
            case "to_regclass" | "to_regtype":
                type_ = pg_type.built_in(name.removeprefix("to_"))
                if texts[0] is None:
                    return Typed(f"regclass_oid({arguments[0].sql})", type_)
                oid = self._catalog.oid(type_.name, texts[0])
                return Typed(null_of(type_) if oid is None else f"CAST({oid} AS BIGINT)", type_)
            case "parse_ident":
                return Typed(f"parse_ident({convert(arguments[0], TEXT).sql})", array_of(TEXT), is_list=True)
            case "pg_typeof":
                type_ = arguments[0].type
                if not type_.oid or arguments[0].fields:
                    raise refuse(f"pg_typeof of {pg_type.display_name(type_)}")
                return Typed(f"CAST({type_.oid} AS BIGINT)", pg_type.built_in("regtype"))
            case "_pg_expandarray":
                return set_function.numbered_elements(arguments[0])
        raise refuse(name)

    def _aggregate(self, name: str, node: Node, scope: Scope, kinds: set[str]) -> Typed:
        inner = Scope(scope.parent, scope.items, {}, scope.windows, in_aggregate=True)
        # Inside a window function, expressions still see the groups.
        over_node = node.get("over")
        inside = scope if over_node is not None and (scope.groups or scope.dependent) else inner
        arguments = [self._expressions.translate(a, inside) for a in node.get("args", [])]
        filter_ = self._expressions.condition(node["agg_filter"], inner, "FILTER") if "agg_filter" in node else ""
        over = self._queries.windows.sql(over_node, scope) if over_node is not None else ""
        if node.get("agg_within_group"):
            return self._ordered_set(name, arguments, node, inner, filter_)
        if over and (node.get("agg_order") or node.get("agg_distinct")):
            word = "ORDER BY" if node.get("agg_order") else "DISTINCT"
            raise refuse(f"{word} in an aggregate with OVER", "PostgreSQL does not allow it either.")
        order = self._queries.windows.order_items(node["agg_order"], inside) if "agg_order" in node else ""
        if not order and not over and not node.get("agg_distinct") and len(scope.items) == 1:
            order = scope.items[0].order
        if node.get("agg_star"):
            return aggregate.render(
                aggregate.Call("count", [], resolve_function("count", []), filter=filter_, over=over)
            )
        if any(a.fields for a in arguments) and name not in ("json_agg", "jsonb_agg", "count"):
            raise refuse(f"{name} of a row")
        if (
            name in ("min", "max")
            and arguments
            and arguments[0].base.kind != "e"
            and not pg_type.is_own(arguments[0].base)
            and arguments[0].base.element is None
        ):
            if not pg_type.is_citext(arguments[0].base):
                raise refuse(f"{name} of {arguments[0].base.name}")
            resolved = resolve_function(name, [TEXT])
            return aggregate.render(aggregate.Call(name, arguments, resolved, filter=filter_, over=over))
        resolved = resolve_function(name, [a.type for a in arguments])
        made = [a if a.fields else convert(a, t) for a, t in zip(arguments, resolved.arguments, strict=True)]
        if "w" in kinds:
            if not over:
                raise QueryError("42P20", f"window function {name} requires an OVER clause")
            if node.get("ignore_nulls"):
                raise refuse("IGNORE NULLS")
            if name in ("lag", "lead") and len(made) == 3:
                value, default = align([made[0], convert(made[2], made[0].type)])
                made = [value, made[1], default]
            return aggregate.window(name, made, over)
        if "a" not in kinds:
            raise QueryError("42809", f"OVER specified, but {name} is not a window function nor an aggregate function")
        return aggregate.render(
            aggregate.Call(name, made, resolved, bool(node.get("agg_distinct")), order, filter_, over)
        )

    def _ordered_set(self, name: str, arguments: list[Typed], node: Node, scope: Scope, filter_: str) -> Typed:
        sort = node["agg_order"][0]
        value = self._expressions.value(sort["SortBy"]["node"], scope)
        if len(arguments) != 1 or len(node["agg_order"]) != 1 or arguments[0].base.element is not None:
            raise refuse(f"{name} with these arguments")
        is_descending = sort["SortBy"].get("sortby_dir") == "SORTBY_DESC"
        return aggregate.ordered_set(name, arguments[0], value, is_descending, filter_)

    def _grouping(self, node: Node, scope: Scope) -> Typed:
        inner = Scope(scope.parent, scope.items, {}, scope.windows, in_aggregate=True)
        parts = [equality_key(self._expressions.value(a, inner)) for a in node["args"]]
        return Typed(f"CAST(grouping({', '.join(parts)}) AS INTEGER)", INT4)


def _variadic_key(key: str) -> str:
    """`concat(any,any,any)` → `concat(any)`: the key of a function with any number of arguments."""
    name, _, rest = key.partition("(")
    parts = rest.rstrip(")").split(",")
    while len(parts) > 1 and parts[-1] == parts[-2]:
        parts.pop()
    return f"{name}({','.join(parts)})"
