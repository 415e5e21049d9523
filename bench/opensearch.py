"""OpenSearch: a ready log drained into an index, compared with bare `_bulk` requests of the same documents.

The bare client sends requests that are made before its clock starts, of the size that the sink's have, over one
connection to an index with the same mapping. The server shares the processors. The latency is that of a document read
by its id.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
import time
import urllib.request
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa

from bench.message_sink import Drain, chunks, measure_latency
from bench.ready_log import ReadyLog, make
from bench.report import Report
from bench.throughput import ROW, TABLE
from tailrace.change import Relation
from tailrace.embedded.opensearch import OpenSearchServer
from tailrace.embedded.postgres import Postgres
from tailrace.log.decoding import TableChanges
from tailrace.sinks.documents.row_document import row_documents
from tailrace.sinks.opensearch import OpenSearchOptions
from tailrace.sinks.opensearch.bulk import index_writes
from tailrace.sinks.opensearch.index_mapping import field_values, mapping_of
from tailrace.sinks.opensearch.index_name import field_name

_ROWS = 200_000
_INSERTS = f"""
DO $$ BEGIN FOR i IN 0..{_ROWS // 1000 - 1} LOOP
    INSERT INTO t SELECT {ROW} FROM generate_series(i * 1000 + 1, i * 1000 + 1000) g; COMMIT;
END LOOP; END $$
"""
_numbers = count()


def run(report: Report) -> None:
    report.title("OpenSearch: a ready log drained into an index")
    with OpenSearchServer() as search:
        with (
            tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name,
            Postgres(max_wal_size="8GB", checkpoint_timeout="1h") as server,
        ):
            log = make(server, "inserts", f"{name}/log", [TABLE.format(name="t")], [_INSERTS])
            report.section(f"{_ROWS:,} inserts, 1,000 a transaction; median of three after a first")

            def start() -> AbstractContextManager[OpenSearchServer]:
                return nullcontext(search)

            drain = Drain[OpenSearchServer]("search", start, _sink, partial(_publish, log), _check, _ROWS + 1)
            drain.run(report, log, least_rate=float("inf"), least_ratio=0.7)
        measure_latency(report, "OpenSearch", _sink(search), partial(_watch, search))


def _sink(search: OpenSearchServer) -> dict[str, Any]:
    prefix = f"bench{next(_numbers)}"
    return {
        "type": "opensearch",
        "url": search.url,
        "index": f"{prefix}-{{schema}}-{{table}}",
        "cursor_index": f"{prefix}-cursors",
        "index_settings": {"number_of_replicas": "0"},
    }


def _publish(log: ReadyLog, search: OpenSearchServer) -> float:
    """Make the requests, then start the clock."""
    bodies: dict[str, list[bytes]] = {}
    relations: dict[str, Relation] = {}
    for run in (run for chunk in chunks(log) for run in chunk if isinstance(run, TableChanges)):
        relations[run.relation.name] = run.relation
        documents = row_documents(run.new, run.relation, field_name, field_values)
        lines = index_writes(run.new.batch.column(0), run.at.commit_lsn, documents, run.at.ordinal).lines
        bodies.setdefault(run.relation.name, []).extend(_cut(lines))
    prefix = f"bare{next(_numbers)}"
    for name, relation in relations.items():
        properties = mapping_of(relation, (relation.schema, name), OpenSearchOptions(url=search.url))
        body = {"settings": {"number_of_replicas": 0}, "mappings": {"dynamic": "strict", "properties": properties}}
        _ask(search, "PUT", f"/{prefix}-{name}", json.dumps(body).encode())
    client = http.client.HTTPConnection("127.0.0.1", search.port)
    began = time.monotonic()
    for name, requests in bodies.items():
        for request in requests:
            headers = {"content-type": "application/x-ndjson"}
            client.request("POST", f"/{prefix}-{name}/_bulk?filter_path=errors", request, headers)
            assert json.loads(client.getresponse().read()) == {"errors": False}
    seconds = time.monotonic() - began
    client.close()
    _check(search, prefix)
    return seconds


def _cut(lines: pa.Array) -> list[bytes]:
    size = OpenSearchOptions().bulk_documents
    return [b"".join(lines.slice(first, size).to_pylist()) for first in range(0, len(lines), size)]


def _check(search: OpenSearchServer, prefix: str = "bench") -> None:
    """Each row is there once. Then the indices are removed, so that the next round starts as this one did."""
    _ask(search, "POST", f"/{prefix}*/_refresh?expand_wildcards=all")
    name = f"{prefix}*-t" if prefix != "bench" else "bench*-public-t"
    assert json.loads(_ask(search, "GET", f"/{name}/_count"))["count"] == _ROWS
    _ask(search, "DELETE", f"/{prefix}*?expand_wildcards=all")


def _watch(search: OpenSearchServer, seen: list[float], finished: threading.Event) -> None:
    """Poll for the document of the next row."""
    client = http.client.HTTPConnection("127.0.0.1", search.port)
    (alias,) = [a for a in _aliases(search) if a.startswith("bench") and a.endswith("-public-t")]
    number = 1
    while not finished.wait(0.002):
        while True:
            client.request("GET", f"/{alias}/_doc/{number}?_source=false")
            response = client.getresponse()
            response.read()
            if response.status != 200:
                break
            seen.append(time.time())
            number += 1
    client.close()


def _aliases(search: OpenSearchServer) -> list[str]:
    found = json.loads(_ask(search, "GET", "/_alias?expand_wildcards=all"))
    return [alias for index in found.values() for alias in index["aliases"]]


def _ask(search: OpenSearchServer, method: str, path: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(f"{search.url}{path}", body, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        content: bytes = answer.read()
    return content
