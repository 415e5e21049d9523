"""JSON of the store and of other servers. It may be damaged, or have been written by somebody else on purpose. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tailrace.errors import TailraceError

T = TypeVar("T")
Check = Callable[[Any], bool]

ERRORS = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, TailraceError)
"""What taking JSON apart raises if it is not what was expected."""


def parse(data: bytes | str) -> Any:
    """Parse JSON. Raises ValueError for anything else, also for numbers that are none, and for bottomless nesting."""
    try:
        return json.loads(data, parse_constant=_reject)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def typed(instance: T) -> T:
    """Return a dataclass's instance if all its fields have the types that it declares, at any depth.

    What was read as JSON has whatever types the text had. Raises ValueError if one is another.
    """
    cls: Any = type(instance)
    for name, fits in _checks(cls):
        if not fits(getattr(instance, name)):
            raise ValueError(f"{cls.__name__}.{name} has another type")
    return instance


def _reject(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


@cache
def _checks(cls: Any) -> Sequence[tuple[str, Check]]:
    hints = get_type_hints(cls)
    return [(field.name, _check(hints[field.name])) for field in fields(cls)]


def _check(hint: Any) -> Check:
    """Return what tells whether a value has this type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True  # noqa: ARG005
    if origin in (Union, UnionType):
        options = [_check(argument) for argument in arguments]
        return lambda value: any(fits(value) for fits in options)
    if origin is Literal:
        return lambda value: value in arguments
    if origin is not None:
        return _container(origin, arguments)
    if isinstance(hint, type) and is_dataclass(hint):
        checks: list[Sequence[tuple[str, Check]]] = []  # found when the first value comes: classes refer to themselves

        def has_typed_fields(value: Any) -> bool:
            if not checks:
                checks.append(_checks(hint))
            return isinstance(value, hint) and all(fits(getattr(value, name)) for name, fits in checks[0])

        return has_typed_fields
    if hint in (int, float):
        accepted = (int, float) if hint is float else int
        return lambda value: isinstance(value, accepted) and not isinstance(value, bool)
    if hint is datetime:
        return lambda value: isinstance(value, datetime) and value.tzinfo is not None
    return lambda value: isinstance(value, hint)


def _container(origin: Any, arguments: tuple[Any, ...]) -> Check:
    if issubclass(origin, Mapping):
        key, item = map(_check, arguments)
        return lambda value: isinstance(value, origin) and all(key(k) and item(v) for k, v in value.items())
    if origin is tuple and arguments[-1] is not Ellipsis:
        parts = [_check(argument) for argument in arguments]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(fits(v) for fits, v in zip(parts, value, strict=True))
        )
    assert issubclass(origin, Sequence | AbstractSet), f"{origin} is not a container that a record has"
    element = _check(arguments[0])
    return lambda value: isinstance(value, origin) and not isinstance(value, str) and all(map(element, value))
