"""Parses settings from TOML and the environment into the fields of a dataclass, and collects all faults."""

from __future__ import annotations

import difflib
import tomllib
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from tailrace.errors import ConfigError
from tailrace.settings.secret import Secret


class Faults:
    """All invalid settings, collected so that the operator can fix them at once."""

    def __init__(self) -> None:
        self._faults: list[tuple[str, str]] = []

    def __contains__(self, where: str) -> bool:
        return any(where == place for place, _ in self._faults)

    def __len__(self) -> int:
        return len(self._faults)

    def add(self, where: str, what: str) -> None:
        self._faults.append((where, what))

    def add_unknown(self, given: Iterable[str], known: Collection[str], prefix: str) -> None:
        for key in given:
            if key not in known:
                self.add(prefix + key, "is not a setting" + did_you_mean(key, known, prefix))

    def raise_if_any(self, source: Path | str | None) -> None:
        if self._faults:
            lines = [f"{where} {what}" for where, what in self._faults]
            source = str(source) if source else "the environment"
            head = f"{source}: " if len(lines) == 1 else f"{source}: {len(lines)} settings are wrong\n  "
            raise ConfigError(head + "\n  ".join(lines), "`tailrace init` writes a file that explains every setting")


def did_you_mean(word: str, known: Collection[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {prefix}{close[0]}?" if close else f" (there are {', '.join(known)})"


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "`tailrace init` writes one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def read_section(name: str, kind: type, table: object, environ: Mapping[str, str], faults: Faults) -> dict[str, Any]:
    """The values given for the fields of `kind`, each of its field's type. Invalid ones are added to `faults`."""
    if not isinstance(table, dict):
        faults.add(name, f"must be a table: write [{name}]")
        table = {}
    hints = get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}
    faults.add_unknown(table, known, f"{name}.")
    given = {key: (value, f"{name}.{key}") for key, value in table.items() if key in known}
    prefix = f"TAILRACE_{name.upper()}_"
    for variable, text in environ.items():
        if not variable.startswith(prefix):
            continue
        key = variable.removeprefix(prefix).lower()
        entry = next((k for k in known if key.startswith(f"{k}_") and get_origin(hints[k]) is Mapping), None)
        try:
            if entry:
                earlier = given.get(entry, ({}, ""))[0]
                given[entry] = ({**earlier, key.removeprefix(f"{entry}_"): text}, f"{name}.{entry}")
            elif key in known:
                given[key] = (_from_text(text, hints[key]), variable)
            else:
                variables = [prefix + k.upper() for k in known]
                faults.add(variable, "is not a setting" + did_you_mean(variable, variables))
        except (ValueError, TypeError):
            faults.add(variable, f"is not {_name(hints[key])}")
    values = {}
    for key, (value, where) in given.items():
        try:
            values[key] = _check_value(value, hints[key], known[key].metadata)
        except ValueError as error:
            faults.add(where, str(error))
    return values


def _kinds(hint: Any) -> list[Any]:
    """The types that a value may have, without None."""
    members = get_args(hint) if get_origin(hint) is types.UnionType else (hint,)
    return [get_origin(kind) or kind for kind in members if kind is not types.NoneType]


_NAMES = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of strings",
    Mapping: "a table of strings",
    Path: "a path",
    Secret: "a string",
}


def _name(hint: Any) -> str:
    return " or ".join(_NAMES[kind] for kind in _kinds(hint))


def _from_text(text: str, hint: Any) -> Any:
    (kind, *_) = _kinds(hint)
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)
    if kind in (int, float):
        return kind(text)
    if kind is tuple:
        return tomllib.loads(f"x = {text}")["x"] if text.startswith("[") else [t.strip() for t in text.split(",")]
    return text


def _check_value(value: Any, hint: Any, limits: Mapping[str, Any]) -> Any:
    kinds = _kinds(hint)
    fault = ValueError(f"is not {_name(hint)}")
    match value:
        case str() if texts := [kind for kind in kinds if kind in (str, Path, Secret)]:
            value = texts[0](value)
        case bool() if bool in kinds:
            pass
        case int() | float() if (int in kinds or float in kinds) and not isinstance(value, bool):
            if float not in kinds and not isinstance(value, int):
                raise fault
        case list() if tuple in kinds and all(isinstance(item, str) for item in value):
            value = tuple(value)
        case dict() if Mapping in kinds and all(isinstance(item, str) for item in value.values()):
            pass
        case _:
            raise fault
    if "at_least" in limits and not value >= limits["at_least"]:
        raise ValueError(f"is {value}: must be at least {limits['at_least']}")
    if "at_most" in limits and not value <= limits["at_most"]:
        raise ValueError(f"is {value}: must be at most {limits['at_most']}")
    if "choices" in limits and value not in limits["choices"]:
        raise ValueError(f"is {value!r}" + did_you_mean(value, limits["choices"]))
    return value
