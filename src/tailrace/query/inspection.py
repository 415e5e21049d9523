"""What a statement would touch, by DuckDB's own parser: which tables it names, which functions it calls.

Nothing but a SELECT gets past it, and no function that reads a file, runs other SQL, or tells about the server: what
the engine's lock refuses anyway is refused here first, with words that say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tailrace.query.failure import FORBIDDEN, READ_ONLY, UNSUPPORTED, Failure
from tailrace.query.pruning import unpruned
from tailrace.query.shape import literal

_FORBIDDEN: Final = re.compile(
    r"read_\w+|\w+_scan|scan_\w+|\w+_scan_\w+|glob|sniff_csv|parquet_\w+|iceberg_\w+|query|query_table|getenv|getvariable"
    r"|json_execute_serialized_sql|from_substrait\w*|which_secret|duckdb_(secrets|settings|logs\w*|extensions|databases"
    r"|temporary_files|approx_database_count|log_contexts|external_file_cache|prepared_statements|variables|views|tables"
    r"|columns|schemas|types|dependencies|constraints|indexes|sequences|functions|memory|connection_count)"
    r"|pragma_\w+|test_\w+|current_setting|checkpoint|force_checkpoint|icu_calendar_names|shell_\w+|load_aws\w*|arrow_\w+"
    r"|pandas_\w+|python_\w+|repeat_row|seq_scan|index_scan|summary|enable_\w+|disable_\w+|truncate_\w+|add_parquet_key|http_\w+"
)
# EXPLAIN and the rest of what DuckDB reads and a lake has no use for.
_WORDS: Final = {
    "INSERT": READ_ONLY, "UPDATE": READ_ONLY, "DELETE": READ_ONLY, "CREATE": READ_ONLY, "DROP": READ_ONLY,
    "ALTER": READ_ONLY, "MERGE_INTO": READ_ONLY, "COPY": FORBIDDEN, "COPY_DATABASE": FORBIDDEN, "ATTACH": FORBIDDEN,
    "DETACH": FORBIDDEN, "LOAD": FORBIDDEN, "EXPORT": FORBIDDEN, "CALL": FORBIDDEN, "PRAGMA": FORBIDDEN,
    "VACUUM": READ_ONLY, "ANALYZE": READ_ONLY, "SET": FORBIDDEN, "UPDATE_EXTENSIONS": FORBIDDEN,
}  # fmt: skip


@dataclass(frozen=True)
class Inspected:
    tables: frozenset[tuple[str, str, str]]
    """Catalog, schema and name, empty where the statement does not say."""
    own: frozenset[str]
    """Names that it gives itself, WITH … AS: in lower case."""
    functions: frozenset[str]
    unpruned: frozenset[str]
    """Columns by which no file may be skipped."""


def inspected(bare: Any, sql: str) -> Inspected:
    # As a literal: for a parameter DuckDB looks for libraries that are not there, which takes as long as the rest.
    told = json.loads(bare.execute(f"SELECT json_serialize_sql({literal(sql)})").fetchone()[0])
    if told["error"]:
        if told["error_type"] == "parser":
            is_known = "not supported" in told["error_message"]
            raise Failure(UNSUPPORTED if is_known else "42601", told["error_message"])
        raise _refusal(bare, sql)
    tables: set[tuple[str, str, str]] = set()
    functions: set[str] = set()
    own: set[str] = set()
    nodes = list(_nodes(told["statements"]))
    for node in nodes:
        if node.get("type") == "BASE_TABLE":
            tables.add((node["catalog_name"], node["schema_name"], node["table_name"]))
        if node.get("class") == "FUNCTION" or node.get("class") == "WINDOW":
            functions.add(str(node["function_name"]).lower())
        if "cte_map" in node:
            own.update(entry["key"].lower() for entry in node["cte_map"]["map"])
    for name in sorted(functions):
        if _FORBIDDEN.fullmatch(name):
            raise Failure(
                FORBIDDEN, f"permission denied for function {name}", "this server reads the lake's tables only"
            )
    return Inspected(frozenset(tables), frozenset(own), frozenset(functions), unpruned(nodes))


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _refusal(bare: Any, sql: str) -> Failure:
    kinds = [statement.type.name for statement in bare.extract_statements(sql)]
    kind = kinds[0] if kinds else "?"
    word = sql.split(None, 1)[0].upper()
    if kind == "SELECT" or word == "PRAGMA":  # DuckDB rewrites a PRAGMA into a SELECT
        return Failure(FORBIDDEN if word == "PRAGMA" else UNSUPPORTED, f"{word} is not possible here")
    sqlstate = _WORDS.get(kind, UNSUPPORTED)
    if sqlstate == READ_ONLY:
        return Failure(
            READ_ONLY, f"cannot execute {word} in a read-only transaction", "the lake is written by its sink"
        )
    return Failure(sqlstate, f"{word} is not possible here", "this server reads the lake's tables only")
