"""PostgreSQL's json and jsonb. A jsonb is its canonical text; a json is its text as given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final

from tailrace.query.scalar import numeric
from tailrace.query.scalar.scalar_error import ScalarError, invalid_text
from tailrace.query.scalar.short_cache import cache_short

_SPACE: Final = " \t\n\r"
_PLACE: Final = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+")
"""A step of a path that names an element of an array."""


class Number(str):
    """A number with its digits as written."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """An object with its members as written, duplicates included."""


def _constant(word: str) -> Any:
    raise ValueError(word)


def _number(text: str) -> Number:
    return Number(text)


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=Pairs, parse_float=_number, parse_int=_number, parse_constant=_constant, strict=True
)


def _members(pairs: Pairs) -> dict[str, Any]:
    """An object as jsonb stores it: the last of equal keys, shorter keys first."""
    found = dict(pairs)
    return {key: found[key] for key in sorted(found, key=lambda k: (len(k.encode()), k.encode()))}


@cache_short(4096)
def _parsed(text: str) -> Any:
    try:
        value = _DECODER.decode(text.strip(_SPACE))
    except (ValueError, RecursionError):
        raise invalid_text("json", text) from None
    return value


def _normal(value: Any) -> Any:
    """A parsed value as jsonb represents it: dictionaries, lists, texts, numbers in PostgreSQL's form."""
    if isinstance(value, Pairs):
        return {key: _normal(item) for key, item in _members(value).items()}
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return Number(numeric.parse(value)) if isinstance(value, Number) else value


@cache_short(4096)
def _loaded(text: str) -> Any:
    """A jsonb's value."""
    found = _normal(_parsed(text))
    if "\\u" in text:
        _check_characters(dump(found))
    return found


def _check_characters(text: str) -> None:
    """Refuse half a surrogate pair, which json may contain as an escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ScalarError("22P02", "invalid input syntax for type json") from None


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def dump(value: Any) -> str:
    """A jsonb's canonical text."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, dict):
        members = sorted(value, key=lambda k: (len(k.encode()), k.encode()))
        return "{" + ", ".join([f"{quote(key)}: {dump(value[key])}" for key in members]) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    return {True: "true", False: "false", None: "null"}[value]


def parse_jsonb(text: str) -> str:
    found = dump(_loaded(text))
    if "\\u0000" in found.replace("\\\\", ""):
        raise ScalarError("22P05", "unsupported Unicode escape sequence")
    return found


def parse_json(text: str) -> str:
    _parsed(text)
    return text


def _item(value: Any, step: str) -> tuple[bool, Any]:
    """Whether a value has the member or element that a step of a path names, and it."""
    if isinstance(value, dict):
        return step in value, value.get(step)
    if isinstance(value, list) and _PLACE.fullmatch(step):
        return _element(value, int(step))
    return False, None


def _element(value: list[Any], place: int) -> tuple[bool, Any]:
    exists = -len(value) <= place < len(value)
    return exists, value[place] if exists else None


def as_text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value) if isinstance(value, str) else dump(value)


def get_member(text: str, key: str) -> str | None:
    value = _loaded(text)
    return dump(value[key]) if isinstance(value, dict) and key in value else None


def get_member_text(text: str, key: str) -> str | None:
    value = _loaded(text)
    return as_text(value[key]) if isinstance(value, dict) and key in value else None


def _as_list(value: Any) -> list[Any]:
    """A jsonb as an array: PostgreSQL stores a scalar as an array of one element, and operators show it."""
    return value if isinstance(value, list) else [] if isinstance(value, dict) else [value]


def get_element(text: str, place: int) -> str | None:
    exists, found = _element(_as_list(_loaded(text)), place)
    return dump(found) if exists else None


def get_element_text(text: str, place: int) -> str | None:
    return as_text(_element(_as_list(_loaded(text)), place)[1])


def _at(text: str, path: Sequence[str | None]) -> tuple[bool, Any]:
    value = _loaded(text)
    for step in path:
        if step is None:
            return False, None
        exists, value = _item(value, step)
        if not exists:
            return False, None
    return True, value


