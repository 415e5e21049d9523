"""PostgreSQL's functions, operators and casts (`signatures.txt`), and its rules for choosing among overloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from tailrace.change import Type
from tailrace.query.query_error import QueryError
from tailrace.query.sql import pg_type
from tailrace.query.sql.pg_type import UNKNOWN, base_type, category, is_citext, name_of

_RANGES: Final = {
    "int4range": "int4", "int8range": "int8", "numrange": "numeric", "tsrange": "timestamp", "tstzrange": "timestamptz",
    "daterange": "date",
}  # fmt: skip


@dataclass(frozen=True)
class Signature:
    name: str
    kind: str
    """f function, s set-returning function, a aggregate, w window function, o operator."""
    arguments: tuple[str, ...]
    result: str
    defaults: int = 0
    is_variadic: bool = False

    @property
    def key(self) -> str:
        return f"{self.name}({','.join(self.arguments)})"


@dataclass(frozen=True)
class Resolved:
    signature: Signature
    arguments: tuple[Type, ...]
    """The types that the arguments are converted to."""
    result: Type


@cache
def _table() -> tuple[dict[str, list[Signature]], dict[str, list[Signature]], dict[tuple[str, str], str]]:
    functions: dict[str, list[Signature]] = {}
    operators: dict[str, list[Signature]] = {}
    casts: dict[tuple[str, str], str] = {}
    for line in files(__package__).joinpath("signatures.txt").read_text("utf-8").splitlines():
        kind, name, *entries = line.split(" ")
        for entry in entries:
            if kind == "f":
                word, _, rest = entry.partition(":")
                given, _, result = rest.partition(">")
                arguments = [a for a in given.split(",") if a]
                plain = tuple(a.rstrip("*=") for a in arguments)
                defaults = sum(a.endswith("=") for a in arguments)
                functions.setdefault(name, []).append(
                    Signature(name, word, plain, result, defaults, any(a.endswith("*") for a in arguments))
                )
            elif kind == "o":
                given, _, result = entry.partition(">")
                operators.setdefault(name, []).append(
                    Signature(name, "o", tuple(a for a in given.split(",") if a), result)
                )
            elif kind == "c":
                target, _, how = entry.partition(":")
                casts[name, target] = how
    return functions, operators, casts


def functions(name: str) -> list[Signature]:
    return _table()[0].get(name, [])


def cast_context(source: Type, target: Type) -> str | None:
    """`i` implicit, `a` in an assignment, `e` explicit; None if PostgreSQL has no such cast in its table."""
    found = _table()[2].get((name_of(source), name_of(target)))
    return found[0] if found else None


def can_coerce(source: Type, target: Type) -> bool:
    """Whether PostgreSQL converts the type without being asked."""
    if source in (target, UNKNOWN):
        return True
    source = base_type(source)
    if source == target or cast_context(source, target) == "i":
        return True
    if is_citext(source):
        return target.name in ("text", "varchar", "bpchar")
    if source.element is not None and target.element is not None and target.name.startswith("_"):
        return can_coerce(source.element, target.element)
    return source.name == "record" and target.name == "record"


def _accepts(wanted: str, given: Type) -> bool:
    if given == UNKNOWN:
        return True
    base = base_type(given)
    match wanted:
        case "any" | "anyelement" | "anycompatible":
            return True
        case "anynonarray" | "anycompatiblenonarray":
            return base.element is None
        case "anyarray" | "anycompatiblearray":
            return base.element is not None
        case "anyenum":
            return base.kind == "e"
        case "anyrange" | "anycompatiblerange":
            return base.kind == "r"
        case "anymultirange" | "anycompatiblemultirange":
            return base.kind == "m"
        case "record":
            return base.kind == "c" or base.name == "record"
    return can_coerce(given, pg_type.built_in(wanted))


def _with_arguments(signature: Signature, count: int) -> Signature | None:
    """The signature for a number of arguments: defaults left out, the variadic one repeated."""
    size = len(signature.arguments)
    if signature.is_variadic and count >= size - 1:
        last = signature.arguments[-1]
        element = {"any": "any", "anyarray": "anyelement", "anycompatiblearray": "anycompatible"}.get(last)
        repeated = (element or last.removeprefix("_"),) * (count - size + 1)
        return Signature(signature.name, signature.kind, (*signature.arguments[:-1], *repeated), signature.result)
    if size - signature.defaults <= count <= size:
        return Signature(signature.name, signature.kind, signature.arguments[:count], signature.result)
    return None


def resolve_function(name: str, given: Sequence[Type], is_variadic_call: bool = False) -> Resolved:
    found = functions(name)
    if not found:
        raise QueryError("42883", f"function {_call(name, given)} does not exist")
    if is_variadic_call:
        candidates = [s for s in found if s.is_variadic and len(s.arguments) == len(given)]
    else:
        exact = [s for s in found if not s.is_variadic and len(s.arguments) == len(given)]
        known = {s.arguments for s in exact}
        candidates = exact + [
            s
            for f in found
            if f not in exact and (s := _with_arguments(f, len(given))) is not None and s.arguments not in known
        ]
    chosen = _choose(candidates, given)
    if chosen is None:
        fitting = [s for s in candidates if all(map(_accepts, s.arguments, given))]
        sqlstate, problem = ("42725", "is not unique") if len(fitting) > 1 else ("42883", "does not exist")
        raise QueryError(
            sqlstate, f"function {_call(name, given)} {problem}", "You might need to add explicit type casts."
        )
    return _resolved(chosen, given)


def resolve_operator(name: str, given: Sequence[Type]) -> Resolved:
    found = [s for s in _table()[1].get(name, []) if len(s.arguments) == len(given)]
    types = list(given)
    if len(given) == 2 and (given[0] == UNKNOWN) != (given[1] == UNKNOWN):
        other = given[1] if given[0] == UNKNOWN else given[0]
        for type_ in (other, base_type(other)):
            exact = next((s for s in found if s.arguments == (name_of(type_),) * 2), None)
            if exact is not None:
                return _resolved(exact, given)
        if name == "||" and base_type(other).element is not None:
            # A literal beside an array is an array, too.
            found = [s for s in found if s.arguments == ("anycompatiblearray",) * 2]
    chosen = _choose(found, types)
    if chosen is None:
        fitting = [s for s in found if all(map(_accepts, s.arguments, given))]
        shown = (
            f" {name} ".join(pg_type.display_name(t) for t in given)
            if len(given) == 2
            else f"{name} {pg_type.display_name(given[0])}"
        )
        sqlstate, problem = ("42725", "is not unique") if len(fitting) > 1 else ("42883", "does not exist")
        raise QueryError(sqlstate, f"operator {problem}: {shown}", "You might need to add explicit type casts.")
    return _resolved(chosen, given)


def _call(name: str, given: Sequence[Type]) -> str:
    return f"{name}({', '.join(pg_type.display_name(t) for t in given)})"


def _choose(candidates: Sequence[Signature], given: Sequence[Type]) -> Signature | None:
    for s in candidates:
        if all(a == name_of(t) for a, t in zip(s.arguments, given, strict=True)):
            return s
    fitting = [s for s in candidates if all(map(_accepts, s.arguments, given)) and _is_consistent(s, given)]
    if len(fitting) <= 1:
        return fitting[0] if fitting else None
    bases = [t if t == UNKNOWN else base_type(t) for t in given]
    fitting = _best(
        fitting, lambda s: sum(a == name_of(t) for a, t in zip(s.arguments, bases, strict=True) if t != UNKNOWN)
    )
    if len(fitting) > 1:
        fitting = _best(
            fitting,
            lambda s: sum(
                a == name_of(t) or (a in pg_type.PREFERRED and category(pg_type.built_in(a)) == category(t))
                for a, t in zip(s.arguments, bases, strict=True)
                if t != UNKNOWN
            ),
        )
    if len(fitting) > 1 and UNKNOWN in given:
        fitting = _by_unknowns(fitting, given)
    if len(fitting) > 1:
        known = {name_of(t): t for t in bases if t != UNKNOWN}
        if len(known) == 1 and UNKNOWN in given:
            (type_,) = known.values()
            same = [s for s in fitting if all(_accepts(a, type_) for a in s.arguments)]
            fitting = same if len(same) == 1 else fitting
    return fitting[0] if len(fitting) == 1 else None


def _best(candidates: list[Signature], score: object) -> list[Signature]:
    scores = [score(s) for s in candidates]  # type: ignore[operator]
    return [s for s, n in zip(candidates, scores, strict=True) if n == max(scores)]


def _by_unknowns(candidates: list[Signature], given: Sequence[Type]) -> list[Signature]:
    """Keep the candidates that fit literals best: by category, strings first, and preferred types within it."""
    left = list(candidates)
    for place, type_ in enumerate(given):
        if type_ != UNKNOWN:
            continue
        categories = {_argument_category(s.arguments[place]) for s in candidates}
        chosen = "S" if "S" in categories else next(iter(categories)) if len(categories) == 1 else None
        if chosen is None:
            return list(candidates)
        same = [s for s in left if _argument_category(s.arguments[place]) == chosen]
        preferred = [s for s in same if s.arguments[place] in pg_type.PREFERRED]
        left = (preferred or same) or left
    return left


def _argument_category(name: str) -> str:
    return category(pg_type.built_in(name))


def _is_consistent(signature: Signature, given: Sequence[Type]) -> bool:
    """Whether the polymorphic arguments agree."""
    try:
        _resolved(signature, given)
    except QueryError:
        return False
    return True


def _resolved(signature: Signature, given: Sequence[Type]) -> Resolved:
    """Replace polymorphic types by actual ones."""
    element: Type | None = None
    ranges = [base_type(t) for w, t in zip(signature.arguments, given, strict=True) if "range" in w and t != UNKNOWN]
    compatible: list[Type] = []
    for wanted, type_ in zip(signature.arguments, given, strict=True):
        if type_ == UNKNOWN:
            continue
        base = base_type(type_)
        match wanted:
            case "anyelement" | "anynonarray" | "anyenum":
                element = _same(element, base)
            case "anyarray":
                element = _same(element, base.element or base)
            case "anyrange":
                element = _same(element, pg_type.built_in(_RANGES[base.name])) if base.name in _RANGES else element
            case "anycompatible" | "anycompatiblenonarray":
                compatible.append(base)
            case "anycompatiblearray":
                compatible.append(base.element or base)
    if compatible:
        element = pg_type.common_type(compatible, "arguments have")
    arguments = []
    for wanted, type_ in zip(signature.arguments, given, strict=True):
        is_range = type_ == UNKNOWN and "any" in wanted and "range" in wanted and bool(ranges)
        arguments.append(ranges[0] if is_range else _actual(wanted, element, type_))
    # A range or enum among the arguments is what the result is.
    own = next((base_type(t) for w, t in zip(signature.arguments, given, strict=True) if w == signature.result), None)
    if own is None or own == UNKNOWN or signature.result not in ("anyrange", "anymultirange", "anyenum"):
        own = _actual(signature.result, element, UNKNOWN)
    return Resolved(signature, tuple(arguments), own)


def _same(known: Type | None, other: Type) -> Type:
    if known is not None and known != other:
        raise QueryError("42883", "arguments of a polymorphic function have different types")
    return other


def _actual(wanted: str, element: Type | None, given: Type) -> Type:
    if element is None and wanted in ("anyelement", "anynonarray", "anyenum", "anyarray"):
        raise QueryError("42804", "could not determine polymorphic type because input has type unknown")
    match wanted:
        case "anyelement" | "anynonarray" | "anycompatible" | "anycompatiblenonarray" | "anyenum":
            return element or pg_type.TEXT
        case "anyarray" | "anycompatiblearray":
            return pg_type.array_of(element or pg_type.TEXT)
        case "any" | "anyrange" | "anymultirange" | "anycompatiblerange" | "record":
            if given == UNKNOWN:
                return (
                    pg_type.TEXT
                    if wanted == "any"
                    else pg_type.RECORD
                    if wanted == "record"
                    else element or pg_type.TEXT
                )
            return base_type(given)
    return pg_type.built_in(wanted)
