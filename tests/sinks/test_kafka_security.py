"""The sink `kafka` on servers with TLS, passwords, tokens and client certificates: who gets in, and who is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from cryptography.hazmat.primitives import serialization
from tests.contract.webhook_receiver import HttpReceiver
from tests.fixtures.kafka import admin_client, create_topic, make_server
from tests.fixtures.tls import Tls
from tests.sinks.kafka_publisher import Publisher
from tests.sinks.token_issuer import TokenIssuer

from tailrace.change import Lsn, Position
from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.process import free_port, wait_until
from tailrace.errors import SinkError, SinkRefused
from tailrace.finding import Severity
from tailrace.settings import Secret
from tailrace.sinks.kafka import administrator, client_configuration
from tailrace.sinks.kafka.check import check_cluster
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.kafka.transport import KafkaTransport
from tailrace.sinks.messages.progress import Progress

_PASSWORD = "pl4nted-right"
_NAME = "rights"
"""Of a sink, and of the topic that it publishes to."""
_CURSOR = "tailrace-cursor-rights"
_TOPIC, _ID = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
RIGHTS = (
    (_TOPIC, _NAME, AclOperation.WRITE),
    (_TOPIC, _CURSOR, AclOperation.WRITE),
    (_TOPIC, _CURSOR, AclOperation.READ),
    (_ID, "tailrace-rights", AclOperation.WRITE),
)
"""What docs/sinks/kafka.md names for topics that exist. The right to write implies the right to describe."""
LACKING = {f"without-{number}": right for number, right in enumerate(RIGHTS)}
"""Users that lack one of the rights."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """One server knows at once what it refuses."""
    monkeypatch.setattr(administrator, "_REFUSED_S", 0.1)


@pytest.fixture(scope="module")
def tokens() -> TokenIssuer:
    return TokenIssuer("tailrace", _PASSWORD)


@pytest.fixture(scope="module")
def secured(tls: Tls, tokens: TokenIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A server that accepts passwords, and tokens that the issuer has signed."""
    keys = tmp_path_factory.mktemp("tokens") / "keys.json"
    tokens.write_keys(keys)
    validator = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    properties = {
        "listener.name.clients.oauthbearer.sasl.server.callback.handler.class": validator,
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Whoever is not authenticated uses the listener for administrators.
        "super.users": "User:ANONYMOUS;User:tailrace",
    }
    with make_server(
        properties,
        users=dict.fromkeys(["tailrace", "permitted", *LACKING], _PASSWORD),
        mechanisms=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        certificate=tls.authority.file_for("localhost"),
        java_options=[f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}"],
    ) as server:
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


# Tokens.


@pytest.fixture
def token_server(tokens: TokenIssuer) -> Iterator[HttpReceiver]:
    with HttpReceiver(tokens.react, secret="") as server:
        yield server


@pytest.fixture
def by_token(options: KafkaOptions, token_server: HttpReceiver) -> KafkaOptions:
    return replace(
        options,
        sasl="OAUTHBEARER",
        user="",
        password=None,
        oauth_token_url=f"http://localhost:{token_server.port}/token",
        oauth_client_id="tailrace",
        oauth_client_secret=Secret(_PASSWORD),
        oauth_scope="events",
    ).validate()


