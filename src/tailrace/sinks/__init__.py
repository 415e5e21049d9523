"""The types of sinks, and the construction of sinks from `[[sink]]` in the settings."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from string import Formatter
from typing import Any, Final, TypeVar

from tailrace import settings
from tailrace.delivery.sink_settings import MASKS, ConfiguredSink, SinkContext, SinkSettings
from tailrace.delivery.transforms.condition import check as check_condition
from tailrace.errors import ConfigError
from tailrace.settings.parser import Faults, did_you_mean, read_section
from tailrace.settings.pattern import ColumnList, ColumnPattern, TablePattern

SINKS: Final = {
    "postgres": "tailrace.sinks.postgres:PostgresSink",
    "files": "tailrace.sinks.files:FilesSink",
    "iceberg": "tailrace.sinks.iceberg.sink:IcebergSink",
    "audit": "tailrace.sinks.audit:AuditSink",
    "nats": "tailrace.sinks.nats:NatsSink",
    "kafka": "tailrace.sinks.kafka:KafkaSink",
    "rabbitmq": "tailrace.sinks.rabbitmq:RabbitMqSink",
    "webhook": "tailrace.sinks.webhook:WebhookSink",
    "mysql": "tailrace.sinks.mysql:MysqlSink",
    "opensearch": "tailrace.sinks.opensearch:OpenSearchSink",
    "valkey": "tailrace.sinks.valkey:ValkeySink",
}
"""Imported when one is configured. Sinks of other packages are named likewise: `type = "package.module:Class"`."""

_EXTRAS: Final = ("kafka", "mysql", "nats", "rabbitmq", "valkey", "webhook")
"""Types of sinks that have an extra of the same name."""

Options = TypeVar("Options")


def from_settings(all_settings: settings.Settings, environ: Mapping[str, str]) -> list[ConfiguredSink]:
    """Return all sinks in the settings.

    Args:
        all_settings: The settings.
        environ: Environment variables, which override settings.

    Raises a ConfigError that lists the faults of all sinks.
    """
    faults = Faults()
    context = SinkContext(all_settings.store, source_tables=all_settings.source.tables)
    prefixes = [_prefix(str(raw["name"])) for raw in all_settings.sinks]
    created = []
    for raw, prefix in zip(all_settings.sinks, prefixes, strict=True):
        # The variables of a sink `lake_2` also begin with the prefix of a sink `lake`.
        longer = tuple(p for p in prefixes if p.startswith(prefix) and p != prefix)
        own = {k: v for k, v in environ.items() if k.startswith(prefix) and not k.startswith(longer)}
        created.append(_create(raw, context, own, faults))
    faults.raise_if_any("[[sink]]")
    return [sink for sink in created if sink is not None]


def read_options(
    all_settings: settings.Settings, name: str, kind: type[Options], environ: Mapping[str, str]
) -> Options:
    """Return the options of a sink, for code that reads its destination and does not need the sink itself.

    Args:
        all_settings: The settings.
        name: The sink's name.
        kind: The class of its options.
        environ: Environment variables, which override settings.
    """
    (raw,) = [raw for raw in all_settings.sinks if raw["name"] == name]
    faults = Faults()
    own = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    variables = {
        k: v for k, v in environ.items() if _belongs_to(_setting(k, _prefix(name)), own) and k.startswith(_prefix(name))
    }
    found = read_section(_section(name), kind, {k: v for k, v in raw.items() if k in own}, variables, faults)
    faults.raise_if_any("[[sink]]")
    return kind(**found)


def _create(
    raw: settings.SinkTable, context: SinkContext, environ: Mapping[str, str], faults: Faults
) -> ConfiguredSink | None:
    name = str(raw["name"])
    section = _section(name)
    try:
        kind = find_class(str(raw["type"]))
    except ConfigError as error:
        faults.add(f"sink {name}", f"{error}: {error.hint}")
        return None
    shared = {f.name for f in fields(SinkSettings)}
    own = {f.name for f in fields(kind.Options)}
    faults.add_unknown([key for key in raw if key not in shared | own], sorted(shared | own), f"sink {name}: ")
    # Common and own settings each get their own variables. An unknown variable is reported once, with the common ones.
    common_variables = {k: v for k, v in environ.items() if not _belongs_to(_setting(k, _prefix(name)), own)}
    own_variables = {k: v for k, v in environ.items() if k not in common_variables}
    before = len(faults)
    common = SinkSettings(
        **read_section(section, SinkSettings, {k: v for k, v in raw.items() if k in shared}, common_variables, faults)
    )
    if common.start == "snapshot" != kind.start and not kind.loads_tables:
        faults.add(
            f"sink {name}: start", f"{raw['type']} delivers only changes: use earliest, latest, an LSN or a time"
        )
    _check(name, common, faults)
    own_options = read_section(section, kind.Options, {k: v for k, v in raw.items() if k in own}, own_variables, faults)
    if len(faults) > before:
        return None
    try:
        return ConfiguredSink(common, kind(name, kind.Options(**own_options), replace(context, common=common)))
    except ConfigError as error:
        faults.add(f"sink {name}:", str(error))
        return None


def _section(name: str) -> str:
    return f"sink_{re.sub('[^A-Za-z0-9]', '_', name)}"


def _prefix(name: str) -> str:
    return f"TAILRACE_{_section(name).upper()}_"


def _setting(variable: str, prefix: str) -> str:
    return variable.removeprefix(prefix).lower()


def _belongs_to(key: str, names: Iterable[str]) -> bool:
    """Whether a key is one of the settings, or an entry in a setting that is a table."""
    return any(key == name or key.startswith(f"{name}_") for name in names)


def find_class(type_: str) -> Any:
    """Return the class of a sink type, which is a key of `SINKS` or `package.module:Class`."""
    path = SINKS.get(type_, type_)
    module, colon, name = path.partition(":")
    if not colon:
        raise ConfigError(
            f"type {type_!r} is not a sink" + did_you_mean(type_, SINKS),
            "or use package.module:Class",
        )
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        hint = "is it installed, and on Python's path?"
        if type_ in SINKS:
            extra = type_ if type_ in _EXTRAS else "spark"
            hint = f"run pip install 'tailrace[{extra}]'"
        raise ConfigError(f"type {type_!r}: no module {error.name}", hint) from None
    except AttributeError:
        raise ConfigError(f"type {type_!r}: {module} has no {name}", "correct the class's name") from None


def _check(name: str, common: SinkSettings, faults: Faults) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name):
        faults.add(f"sink {name}", "is not a sink name: use at most 63 letters, digits, - _ and .")
    _check_patterns(name, "tables", common.tables, faults)
    _check_patterns(name, "exclude", common.exclude, faults)
    for text, how in common.mask.items():
        if how not in MASKS:
            faults.add(f"sink {name}: mask of {text}", f"is {how!r}" + did_you_mean(how, MASKS))
        _try_parse(f"sink {name}: mask", ColumnPattern.parse, text, faults)
    for table, columns in common.columns.items():
        _check_patterns(name, "columns", [table], faults)
        _try_parse(f"sink {name}: columns of {table}", ColumnList.parse, columns, faults)
    _check_patterns(name, "where", common.where, faults)
    for table, condition in common.where.items():
        _try_parse(f"sink {name}: where of {table}", check_condition, condition, faults)
    if common.sql and common.transform:
        faults.add(f"sink {name}: sql", "and transform exclude each other: the function can call spark.sql itself")
    if common.transform and not re.fullmatch(r"[\w.]+:\w+", common.transform):
        faults.add(f"sink {name}: transform", "is module:function")
    if not _is_route(common.route):
        faults.add(f"sink {name}: route", "is not a template with {schema}, {table} and {database}")


def _is_route(text: str) -> bool:
    """Whether a route contains only known names in braces. Other format fields could access Python objects."""
    try:
        fields = [(field, spec, conversion) for _, field, spec, conversion in Formatter().parse(text)]
    except ValueError:
        return False
    known = all(f is None or (f in ("schema", "table", "database") and not s and not c) for f, s, c in fields)
    return known and not text.endswith(".") and not text.startswith(".") and bool(text)


def _check_patterns(name: str, key: str, texts: Iterable[str], faults: Faults) -> None:
    for text in texts:
        _try_parse(f"sink {name}: {key}", TablePattern.parse, text, faults)


def _try_parse(where: str, parse: Callable[[str], object], text: str, faults: Faults) -> None:
    try:
        parse(text)
    except ConfigError as error:
        faults.add(where, f"{error}: {error.hint}" if error.hint else str(error))
