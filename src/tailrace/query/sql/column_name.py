"""PostgreSQL's names for the columns of a result: `count` for count(*), `?column?` for 1 + 1."""

from __future__ import annotations

from typing import Final

from tailrace.query.sql.syntax import Node, names, unwrap

_VALUE_FUNCTIONS: Final = {
    "SVFOP_CURRENT_DATE": "current_date", "SVFOP_CURRENT_TIMESTAMP": "current_timestamp",
    "SVFOP_CURRENT_TIMESTAMP_N": "current_timestamp", "SVFOP_LOCALTIMESTAMP": "localtimestamp",
    "SVFOP_LOCALTIME": "localtime", "SVFOP_CURRENT_USER": "current_user", "SVFOP_SESSION_USER": "session_user",
    "SVFOP_USER": "user", "SVFOP_CURRENT_ROLE": "current_role", "SVFOP_CURRENT_CATALOG": "current_catalog",
    "SVFOP_CURRENT_SCHEMA": "current_schema", "SVFOP_CURRENT_TIME": "current_time",
}  # fmt: skip
_WITHOUT_NAME: Final = "?column?"


def column_name(node: Node) -> str:
    return _named(node)[0]


def _named(node: Node) -> tuple[str, int]:
    """The name, and how much it says: 2 a column or function, 1 a type or CASE, 0 nothing."""
    tag, fields = unwrap(node)
    match tag:
        case "ColumnRef":
            return names([f for f in fields["fields"] if "String" in f])[-1], 2
        case "FuncCall":
            return names(fields["funcname"])[-1], 2
        case "A_Indirection":
            texts = [step["String"]["sval"] for step in fields["indirection"] if "String" in step]
            return (texts[-1], 2) if texts else _named(fields["arg"])
        case "TypeCast":
            name, strength = _named(fields["arg"])
            return (name, strength) if strength > 1 else (names(fields["typeName"]["names"])[-1], 1)
        case "CollateClause":
            return _named(fields["arg"])
        case "CaseExpr":
            name, strength = _named(fields["defresult"]) if "defresult" in fields else ("", 0)
            return (name, strength) if strength > 1 else ("case", 1)
        case "CoalesceExpr":
            return "coalesce", 2
        case "MinMaxExpr":
            return "greatest" if fields["op"] == "IS_GREATEST" else "least", 2
        case "A_ArrayExpr":
            return "array", 2
        case "RowExpr":
            return "row", 2
        case "GroupingFunc":
            return "grouping", 2
        case "SQLValueFunction":
            return _VALUE_FUNCTIONS.get(fields["op"], _WITHOUT_NAME), 2
        case "A_Expr" if fields["kind"] == "AEXPR_NULLIF":
            return "nullif", 2
        case "SubLink":
            return _of_subquery(fields)
    return _WITHOUT_NAME, 0


def _of_subquery(fields: Node) -> tuple[str, int]:
    kind = fields["subLinkType"]
    if kind == "EXISTS_SUBLINK":
        return "exists", 2
    if kind == "ARRAY_SUBLINK":
        return "array", 2
    if kind == "EXPR_SUBLINK":
        select = fields["subselect"]["SelectStmt"]
        targets = select.get("targetList")
        if targets:
            target = targets[0]["ResTarget"]
            return (target["name"], 2) if "name" in target else _named(target["val"])
    return _WITHOUT_NAME, 0