def test_tokens_are_fetched_and_renewed(
    by_token: KafkaOptions, tokens: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the sink has nothing to publish."""
    monkeypatch.setattr(tokens, "valid_s", 2)
    made = KafkaTransport("by-token", by_token)
    try:
        assert tokens.forms[-1] == {"grant_type": ["client_credentials"], "scope": ["events"]}
        before = len(tokens.forms)
        assert wait_until(lambda: len(tokens.forms) > before, 30)
    finally:
        made.close()
    assert list(check_cluster("by-token", by_token, [])) == []


def test_a_token_that_is_refused(by_token: KafkaOptions, token_server: HttpReceiver) -> None:
    wrong = replace(by_token, oauth_client_secret=Secret("pl4nted-wrong"))
    with pytest.raises(SinkRefused, match="invalid_client") as refused:
        KafkaTransport("by-token", wrong)
    assert "the oauth settings" in refused.value.hint
    assert "pl4nted" not in f"{refused.value!r} {refused.value.hint} {wrong!r}"
    token_server.react = TokenIssuer("tailrace", _PASSWORD).react
    with pytest.raises(SinkRefused, match="SASL authentication error"):
        KafkaTransport("by-token", by_token)


def test_a_token_server_that_is_down_is_asked_again(by_token: KafkaOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_configuration, "TIMEOUT_S", 1.0)
    with pytest.raises(SinkError, match="OAUTHBEARER token: Failed to connect to localhost") as raised:
        KafkaTransport("by-token", replace(by_token, oauth_token_url=f"http://localhost:{free_port()}/token"))
    assert raised.value.retry
    assert "oauth_token_url" in raised.value.hint


# Client certificates.


@pytest.fixture(scope="module")
def certified(tls: Tls) -> Iterator[KafkaServer]:
    """A server that demands a certificate of its clients."""
    with make_server(certificate=tls.authority.file_for("localhost"), client_authority=tls.authority.file) as server:
        yield server


def test_a_client_certificate_is_accepted_or_refused(certified: KafkaServer, tls: Tls, tmp_path: Path) -> None:
    own, strangers = tls.authority.file_for("client"), tls.stranger.file_for("stranger-client")
    without = KafkaOptions(url=certified.url, tls_ca=tls.authority.file).validate()
    options = replace(without, tls_certificate=own, tls_key=own).validate()
    KafkaTransport("certified", options).close()
    assert list(check_cluster("certified", options, [])) == []
    for refused in (without, replace(options, tls_certificate=strangers, tls_key=strangers)):
        with pytest.raises(SinkRefused, match="certificate") as raised:
            KafkaTransport("certified", refused)
        assert "tls_certificate" in raised.value.hint


def test_the_key_of_a_client_certificate_may_be_encrypted(certified: KafkaServer, tls: Tls, tmp_path: Path) -> None:
    own = tls.authority.file_for("client")
    key = serialization.load_pem_private_key(own.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(_PASSWORD.encode()),
        )
    )
    options = KafkaOptions(
        url=certified.url,
        tls_ca=tls.authority.file,
        tls_certificate=own,
        tls_key=locked,
        tls_key_password=Secret(_PASSWORD),
    ).validate()
    KafkaTransport("certified", options).close()
    with pytest.raises(SinkRefused, match="the settings are not valid") as raised:
        KafkaTransport("certified", replace(options, tls_key_password=Secret("pl4nted-wrong")))
    assert "pl4nted" not in f"{raised.value!r} {raised.value.hint}"


# Rights.


@pytest.fixture(scope="module")
def limited(secured: KafkaServer, tls: Tls) -> KafkaOptions:
    """The settings of a sink whose topics exist, for users with the rights that they need, or without one of them."""
    bootstrap = secured.internal_bootstrap
    create_topic(bootstrap, _NAME)
    create_topic(bootstrap, _CURSOR, cleanup_policy="compact")
    granted = [
        AclBinding(kind, name, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for user, lacking in [("permitted", None), *LACKING.items()]
        for kind, name, operation in RIGHTS
        if (kind, name, operation) != lacking
    ]
    client = admin_client(bootstrap)
    for future in client.create_acls(granted).values():
        future.result()
    return KafkaOptions(url=secured.url, sasl="PLAIN", password=Secret(_PASSWORD), tls_ca=tls.authority.file)


def test_the_documented_rights_are_enough(limited: KafkaOptions, secured: KafkaServer) -> None:
    options = replace(limited, user="permitted").validate()
    assert list(check_cluster(_NAME, options, [_NAME])) == []
    publisher = Publisher(_NAME, options)
    made = publisher.connect()
    publisher.publish(made, 1)
    made.close()
    assert publisher.received(secured.internal_bootstrap) == [1]
    assert publisher.connect().progress() == Progress("source", 0, Position(Lsn(1), 0))


@pytest.mark.parametrize("user", LACKING)
def test_a_right_that_is_missing(limited: KafkaOptions, user: str) -> None:
    """`check` names it, and the sink stops."""
    options = replace(limited, user=user).validate()
    kind, name, operation = LACKING[user]
    (found,) = check_cluster(_NAME, options, [_NAME])
    if kind is _TOPIC:
        assert (found.severity, found.subject) == (Severity.ERROR, f"topic {name}")
    else:
        assert (found.severity, found.subject) == (Severity.WARNING, f"transactional id {name}-check")
    assert f"--operation {operation.name.capitalize()}" in found.fix
    publisher = Publisher(_NAME, options)
    with pytest.raises(SinkRefused, match="authorization failed") as raised:
        publisher.publish(publisher.connect(), 2)
    assert "`tailrace check` says which right" in raised.value.hint


def test_a_topic_that_may_not_be_created(limited: KafkaOptions) -> None:
    """Kafka does not even tell whether it exists."""
    options = replace(limited, user="permitted").validate()
    (found,) = check_cluster(_NAME, options, ["other"])
    assert (found.severity, found.subject) == (Severity.ERROR, "topic other")
    assert found.fix.endswith("--operation Write --topic other")
