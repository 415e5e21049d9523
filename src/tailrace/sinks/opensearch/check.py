"""Checks a cluster: that the sink can log in, and that the cluster is able to hold its indices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from tailrace.finding import Finding, Severity
from tailrace.sinks.opensearch.cluster import Cluster
from tailrace.sinks.opensearch.index_name import SinkId
from tailrace.sinks.opensearch.options import OpenSearchOptions

_OLDEST: Final = {"opensearch": (2, 0), "elasticsearch": (7, 16)}
"""The first versions with everything that the sink uses; hidden aliases are the newest of it."""
_FEW_SHARDS: Final = 10
_RIGHTS: Final = "grant `cluster_monitor`, and on the sink's indices and {}: create_index, manage, read, write"
_UNITS: Final = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


def check_cluster(sink: SinkId, options: OpenSearchOptions) -> Iterator[Finding]:
    """Yield what keeps a sink from writing, or may do so later.

    Raises an error if no node answers, or if none lets the sink in.
    """
    cluster = Cluster(options)
    try:
        yield from _version(cluster.ask("GET", ()).json())
        yield from _health(cluster)
        yield from _limits(cluster, options)
        yield from _ledger(cluster, sink)
    finally:
        cluster.close()


def _version(found: dict[str, Any]) -> Iterator[Finding]:
    version = found["version"]
    kind = str(version.get("distribution", "elasticsearch"))
    number = tuple(int(part) for part in re.findall(r"\d+", str(version["number"]))[:2])
    if number < _OLDEST.get(kind, (0, 0)):
        least = ".".join(map(str, _OLDEST[kind]))
        yield Finding(
            Severity.ERROR, "cluster", f"runs {kind} {version['number']}, and the sink needs {least} or newer"
        )


def _health(cluster: Cluster) -> Iterator[Finding]:
    answer = cluster.ask("GET", ("_cluster", "health"), expected=(403,))
    if answer.status == 403:
        yield Finding(Severity.WARNING, "cluster", "its health cannot be read", _RIGHTS.format("its cursor_index"))
        return
    found = answer.json()
    match found["status"]:
        case "red":
            yield Finding(
                Severity.ERROR,
                "cluster",
                "is red: documents of some indices can be neither read nor written",
                "GET /_cluster/allocation/explain",
            )
        case "yellow":
            yield Finding(
                Severity.NOTE,
                "cluster",
                "is yellow: some indices lack replicas, and lose documents if their only node is lost",
            )


def _limits(cluster: Cluster, options: OpenSearchOptions) -> Iterator[Finding]:
    answer = cluster.ask(
        "GET", ("_cluster", "settings"), {"include_defaults": True, "flat_settings": True}, expected=(403,)
    )
    if answer.status == 403:
        return
    found = answer.json()
    settings = {**found.get("defaults", {}), **found["persistent"], **found["transient"]}
    for name in ("cluster.blocks.read_only", "cluster.blocks.read_only_allow_delete"):
        if str(settings.get(name, "false")) == "true":
            yield Finding(
                Severity.ERROR,
                "cluster",
                f"accepts no writes: {name} is true",
                f'PUT /_cluster/settings {{"persistent": {{"{name}": null}}}}',
            )
    health = cluster.ask("GET", ("_cluster", "health")).json()
    most = int(settings.get("cluster.max_shards_per_node", 1000)) * int(health["number_of_data_nodes"])
    free = most - int(health["active_shards"]) - int(health["unassigned_shards"])
    if free < _FEW_SHARDS:
        yield Finding(
            Severity.WARNING,
            "cluster",
            f"has room for {max(free, 0)} more shards, and each table needs one or more",
            'PUT /_cluster/settings {"persistent": {"cluster.max_shards_per_node": …}}',
        )
    longest = _size(str(settings.get("http.max_content_length", "100mb")))
    if options.bulk_bytes > longest:
        yield Finding(
            Severity.ERROR,
            "bulk_bytes",
            f"is {options.bulk_bytes:,}, and the cluster accepts {longest:,} at most",
            "lower bulk_bytes, or raise http.max_content_length",
        )
    if str(settings.get("action.auto_create_index", "true")) == "true":
        yield Finding(
            Severity.NOTE,
            "cluster",
            "creates indices on a write: the sink does not rely on it, and never writes to an index that is missing",
        )


def _ledger(cluster: Cluster, sink: SinkId) -> Iterator[Finding]:
    subject = f"index {sink.ledger}"
    answer = cluster.ask("GET", (sink.ledger, "_doc", sink.name), expected=(403, 404))
    if answer.status == 403:
        yield Finding(Severity.ERROR, subject, "cannot be read", _RIGHTS.format(sink.ledger))
    elif answer.status == 404 and "error" in answer.json():
        yield Finding(Severity.NOTE, subject, "does not exist yet: the sink creates it")


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)([kmg]?b)", text)
    return int(found[1]) * _UNITS[found[2]] if found else 100 << 20
