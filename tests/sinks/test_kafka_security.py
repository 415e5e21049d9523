"""The sink `kafka` on a server with TLS and passwords: who gets in, who is refused, and what `check` says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.fixtures.kafka import make_server
from tests.fixtures.tls import Tls

from tailrace.embedded.kafka import KafkaServer
from tailrace.errors import SinkRefused
from tailrace.finding import Severity
from tailrace.settings import Secret
from tailrace.sinks.kafka.check import check_cluster
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.kafka.transport import KafkaTransport

_PASSWORD = "pl4nted-right"


@pytest.fixture(scope="module")
def secured(tls: Tls) -> Iterator[KafkaServer]:
    certificate = tls.authority.file_for("localhost")
    with make_server(users={"tailrace": _PASSWORD}, certificate=certificate) as server:
        yield server


@pytest.fixture
def options(secured: KafkaServer, tls: Tls) -> KafkaOptions:
    return KafkaOptions(
        url=secured.url, sasl="SCRAM-SHA-512", user="tailrace", password=Secret(_PASSWORD), tls_ca=tls.authority.file
    ).validate()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_is_accepted_or_refused(options: KafkaOptions, mechanism: str) -> None:
    KafkaTransport("secured", replace(options, sasl=mechanism)).close()
    wrong = replace(options, sasl=mechanism, password=Secret("pl4nted-wrong"))
    with pytest.raises(SinkRefused, match="SASL authentication error") as refused:
        KafkaTransport("secured", wrong)
    assert "user and password" in refused.value.hint
    assert "pl4nted" not in f"{refused.value!r} {refused.value.hint} {wrong!r}"


def test_the_servers_certificate_is_verified(options: KafkaOptions, secured: KafkaServer, tls: Tls) -> None:
    with pytest.raises(SinkRefused, match="certificate"):
        KafkaTransport("secured", replace(options, tls_ca=tls.stranger.file))
    # The server's certificate is for `localhost`.
    with pytest.raises(SinkRefused, match=r"certificate|host"):
        KafkaTransport("secured", replace(options, url=f"kafka://127.0.0.1:{secured.port}"))


def test_check_logs_in_and_names_topics_that_are_missing(options: KafkaOptions) -> None:
    findings = list(check_cluster("unused", options, ["public.orders"]))
    assert {(f.severity, f.subject) for f in findings} == {
        (Severity.NOTE, "topic tailrace-cursor-unused"),
        (Severity.NOTE, "topic public.orders"),
    }
    missing = list(check_cluster("unused", replace(options, create_topics=False), ["public.orders"]))
    assert {f.severity for f in missing} == {Severity.ERROR}
    assert "kafka-topics.sh --create --topic public.orders" in [f.fix for f in missing]
    with pytest.raises(SinkRefused, match="SASL authentication error"):
        list(check_cluster("unused", replace(options, password=Secret("wrong")), []))
