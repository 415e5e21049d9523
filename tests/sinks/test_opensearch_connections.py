"""The sink `opensearch` behind a gateway: TLS, credentials, several nodes, busy answers, and its settings."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.opensearch import search_client
from tests.fixtures.tls import Tls
from tests.sinks.search_gateway import SearchGateway

from tailrace.change import Column, Relation, Type
from tailrace.delivery.contract import State
from tailrace.delivery.sink_settings import SinkContext
from tailrace.embedded.opensearch import OpenSearchServer
from tailrace.embedded.process import free_port
from tailrace.errors import ConfigError, SinkError, SinkRefused, TailraceError
from tailrace.finding import Severity
from tailrace.settings import Secret, StoreSettings
from tailrace.sinks.opensearch import OpenSearchOptions, OpenSearchSink
from tailrace.sinks.opensearch.index_mapping import mapping_of
from tailrace.sinks.opensearch.index_name import alias_name, document_id, field_name, name_part

_LEDGER = "gateway-cursors"


@pytest.fixture
def context(tmp_path: Path) -> SinkContext:
    return SinkContext(StoreSettings((tmp_path / "store").as_uri()))


@pytest.fixture(autouse=True)
def _clean(opensearch_server: OpenSearchServer) -> Iterator[None]:
    yield
    params = {"expand_wildcards": "all", "ignore_unavailable": "true"}
    search_client(opensearch_server.url).indices.delete(index=f"{_LEDGER}*", params=params)


def _open(context: SinkContext, **options: Any) -> State:
    sink = OpenSearchSink("gated", OpenSearchOptions(cursor_index=_LEDGER, **options), context)
    try:
        return sink.open()
    finally:
        sink.close()


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        ("Basic dGFpbHJhY2U6cGw0bnRlZA==", {"user": "tailrace", "password": Secret("pl4nted")}, {"user": "tailrace"}),
        ("ApiKey aWQ6a2V5", {"api_key": Secret("aWQ6a2V5")}, {"api_key": Secret("b3RoZXI=")}),
        ("Bearer pl4nted", {"bearer": Secret("pl4nted")}, {"bearer": Secret("other")}),
    ],
)
def test_credentials_and_certificates(
    opensearch_server: OpenSearchServer, context: SinkContext, tls: Tls, expected: str, right: Any, wrong: Any
) -> None:
    with SearchGateway(opensearch_server, tls.context, expected) as gateway:
        assert _open(context, url=gateway.url, tls_ca=tls.authority.file, **right) == State()
        with pytest.raises(SinkRefused, match="answers 401") as refused:
            _open(context, url=gateway.url, tls_ca=tls.authority.file, **wrong)
        assert "pl4nted" not in f"{refused.value} {refused.value.hint}"
        with pytest.raises(SinkRefused, match="certificate verify failed"):
            _open(context, url=gateway.url, tls_ca=tls.stranger.file, **right)
        with pytest.raises(SinkRefused, match="certificate verify failed"):
            _open(context, url=gateway.url.replace("localhost", "127.0.0.1"), tls_ca=tls.authority.file, **right)


def test_a_certificate_of_the_client(opensearch_server: OpenSearchServer, context: SinkContext, tls: Tls) -> None:
    """The gateway admits clients with a certificate that its authority has signed."""
    server = tls.authority.context_for("localhost")
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(tls.authority.file)
    both = tls.authority.file_for("client")
    key, certificate = both.with_name("client.key"), both.with_name("client.crt")
    pem = both.read_text()
    key.write_text(pem[: pem.index("-----BEGIN CERTIFICATE")])
    certificate.write_text(pem[pem.index("-----BEGIN CERTIFICATE") :])
    given: dict[str, Any] = {"tls_ca": tls.authority.file}
    with SearchGateway(opensearch_server, server) as gateway:
        given["url"] = gateway.url
        assert _open(context, **given, tls_certificate=both) == State()
        assert _open(context, **given, tls_certificate=certificate, tls_key=key) == State()
        for other in ({}, {"tls_certificate": tls.stranger.file_for("client of a stranger")}):
            with pytest.raises(SinkRefused, match="rejects the client's certificate") as refused:
                _open(context, **given, **other)
            assert "tls_certificate" in refused.value.hint


def test_another_node_is_asked_when_one_is_down(opensearch_server: OpenSearchServer, context: SinkContext) -> None:
    urls = f"http://127.0.0.1:{free_port()},{opensearch_server.url}"
    assert _open(context, url=urls) == State()
    with pytest.raises(SinkError, match="cannot connect"):
        _open(context, url=urls.partition(",")[0])


def test_busy_answers_are_repeated(opensearch_server: OpenSearchServer, context: SinkContext) -> None:
    busy = iter([429, 503, 429])
    with SearchGateway(opensearch_server, answer=lambda _method, _path: next(busy, None)) as gateway:
        assert _open(context, url=gateway.url) == State()


def test_the_check(opensearch_server: OpenSearchServer, context: SinkContext) -> None:
    def check(url: str, **more: Any) -> set[tuple[str, str]]:
        sink = OpenSearchSink("gated", OpenSearchOptions(url=url, cursor_index=_LEDGER, **more), context)
        return {(finding.severity, finding.subject) for finding in sink.check()}

    assert (Severity.NOTE, f"index {_LEDGER}") in check(opensearch_server.url)
    assert not any(severity is Severity.ERROR for severity, _ in check(opensearch_server.url))
    forbidden = SearchGateway(opensearch_server, answer=lambda _method, path: 403 if "_doc" in path else None)
    with forbidden as gateway:
        assert (Severity.ERROR, f"index {_LEDGER}") in check(gateway.url)
    with pytest.raises(SinkError):
        check(f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": ""}, "url is missing"),
        ({"url": "search:9200"}, "url is not"),
        ({"index": "Shop-{table}"}, "is not a template of index names"),
        ({"index": "{schema}"}, "lacks {table}"),
        ({"index": "{schema}-{table}-{region}"}, "is not a template of index names"),
        ({"fields": {"public.t.a": "keyword"}}, "is not JSON with a type"),
        ({"user": "a", "api_key": Secret("b")}, "more than one of"),
        ({"api_key": Secret("a b")}, "api_key is not a token"),
        ({"tls_key": Path("key.pem")}, "tls_key is set without"),
        ({"cursor_index": "Tailrace"}, "is not the name of an index"),
    ],
)
def test_faulty_settings(given: Any, message: str, context: SinkContext) -> None:
    with pytest.raises(TailraceError, match=message) as caught:
        OpenSearchSink("gated", OpenSearchOptions(**{"url": "http://localhost:9200", **given}), context)
    assert isinstance(caught.value, ConfigError)


def test_the_password_leaves_the_url() -> None:
    options = OpenSearchOptions(url="https://tailrace:pl4nted@one:9200,https://two:9200/path")
    assert (options.user, options.url) == ("tailrace", "https://one:9200,https://two:9200/path")
    assert options.password == Secret("pl4nted")
    assert "pl4nted" not in repr(options)


def test_names_are_injective() -> None:
    names = [
        "Orders",
        "orders",
        "ORDERS",
        "%4frders",
        "order.s",
        "order s",
        "_orders",
        "-orders",
        "é" * 63,
        "é" * 62 + "e",
    ]
    aliases = [alias_name(name_part(name)) for name in names]
    assert len(set(aliases)) == len(names)
    assert all(alias == alias.lower() and alias[0] not in "_-." and len(alias) <= 200 for alias in aliases)
    columns = ["a.b", "a%2eb", "_id", "%5fid", "id", " ", "%20"]
    assert len({field_name(column) for column in columns}) == len(columns)
    keys = ["", "x" * 512, "x" * 513, "x" * 514, "é" * 300, "sha256:", document_id("")]
    ids = [document_id(key) for key in keys]
    assert len(set(ids)) == len(keys)
    assert all(0 < len(id_.encode()) <= 512 for id_ in ids)


def test_the_mapping_of_a_column_may_be_given() -> None:
    text, numeric = Type(25, "pg_catalog", "text"), Type(1700, "pg_catalog", "numeric")
    columns = (Column("body", text), Column("price", numeric, 4 + (10 << 16 | 2)), Column("exact", numeric))
    relation = Relation(1, "public", "t", "d", columns)
    given = {"type": "text", "analyzer": "english"}
    options = OpenSearchOptions(url="http://localhost", fields={"public.*.body": json.dumps(given)})
    found = mapping_of(relation, ("public", "t"), options)
    assert found["body"] == given
    assert found["price"] == {"type": "scaled_float", "scaling_factor": 100, "ignore_malformed": True}
    assert found["exact"]["type"] == "keyword"