def get_path(text: str, path: Sequence[str | None]) -> str | None:
    exists, value = _at(text, path)
    return dump(value) if exists else None


def get_path_text(text: str, path: Sequence[str | None]) -> str | None:
    return as_text(_at(text, path)[1])


# The same for json, whose parts keep their text.


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _raw_items(text: str) -> list[tuple[str | None, str]]:
    """The members or elements of a json, each with its text as written. A scalar has none."""
    _parsed(text)
    at = _skip(text, 0)
    if text[at] not in "{[":
        return []
    is_object = text[at] == "{"
    found: list[tuple[str | None, str]] = []
    at = _skip(text, at + 1)
    while text[at] not in "}]":
        key = None
        if is_object:
            key, at = scanstring(text, at + 1, True)
            at = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        found.append((key, text[at:end]))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _raw_text(raw: str | None) -> str | None:
    """A part of a json as text: a string without its quotes."""
    if raw is None or raw == "null":
        return None
    if raw[0] != '"':
        return raw
    found = str(_parsed(raw))
    _check_characters(found)
    return found


def _is_object(text: str) -> bool:
    return text.lstrip(_SPACE)[:1] == "{"


def get_json_member(text: str, key: str) -> str | None:
    items = _raw_items(text) if _is_object(text) else []
    return next((raw for name, raw in reversed(items) if name == key), None)


def get_json_member_text(text: str, key: str) -> str | None:
    return _raw_text(get_json_member(text, key))


def get_json_element(text: str, place: int) -> str | None:
    items = [] if _is_object(text) else _raw_items(text)
    return items[place][1] if -len(items) <= place < len(items) else None


def get_json_element_text(text: str, place: int) -> str | None:
    return _raw_text(get_json_element(text, place))


def get_json_path(text: str, path: Sequence[str | None]) -> str | None:
    found: str | None = text
    for step in path:
        if found is None or step is None:
            return None
        if _is_object(found):
            found = get_json_member(found, step)
        else:
            found = get_json_element(found, int(step)) if _PLACE.fullmatch(step) else None
    return found


def get_json_path_text(text: str, path: Sequence[str | None]) -> str | None:
    return _raw_text(get_json_path(text, path))


# Operators of jsonb


def _equality(value: Any) -> Any:
    if isinstance(value, Number):
        return ("number", numeric.key(value))
    if isinstance(value, dict):
        return ("object", frozenset((k, _equality(v)) for k, v in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(_equality, value)))
    return (type(value).__name__, value)


def key(text: str) -> str:
    """A text that is equal for equal values."""

    def normal(value: Any) -> Any:
        if isinstance(value, Number):
            return Number(numeric.trim_scale(value))
        if isinstance(value, dict):
            return {k: normal(v) for k, v in value.items()}
        return [normal(v) for v in value] if isinstance(value, list) else value

    return dump(normal(_loaded(text)))


def contains(a: str, b: str) -> bool:
    return _contains(_loaded(a), _loaded(b), is_top=True)


def _contains(outer: Any, inner: Any, is_top: bool = False) -> bool:
    if isinstance(inner, dict):
        return isinstance(outer, dict) and all(k in outer and _contains(outer[k], v) for k, v in inner.items())
    if isinstance(inner, list):
        return isinstance(outer, list) and all(any(_contains(o, i) for o in outer) for i in inner)
    if is_top and isinstance(outer, list):
        return any(_equality(o) == _equality(inner) for o in outer)
    return bool(_equality(outer) == _equality(inner))


def exists(text: str, key: str) -> bool:
    value = _loaded(text)
    if isinstance(value, list):
        return any(isinstance(item, str) and not isinstance(item, Number) and item == key for item in value)
    if isinstance(value, dict):
        return key in value
    return isinstance(value, str) and not isinstance(value, Number) and value == key


def exists_any(text: str, keys: Sequence[str | None]) -> bool:
    return any(k is not None and exists(text, k) for k in keys)


def exists_all(text: str, keys: Sequence[str | None]) -> bool:
    return all(k is None or exists(text, k) for k in keys)


