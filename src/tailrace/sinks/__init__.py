"""The sinks there are, and how a `[[sink]]` in the settings becomes one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from string import Formatter
from typing import Any, Final, TypeVar

from tailrace import settings
from tailrace.errors import ConfigError
from tailrace.settings.pattern import ColumnList, ColumnPattern, TablePattern
from tailrace.settings.reading import Faults, did_you_mean, read_section
from tailrace.sinks.base import Sink
from tailrace.sinks.shaping.condition import check as check_condition

SINKS: Final = {
    "postgres": "tailrace.sinks.postgres:PostgresSink",
    "files": "tailrace.sinks.files:FilesSink",
    "iceberg": "tailrace.sinks.iceberg.sink:IcebergSink",
    "audit": "tailrace.sinks.audit:AuditSink",
    "nats": "tailrace.sinks.nats:NatsSink",
}
"""Loaded when one is configured. Anybody's own sink is named the same way: `type = "package.module:Class"`."""

Options = TypeVar("Options")

MASKS: Final = ("null", "hash", "redact")


@dataclass(frozen=True)
class Common:
    """What every sink has: what goes to it, under which names, from where on."""

    type: str = ""
    name: str = ""
    tables: tuple[str, ...] = ("*.*",)
    """Patterns of what is delivered: everything in the log unless said otherwise."""
    exclude: tuple[str, ...] = ()
    """Patterns of tables that are not, though `tables` names them."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """`schema.table`, or a pattern → the columns to deliver, comma-separated; or those not to, each with a `-`."""
    mask: Mapping[str, str] = field(default_factory=dict)
    """`schema.table.column`, or a pattern → null, hash (SHA-256, in hexadecimal) or redact (`***`)."""
    where: Mapping[str, str] = field(default_factory=dict)
    """`schema.table`, or a pattern → a condition in SQL over the table's columns. A row that comes to match is an
    insert, one that no longer does a delete."""
    route: str = "{schema}.{table}"
    """Where a table goes: a template of its name at the destination."""
    start: str = ""
    """Where a new sink begins: `snapshot` (the tables as they are, then every change), earliest, latest, an LSN or an
    ISO time (changes alone). Unset: what suits the type of sink, for most of them snapshot."""
    interval_ms: int | None = field(default=None, metadata={"at_least": 0})
    """How long changes are gathered before they are delivered. Unset: what suits the type of sink."""
    on_poison: str = field(default="stop", metadata={"choices": ("stop", "set_aside")})
    """What to do with a change that the destination can never take: nothing is lost either way."""


@dataclass(frozen=True)
class Context:
    """What a sink may need beside its own options. Picklable."""

    store: settings.Store
    common: Common = field(default_factory=lambda: Common())


@dataclass(frozen=True)
class Configured:
    common: Common
    sink: Sink

    @property
    def name(self) -> str:
        return self.common.name


def configured(all_settings: settings.Settings, environ: Mapping[str, str]) -> list[Configured]:
    """Every sink in the settings, with every fault of all of them in one ConfigError."""
    faults = Faults()
    context = Context(all_settings.store)
    prefixes = [_prefix(str(raw["name"])) for raw in all_settings.sinks]
    found = []
    for raw, prefix in zip(all_settings.sinks, prefixes, strict=True):
        # A variable of a sink `lake_2` also begins as those of a sink `lake` do.
        longer = tuple(p for p in prefixes if p.startswith(prefix) and p != prefix)
        own = {k: v for k, v in environ.items() if k.startswith(prefix) and not k.startswith(longer)}
        found.append(_configured(raw, context, own, faults))
    faults.raise_if_any("[[sink]]")
    return [sink for sink in found if sink is not None]


def options(all_settings: settings.Settings, name: str, kind: type[Options], environ: Mapping[str, str]) -> Options:
    """A sink's own options, for who reads what it has written and needs no sink for that."""
    (raw,) = [raw for raw in all_settings.sinks if raw["name"] == name]
    faults = Faults()
    own = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    variables = {
        k: v for k, v in environ.items() if _is_of(_key(k, _prefix(name)), own) and k.startswith(_prefix(name))
    }
    found = read_section(_section(name), kind, {k: v for k, v in raw.items() if k in own}, variables, faults)
    faults.raise_if_any("[[sink]]")
    return kind(**found)


