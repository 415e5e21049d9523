"""Documents as the cluster has them: read by id or all of an index, each `_source` exactly as it was written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.errors import SinkError
from tailrace.sinks.documents import raw_json
from tailrace.sinks.opensearch.cluster import Cluster

PAGE: Final = 500
"""Documents to read at once. They are held in memory, and may be large."""
_SCROLL: Final = "5m"
"""How long the cluster keeps a page's place: until the documents before it are written."""


@dataclass(frozen=True)
class StoredDocument:
    source: str
    """Not parsed: numbers keep their digits."""
    version: int


def read_documents(cluster: Cluster, index: str, ids: Sequence[str]) -> dict[str, StoredDocument]:
    """Return the documents with these ids as of now, whether searches see them or not."""
    found = {}
    for first in range(0, len(ids), PAGE):
        answer = cluster.ask("POST", (index, "_mget"), body={"ids": list(ids[first : first + PAGE])}, expected=(404,))
        if answer.status == 404:
            raise SinkError(
                f"{index} is missing at the destination: somebody removed it", "Opening the sink again loads it."
            )
        for item in raw_json.items(raw_json.members(answer.text)["docs"]):
            document = raw_json.members(item)
            if document.get("found") == "true":
                found[json.loads(document["_id"])] = _stored(document)
    return found


def scan_documents(cluster: Cluster, index: str) -> Iterator[dict[str, StoredDocument]]:
    """Yield all documents of an index that nobody writes to now, a page at a time."""
    cluster.ask("POST", (index, "_refresh"))
    body = {"size": PAGE, "sort": ["_doc"], "version": True}
    answer = raw_json.members(cluster.ask("POST", (index, "_search"), {"scroll": _SCROLL}, body).text)
    while True:
        hits = [raw_json.members(hit) for hit in raw_json.items(raw_json.members(answer["hits"])["hits"])]
        scroll = json.loads(answer["_scroll_id"])
        if not hits:
            break
        yield {json.loads(hit["_id"]): _stored(hit) for hit in hits}
        again = {"scroll": _SCROLL, "scroll_id": scroll}
        answer = raw_json.members(cluster.ask("POST", ("_search", "scroll"), body=again).text)
    cluster.ask("DELETE", ("_search", "scroll"), body={"scroll_id": scroll}, expected=(404,))


def _stored(document: dict[str, str]) -> StoredDocument:
    return StoredDocument(document["_source"], int(document["_version"]))