def concat(a: str, b: str) -> str:
    x, y = _loaded(a), _loaded(b)
    if isinstance(x, dict) and isinstance(y, dict):
        return dump({**x, **y})
    return dump([*(x if isinstance(x, list) else [x]), *(y if isinstance(y, list) else [y])])


def delete_key(text: str, key: str) -> str:
    value = _loaded(text)
    if isinstance(value, dict):
        return dump({k: v for k, v in value.items() if k != key})
    if isinstance(value, list):
        return dump([v for v in value if not (isinstance(v, str) and not isinstance(v, Number) and v == key)])
    raise ScalarError("22023", "cannot delete from scalar")


def delete_keys(text: str, keys: Sequence[str | None]) -> str:
    for k in keys:
        text = text if k is None else delete_key(text, k)
    if not isinstance(_loaded(text), (dict, list)):
        raise ScalarError("22023", "cannot delete from scalar")
    return text


def delete_element(text: str, place: int) -> str:
    value = _loaded(text)
    if isinstance(value, dict):
        raise ScalarError("22023", "cannot delete from object using integer index")
    if not isinstance(value, list):
        raise ScalarError("22023", "cannot delete from scalar")
    if not _element(value, place)[0]:
        return text
    place %= len(value)
    return dump([*value[:place], *value[place + 1 :]])


def delete_path(text: str, path: Sequence[str | None]) -> str:
    value = _loaded(text)
    if not isinstance(value, (dict, list)):
        raise ScalarError("22023", "cannot delete path in scalar")
    if not value:
        return text
    return dump(_changed(value, list(path), None, create=False)) if path else text


def set_path(text: str, path: Sequence[str | None], new: str, create: bool) -> str:
    value = _loaded(text)
    if not isinstance(value, (dict, list)):
        raise ScalarError("22023", "cannot set path in scalar")
    if not value and not create:
        return text
    return dump(_changed(value, list(path), (_loaded(new),), create)) if path else text


def _changed(value: Any, path: list[str | None], new: tuple[Any] | None, create: bool) -> Any:
    """The value with what is at the path replaced by `new`, or removed without one."""
    step = path[0]
    if step is None:
        raise ScalarError("22004", "path element at position 1 is null")
    if isinstance(value, dict):
        if step not in value and (len(path) > 1 or new is None or not create):
            return value
        if len(path) > 1:
            return {**value, step: _changed(value[step], path[1:], new, create)}
        return {k: v for k, v in value.items() if k != step} if new is None else {**value, step: new[0]}
    if not isinstance(value, list):
        return value
    if not _PLACE.fullmatch(step):
        raise ScalarError("22P02", f'path element at position 1 is not an integer: "{step}"')
    place = int(step)
    if not -len(value) <= place < len(value):
        if len(path) > 1 or new is None or not create:
            return value
        return [*value, new[0]] if place >= 0 else [new[0], *value]
    place %= len(value)
    if len(path) > 1:
        return [*value[:place], _changed(value[place], path[1:], new, create), *value[place + 1 :]]
    return [*value[:place], *(() if new is None else new), *value[place + 1 :]]


def type_name(text: str) -> str:
    value = _loaded(text)
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, Number):
        return "number"
    return {str: "string", dict: "object", list: "array", type(None): "null"}[type(value)]


def array_length(text: str) -> int:
    value = _loaded(text)
    if not isinstance(value, list):
        kind = "non-array" if isinstance(value, dict) else "scalar"
        raise ScalarError("22023", f"cannot get array length of a {kind}")
    return len(value)


def elements(text: str) -> list[str]:
    value = _loaded(text)
    if not isinstance(value, list):
        raise ScalarError(
            "22023", "cannot extract elements from " + ("an object" if isinstance(value, dict) else "a scalar")
        )
    return [dump(v) for v in value]


def elements_text(text: str) -> list[str | None]:
    elements(text)
    return [as_text(v) for v in _loaded(text)]


def _object(text: str, function: str) -> dict[str, Any]:
    value = _loaded(text)
    if not isinstance(value, dict):
        raise ScalarError(
            "22023", f"cannot call {function} on " + ("an array" if isinstance(value, list) else "a scalar")
        )
    return value