def _configured(raw: settings.Sink, context: Context, environ: Mapping[str, str], faults: Faults) -> Configured | None:
    name = str(raw["name"])
    section = _section(name)
    try:
        kind = find(str(raw["type"]))
    except ConfigError as error:
        faults.add(f"sink {name}", f"{error}: {error.hint}")
        return None
    shared = {f.name for f in fields(Common)}
    own = {f.name for f in fields(kind.Options)}
    faults.unknown([key for key in raw if key not in shared | own], sorted(shared | own), f"sink {name}: ")
    # Each half sees the variables that are its own; a variable that is nobody's is reported once.
    of_common = {k: v for k, v in environ.items() if not _is_of(_key(k, _prefix(name)), own)}
    of_own = {k: v for k, v in environ.items() if k not in of_common}
    before = len(faults)
    common = Common(**read_section(section, Common, {k: v for k, v in raw.items() if k in shared}, of_common, faults))
    if common.start == "snapshot" != kind.start:
        faults.add(f"sink {name}: start", f"{raw['type']} has changes alone: earliest, latest, an LSN or a time")
    _check(name, common, faults)
    options = read_section(section, kind.Options, {k: v for k, v in raw.items() if k in own}, of_own, faults)
    if len(faults) > before:
        return None
    try:
        return Configured(common, kind(name, kind.Options(**options), replace(context, common=common)))
    except ConfigError as error:
        faults.add(f"sink {name}:", str(error))
        return None


def _section(name: str) -> str:
    return f"sink_{re.sub('[^A-Za-z0-9]', '_', name)}"


def _prefix(name: str) -> str:
    return f"TAILRACE_{_section(name).upper()}_"


def _key(variable: str, prefix: str) -> str:
    return variable.removeprefix(prefix).lower()


def _is_of(key: str, names: Iterable[str]) -> bool:
    """Of a setting, or of an entry in one that is a table."""
    return any(key == name or key.startswith(f"{name}_") for name in names)


def find(type_: str) -> Any:
    """The class of a type of sink, by name or as `package.module:Class`."""
    path = SINKS.get(type_, type_)
    module, colon, name = path.partition(":")
    if not colon:
        raise ConfigError(
            f"type {type_!r} is not a sink" + did_you_mean(type_, SINKS),
            "or name one of your own as package.module:Class",
        )
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        hint = "is it installed, and on Python's path?"
        if type_ in SINKS:
            hint = f"pip install 'tailrace[{'nats' if type_ == 'nats' else 'spark'}]'"
        raise ConfigError(f"type {type_!r}: no module {error.name}", hint) from None
    except AttributeError:
        raise ConfigError(f"type {type_!r}: {module} has no {name}", "correct the class's name") from None


def _check(name: str, common: Common, faults: Faults) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name):
        faults.add(f"sink {name}", "is no name for a sink: letters, digits, - _ . and at most 63 of them")
    _patterns(name, "tables", common.tables, faults)
    _patterns(name, "exclude", common.exclude, faults)
    for text, how in common.mask.items():
        if how not in MASKS:
            faults.add(f"sink {name}: mask of {text}", f"is {how!r}" + did_you_mean(how, MASKS))
        _parsed(f"sink {name}: mask", ColumnPattern.parse, text, faults)
    for table, columns in common.columns.items():
        _patterns(name, "columns", [table], faults)
        _parsed(f"sink {name}: columns of {table}", ColumnList.parse, columns, faults)
    _patterns(name, "where", common.where, faults)
    for table, condition in common.where.items():
        _parsed(f"sink {name}: where of {table}", check_condition, condition, faults)
    if not _is_route(common.route):
        faults.add(f"sink {name}: route", "is a template with {schema}, {table} and {database}")


def _is_route(text: str) -> bool:
    """Nothing but names in braces: a format could reach into Python's own objects otherwise."""
    try:
        fields = [(field, spec, conversion) for _, field, spec, conversion in Formatter().parse(text)]
    except ValueError:
        return False
    known = all(f is None or (f in ("schema", "table", "database") and not s and not c) for f, s, c in fields)
    return known and not text.endswith(".") and not text.startswith(".") and bool(text)


def _patterns(name: str, key: str, texts: Iterable[str], faults: Faults) -> None:
    for text in texts:
        _parsed(f"sink {name}: {key}", TablePattern.parse, text, faults)


def _parsed(where: str, parse: Callable[[str], object], text: str, faults: Faults) -> None:
    try:
        parse(text)
    except ConfigError as error:
        faults.add(where, f"{error}: {error.hint}" if error.hint else str(error))
