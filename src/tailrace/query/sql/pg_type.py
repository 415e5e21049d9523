"""PostgreSQL's types as the translation sees them: by name, by OID, with their categories."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from tailrace.change import Type
from tailrace.query.query_error import QueryError

PREFERRED: Final = frozenset(("bool", "float8", "inet", "interval", "oid", "text", "timestamptz", "varbit"))
_CATEGORIES: Final = {"e": "E", "c": "C", "r": "R", "m": "R"}
_ALIASES: Final = {
    "int": "int4", "integer": "int4", "bigint": "int8", "smallint": "int2", "real": "float4", "float": "float8",
    "boolean": "bool", "decimal": "numeric", "serial": "int4",
}  # fmt: skip


@cache
def _built_in() -> tuple[dict[str, Type], dict[int, Type], dict[str, str]]:
    lines = [
        line.split(" ")
        for line in files("tailrace.query.system_catalog").joinpath("types.txt").read_text("utf-8").splitlines()
    ]
    by_oid: dict[int, Type] = {}
    categories: dict[str, str] = {}
    pending = {int(line[0]): line for line in lines}

    def make(oid: int) -> Type:
        if oid not in by_oid:
            _, name, _, kind, category, element, *_ = pending[oid]
            is_array = category == "A" and int(element) in pending and kind == "b"
            by_oid[oid] = Type(oid, "pg_catalog", name, kind, element=make(int(element)) if is_array else None)
            categories[name] = category
        return by_oid[oid]

    for oid in pending:
        make(oid)
    return {type_.name: type_ for type_ in by_oid.values()}, by_oid, categories


def built_in(name: str) -> Type:
    return _built_in()[0][name]


def find_built_in(name: str) -> Type | None:
    return _built_in()[0].get(_ALIASES.get(name, name))


def by_oid(oid: int) -> Type | None:
    return _built_in()[1].get(oid)


@cache
def _arrays() -> dict[int, Type]:
    return {t.element.oid: t for t in _built_in()[1].values() if t.element is not None and t.name.startswith("_")}


def array_of(element: Type) -> Type:
    """The array type with these elements; made up for a type of the source, whose array type may be unknown."""
    element = base_type(element)
    found = _arrays().get(element.oid)
    return found if found is not None else Type(0, element.schema, f"_{element.name}", "b", element=element)


def base_type(type_: Type) -> Type:
    """The type under any number of domains."""
    while type_.kind == "d" and type_.base is not None:
        type_ = type_.base
    return type_


@cache
def _sizes() -> dict[int, int]:
    lines = files("tailrace.query.system_catalog").joinpath("types.txt").read_text("utf-8").splitlines()
    return {int(line.split(" ")[0]): int(line.split(" ")[2]) for line in lines}


def size(type_: Type) -> int:
    """The type's size in bytes; -1 if it varies."""
    return _sizes().get(type_.oid, 4 if type_.kind == "e" else -1)


def is_own(type_: Type) -> bool:
    """Whether PostgreSQL itself defines the type."""
    return type_.schema == "pg_catalog"


def name_of(type_: Type) -> str:
    """The name that identifies a type among functions' signatures. A type of the source has its schema in it."""
    return type_.name if is_own(type_) else f"{type_.schema}.{type_.name}"


def is_citext(type_: Type) -> bool:
    return type_.name == "citext" and not is_own(type_)


def category(type_: Type) -> str:
    type_ = base_type(type_)
    if is_own(type_):
        return _built_in()[2].get(type_.name, "U")
    if type_.element is not None:
        return "A"
    return "S" if is_citext(type_) else _CATEGORIES.get(type_.kind, "U")


def is_preferred(type_: Type) -> bool:
    return is_own(type_) and type_.name in PREFERRED


def display_name(type_: Type) -> str:
    """The type's name in messages."""
    return f"{display_name(type_.element)}[]" if type_.element is not None else type_.name


def common_type(types: list[Type], context: str) -> Type:
    """The type to which CASE, UNION, VALUES, IN or ARRAY convert all their values."""
    from tailrace.query.sql.signature import can_coerce

    known = [t for t in types if t != UNKNOWN]
    if not known:
        return TEXT
    if all(t == known[0] for t in known):
        return known[0]
    chosen = base_type(known[0])
    for type_ in map(base_type, known[1:]):
        if type_ == chosen:
            continue
        if category(type_) != category(chosen):
            raise QueryError(
                "42804", f"{context} types {display_name(chosen)} and {display_name(type_)} cannot be matched"
            )
        if not is_preferred(chosen) and can_coerce(chosen, type_) and not can_coerce(type_, chosen):
            chosen = type_
    return chosen


UNKNOWN: Final = built_in("unknown")
BOOL: Final = built_in("bool")
INT2: Final = built_in("int2")
INT4: Final = built_in("int4")
INT8: Final = built_in("int8")
FLOAT4: Final = built_in("float4")
FLOAT8: Final = built_in("float8")
NUMERIC: Final = built_in("numeric")
TEXT: Final = built_in("text")
VARCHAR: Final = built_in("varchar")
BPCHAR: Final = built_in("bpchar")
BYTEA: Final = built_in("bytea")
DATE: Final = built_in("date")
TIME: Final = built_in("time")
TIMESTAMP: Final = built_in("timestamp")
TIMESTAMPTZ: Final = built_in("timestamptz")
INTERVAL: Final = built_in("interval")
JSON: Final = built_in("json")
JSONB: Final = built_in("jsonb")
OID: Final = built_in("oid")
NAME: Final = built_in("name")
RECORD: Final = built_in("record")