def keys(text: str) -> list[str]:
    return list(_object(text, "jsonb_object_keys"))


def values(text: str) -> list[str]:
    return [dump(v) for v in _object(text, "jsonb_each").values()]


def values_text(text: str) -> list[str | None]:
    return [as_text(v) for v in _object(text, "jsonb_each_text").values()]


def json_elements(text: str) -> list[str]:
    if _is_object(text) or text.lstrip(_SPACE)[:1] != "[":
        raise ScalarError("22023", "cannot call json_array_elements on a non-array")
    return [raw for _, raw in _raw_items(text)]


def json_elements_text(text: str) -> list[str | None]:
    return [_raw_text(raw) for raw in json_elements(text)]


def json_keys(text: str) -> list[str]:
    if not _is_object(text):
        raise ScalarError("22023", "cannot call json_object_keys on a non-object")
    return [name or "" for name, _ in _raw_items(text)]


def json_values(text: str) -> list[str]:
    json_keys(text)
    return [raw for _, raw in _raw_items(text)]


def json_values_text(text: str) -> list[str | None]:
    return [_raw_text(raw) for raw in json_values(text)]


def json_array_length(text: str) -> int:
    return len(json_elements(text))


def strip_nulls(text: str) -> str:
    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: stripped(v) for k, v in value.items() if v is not None}
        return [stripped(v) for v in value] if isinstance(value, list) else value

    return dump(stripped(_loaded(text)))


def pretty(text: str) -> str:
    def lines(value: Any, depth: int) -> str:
        pad = "    " * (depth + 1)
        if isinstance(value, dict) and value:
            inner = ",\n".join(f"{pad}{quote(k)}: {lines(v, depth + 1)}" for k, v in value.items())
            return f"{{\n{inner}\n{'    ' * depth}}}"
        if isinstance(value, list) and value:
            inner = ",\n".join(pad + lines(v, depth + 1) for v in value)
            return f"[\n{inner}\n{'    ' * depth}]"
        if isinstance(value, (dict, list)):
            return (
                ("{" if isinstance(value, dict) else "[")
                + "\n"
                + "    " * depth
                + ("}" if isinstance(value, dict) else "]")
            )
        return dump(value)

    return lines(_loaded(text), 0)


# Construction: each value comes as its JSON text, or None for null.


def build_array(items: Sequence[str | None], separator: str = ", ") -> str:
    return "[" + separator.join(["null" if item is None else item for item in items]) + "]"


def build_jsonb_array(items: Sequence[str | None]) -> str:
    return parse_jsonb(build_array(items))


def _named(names: Sequence[str | None], items: Sequence[str | None]) -> list[tuple[str, str]]:
    found = []
    for name, item in zip(names, items, strict=True):
        if name is None:
            raise ScalarError("22023", "field name must not be null")
        found.append((name, "null" if item is None else item))
    return found


def build_object(names: Sequence[str | None], items: Sequence[str | None]) -> str:
    return "{" + ", ".join([f"{quote(n)} : {v}" for n, v in _named(names, items)]) + "}"


def aggregate_object(names: Sequence[str | None], items: Sequence[str | None]) -> str:
    return "{ " + ", ".join([f"{quote(n)} : {v}" for n, v in _named(names, items)]) + " }"


def build_jsonb_object(names: Sequence[str | None], items: Sequence[str | None]) -> str:
    return parse_jsonb("{" + ", ".join([f"{quote(n)}: {v}" for n, v in _named(names, items)]) + "}")


def _scalar(wanted: str, read: Callable[[Any], Any]) -> Callable[[str], Any]:
    def cast(text: str) -> Any:
        value = _loaded(text)
        is_number = isinstance(value, Number)
        if value is None:
            return None
        if (wanted == "numeric" and not is_number) or (wanted == "boolean" and not isinstance(value, bool)):
            kind = {"number": "numeric"}.get(type_name(text), type_name(text))
            raise ScalarError("22023", f"cannot cast jsonb {kind} to type {wanted}")
        return read(value)

    return cast


to_numeric = _scalar("numeric", str)
to_boolean = _scalar("boolean", bool)
