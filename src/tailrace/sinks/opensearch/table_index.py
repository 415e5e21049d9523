"""The index of a table: creates it, changes its fields, copies it for another definition of the table, removes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tailrace.change import Relation
from tailrace.errors import SinkError, SinkRefused
from tailrace.sinks.opensearch.cluster import Cluster
from tailrace.sinks.opensearch.index_mapping import FieldMapping, field_limit
from tailrace.sinks.opensearch.index_name import SinkId

_OWN_SETTINGS: Final = {
    # A deleted document's version is remembered so long: an attempt that is overtaken cannot bring it back meanwhile.
    "gc_deletes": "5m",
    # A write is on disk when it is acknowledged.
    "translog.durability": "request",
    # `public-*` finds the alias, and neither an index that is being built nor one that is about to be removed.
    "hidden": True,
}
_LIMIT: Final = "mapping.total_fields.limit"
_NAMES: Final = 10
"""Names in a path: a request line may have 4,096 bytes, and an encoded name more than 255."""


def create_index(
    cluster: Cluster,
    sink: SinkId,
    name: str,
    relation: Relation,
    fields: Mapping[str, FieldMapping],
    settings: Mapping[str, str],
) -> str:
    """Create an index, and return its uuid.

    Args:
        cluster: The cluster.
        sink: The sink.
        name: The index's name.
        relation: The table.
        fields: Its fields.
        settings: Settings of the user's.
    """
    own = {_LIMIT: field_limit(fields), **settings, **_OWN_SETTINGS}
    body = {
        "settings": {"index": own},
        "mappings": {
            "dynamic": "strict",
            "_meta": {"table": relation.qualified_name, "sink": sink.name},
            "properties": fields,
        },
        "aliases": {sink.write_alias(name): {"is_hidden": True}},
    }
    answer = cluster.ask("PUT", (name,), body=body, expected=(400,))
    if answer.status == 400 and answer.error != "resource_already_exists_exception":
        raise SinkRefused(
            f"the index of {relation.qualified_name} cannot be created: {answer.error}",
            "check `fields` and `index_settings` of the sink, and the cluster's index templates and limits",
        )
    return index_uuids(cluster, [name])[name]


def index_uuids(cluster: Cluster, names: Sequence[str]) -> dict[str, str]:
    """Return the uuids of those indices that exist."""
    found: dict[str, str] = {}
    for some in _pages(names):
        answer = cluster.ask(
            "GET",
            (some, "_settings", "index.uuid"),
            {"flat_settings": True, "ignore_unavailable": True, "expand_wildcards": "all"},
        )
        found |= {name: index["settings"]["index.uuid"] for name, index in answer.json().items()}
    return found


def add_fields(cluster: Cluster, index: str, fields: Mapping[str, FieldMapping], limit: int) -> None:
    """Add fields to an index."""
    cluster.ask("PUT", (index, "_settings"), body={"index": {_LIMIT: limit}})
    answer = cluster.ask("PUT", (index, "_mapping"), body={"properties": fields}, expected=(400, 404))
    if answer.status == 404:
        raise SinkError(
            f"{index} is missing at the destination: somebody removed it", "Opening the sink again loads it."
        )
    if answer.status == 400:
        raise SinkRefused(f"the fields of {index} cannot be added: {answer.error}", "check `fields` of the sink")


def own_indices(cluster: Cluster, sink: SinkId) -> dict[str, set[str]]:
    """Return the indices of a sink, each with its aliases for readers."""
    prefix = sink.prefix
    answer = cluster.ask("GET", ("_alias", f"{prefix}*"), {"expand_wildcards": "all"}, expected=(404,))
    found: dict[str, set[str]] = {}
    names = [] if answer.status == 404 else list(answer.json())
    for some in _pages(names):
        page = cluster.ask("GET", (some, "_alias"), {"expand_wildcards": "all"}).json()
        found |= {name: {a for a in each["aliases"] if not a.startswith(prefix)} for name, each in page.items()}
    return found


def move_aliases(cluster: Cluster, sink: SinkId, wanted: Mapping[str, str]) -> None:
    """Point aliases to indices of the sink, all at once.

    Args:
        cluster: The cluster.
        sink: The sink.
        wanted: By index, the alias that readers use.
    """
    own = own_indices(cluster, sink)
    actions: list[dict[str, Any]] = []
    for name, aliases in own.items():
        stale = {alias for alias in aliases if alias in wanted.values() or name in wanted} - {wanted.get(name)}
        actions += [{"remove": {"index": name, "alias": alias}} for alias in sorted(stale)]
    for name, alias in wanted.items():
        if alias in own.get(name, ()):
            continue
        holders = cluster.ask("GET", (alias,), {"expand_wildcards": "all", "filter_path": "*.aliases"}, expected=(404,))
        if holders.status != 404 and (others := holders.json().keys() - own.keys()):
            raise SinkRefused(
                f"{alias} exists already, and is not the sink's: {sorted(others)[0]}",
                "remove it, or deliver the table elsewhere with `index`",
            )
        actions.append({"add": {"index": name, "alias": alias}})
    if actions:
        cluster.ask("POST", ("_aliases",), body={"actions": actions})


def remove_indices(cluster: Cluster, names: Iterable[str]) -> None:
    for some in _pages(list(names)):
        cluster.ask("DELETE", (some,), {"ignore_unavailable": True})


def _pages(names: Sequence[str]) -> Iterator[str]:
    """Yield names for a path, separated by commas."""
    for first in range(0, len(names), _NAMES):
        yield ",".join(names[first : first + _NAMES])
