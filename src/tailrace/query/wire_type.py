"""Type mapping: the PostgreSQL OID reported for a DuckDB type, and the DuckDB type of a parameter's OID."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TEXT: Final = 25
NUMERIC: Final = 1700
BPCHAR: Final = 1042

_BY_TYPE: Final = {
    "BOOLEAN": (16, 1),
    "TINYINT": (21, 2),
    "UTINYINT": (21, 2),
    "SMALLINT": (21, 2),
    "USMALLINT": (23, 4),
    "INTEGER": (23, 4),
    "UINTEGER": (20, 8),
    "BIGINT": (20, 8),
    "UBIGINT": (NUMERIC, -1),
    "HUGEINT": (NUMERIC, -1),
    "UHUGEINT": (NUMERIC, -1),
    "FLOAT": (700, 4),
    "DOUBLE": (701, 8),
    "VARCHAR": (TEXT, -1),
    "JSON": (114, -1),
    "BLOB": (17, -1),
    "UUID": (2950, 16),
    "DATE": (1082, 4),
    "TIME": (1083, 8),
    "TIMESTAMP": (1114, 8),
    "TIMESTAMP WITH TIME ZONE": (1184, 8),
    "INTERVAL": (1186, 16),
}
_ARRAYS: Final = {
    16: 1000, 20: 1016, 21: 1005, 23: 1007, TEXT: 1009, 700: 1021, 701: 1022, NUMERIC: 1231, 17: 1001, 2950: 2951,
    1082: 1182, 1083: 1183, 1114: 1115, 1184: 1185, 1186: 1187, 114: 199,
}  # fmt: skip
ELEMENTS: Final = {array: element for element, array in _ARRAYS.items()}

PARAMETERS: Final = {
    16: "BOOLEAN",
    20: "BIGINT",
    21: "SMALLINT",
    23: "INTEGER",
    26: "BIGINT",
    700: "FLOAT",
    701: "DOUBLE",
    17: "BLOB",
    TEXT: "VARCHAR",
    1042: "VARCHAR",
    1043: "VARCHAR",
    19: "VARCHAR",
    18: "VARCHAR",
    2950: "UUID",
    1082: "DATE",
    1083: "TIME",
    1114: "TIMESTAMP",
    1184: "TIMESTAMPTZ",
    1186: "INTERVAL",
}
"""OID → DuckDB type a parameter is cast to. Others, and numeric, become literals typed by their context."""


@dataclass(frozen=True)
class WireType:
    oid: int
    size: int = -1
    modifier: int = -1
    scale: int | None = None
    """Set for decimals."""
    element: WireType | None = None
    """Set for lists."""
    is_native: bool = True
    """Whether Arrow can represent the value; otherwise DuckDB casts it to text."""


def from_duckdb(type_: str) -> WireType:
    """The wire type for DuckDB's name of a type."""
    if match := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", type_):
        precision, scale = int(match[1]), int(match[2])
        return WireType(NUMERIC, -1, (precision << 16 | scale) + 4, scale)
    if type_.startswith("ENUM("):
        return WireType(TEXT)
    if type_.endswith("[]") and not type_.startswith(("STRUCT", "MAP", "UNION")):
        element = from_duckdb(type_[:-2])
        if element.oid in _ARRAYS and element.is_native and element.element is None:
            return WireType(_ARRAYS[element.oid], element=element)
        return WireType(TEXT, is_native=False)
    if type_ in ("HUGEINT", "UHUGEINT", "UBIGINT"):
        return WireType(NUMERIC, scale=0, is_native=type_ != "UHUGEINT")
    if type_ in ("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"):
        return WireType(1114, 8)
    if type_ in _BY_TYPE:
        oid, size = _BY_TYPE[type_]
        return WireType(oid, size)
    if type_ == '"NULL"':
        return WireType(TEXT)
    return WireType(TEXT, is_native=False)
