"""The tables and functions that a statement references, found by DuckDB's own parser.

Only a SELECT passes, and only if it calls no function that reads files, runs other SQL or reveals anything about the
server. What the locked engine would refuse anyway is refused here first, with a clear error message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tailrace.query.pruning import unprunable_columns
from tailrace.query.query_error import FORBIDDEN, READ_ONLY, UNSUPPORTED, QueryError
from tailrace.query.table_view import sql_literal

_FORBIDDEN: Final = re.compile(
    r"read_\w+|\w+_scan|scan_\w+|\w+_scan_\w+|glob|sniff_csv|parquet_\w+|iceberg_\w+|query|query_table|getenv|getvariable"
    r"|json_execute_serialized_sql|from_substrait\w*|which_secret|duckdb_(secrets|settings|logs\w*|extensions|databases"
    r"|temporary_files|approx_database_count|log_contexts|external_file_cache|prepared_statements|variables|views|tables"
    r"|columns|schemas|types|dependencies|constraints|indexes|sequences|functions|memory|connection_count)"
    r"|pragma_\w+|test_\w+|current_setting|checkpoint|force_checkpoint|icu_calendar_names|shell_\w+|load_aws\w*|arrow_\w+"
    r"|pandas_\w+|python_\w+|repeat_row|seq_scan|index_scan|summary|enable_\w+|disable_\w+|truncate_\w+|add_parquet_key|http_\w+"
)
# DuckDB's statement type → SQLSTATE. Others, such as EXPLAIN, are unsupported.
_SQLSTATES: Final = {
    "INSERT": READ_ONLY, "UPDATE": READ_ONLY, "DELETE": READ_ONLY, "CREATE": READ_ONLY, "DROP": READ_ONLY,
    "ALTER": READ_ONLY, "MERGE_INTO": READ_ONLY, "COPY": FORBIDDEN, "COPY_DATABASE": FORBIDDEN, "ATTACH": FORBIDDEN,
    "DETACH": FORBIDDEN, "LOAD": FORBIDDEN, "EXPORT": FORBIDDEN, "CALL": FORBIDDEN, "PRAGMA": FORBIDDEN,
    "VACUUM": READ_ONLY, "ANALYZE": READ_ONLY, "SET": FORBIDDEN, "UPDATE_EXTENSIONS": FORBIDDEN,
}  # fmt: skip


@dataclass(frozen=True)
class References:
    tables: frozenset[tuple[str, str, str]]
    """Catalog, schema and name; empty where the statement does not give them."""
    ctes: frozenset[str]
    """Names defined by WITH … AS, in lower case."""
    functions: frozenset[str]
    unprunable: frozenset[str]
    """Columns that must not be used to skip files."""


def find_references(bare: Any, sql: str) -> References:
    """The references of `sql`. Raises QueryError if it may not run."""
    # A literal, because for a parameter DuckDB searches for missing libraries, which doubles the time.
    parsed = json.loads(bare.execute(f"SELECT json_serialize_sql({sql_literal(sql)})").fetchone()[0])
    if parsed["error"]:
        if parsed["error_type"] == "parser":
            is_known = "not supported" in parsed["error_message"]
            raise QueryError(UNSUPPORTED if is_known else "42601", parsed["error_message"])
        raise _refusal(bare, sql)
    tables: set[tuple[str, str, str]] = set()
    functions: set[str] = set()
    ctes: set[str] = set()
    nodes = list(_nodes(parsed["statements"]))
    for node in nodes:
        if node.get("type") == "BASE_TABLE":
            tables.add((node["catalog_name"], node["schema_name"], node["table_name"]))
        if node.get("class") == "FUNCTION" or node.get("class") == "WINDOW":
            functions.add(str(node["function_name"]).lower())
        if "cte_map" in node:
            ctes.update(entry["key"].lower() for entry in node["cte_map"]["map"])
    for name in sorted(functions):
        if _FORBIDDEN.fullmatch(name):
            raise QueryError(
                FORBIDDEN, f"permission denied for function {name}", "This server only reads the lake's tables."
            )
    return References(frozenset(tables), frozenset(ctes), frozenset(functions), unprunable_columns(nodes))


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)


def _refusal(bare: Any, sql: str) -> QueryError:
    kinds = [statement.type.name for statement in bare.extract_statements(sql)]
    kind = kinds[0] if kinds else "?"
    word = sql.split(None, 1)[0].upper()
    if kind == "SELECT" or word == "PRAGMA":  # DuckDB rewrites a PRAGMA into a SELECT
        return QueryError(FORBIDDEN if word == "PRAGMA" else UNSUPPORTED, f"{word} is not supported")
    sqlstate = _SQLSTATES.get(kind, UNSUPPORTED)
    if sqlstate == READ_ONLY:
        return QueryError(
            READ_ONLY, f"cannot execute {word} in a read-only transaction", "Only the sink writes to the lake."
        )
    return QueryError(sqlstate, f"{word} is not supported", "This server only reads the lake's tables.")
