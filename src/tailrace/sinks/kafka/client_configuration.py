"""The configuration that librdkafka's clients of a sink have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import SinkRefused
from tailrace.sinks.kafka.options import KafkaOptions

_library_log = logging.getLogger("tailrace.sinks.kafka.librdkafka")
# What it logs reaches Tailrace through `on_error` and the exceptions of calls. Fencing is fatal to it, and usual here.
_library_log.propagate = False
_library_log.addHandler(logging.NullHandler())

TIMEOUT_S: Final = 30.0
"""For an answer of the cluster, which may be choosing a new leader."""

_SHARED: Final = ("broker.", "client.", "https.", "metadata.", "reconnect.", "sasl.", "socket.", "ssl.")
"""Beginnings of the producer's properties that concern all clients."""

Client = TypeVar("Client")


def make_client(make: Callable[[dict[str, Any]], Client], configuration: dict[str, Any]) -> Client:
    """Make a producer, a consumer or an administrator. Nothing is connected yet.

    Raises a SinkRefused for settings that librdkafka does not accept, such as a file that does not exist.
    """
    try:
        return make(configuration)
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise SinkRefused(f"the settings are not valid: {reason}", "Correct the sink's settings.") from None


def client_configuration(options: KafkaOptions, name: str, on_error: Callable[[KafkaError], None]) -> dict[str, Any]:
    """Return what producers, consumers and administrators of a sink have in common."""
    return {
        "bootstrap.servers": options.bootstrap,
        "client.id": f"tailrace-{name}",
        "error_cb": on_error,
        "logger": _library_log,
        "socket.nagle.disable": True,
        "topic.metadata.refresh.interval.ms": 60_000,
        **{name: value for name, value in options.producer.items() if name.startswith(_SHARED)},
        **_security(options),
    }


def _security(options: KafkaOptions) -> dict[str, Any]:
    protocol = ("SASL_" if options.sasl else "") + ("SSL" if options.uses_tls else "PLAINTEXT")
    found: dict[str, Any] = {"security.protocol": protocol}
    if options.uses_tls:
        found["ssl.endpoint.identification.algorithm"] = "https"
    for name, value in (
        ("ssl.ca.location", options.tls_ca),
        ("ssl.certificate.location", options.tls_certificate),
        ("ssl.key.location", options.tls_key),
        ("sasl.mechanism", options.sasl),
        ("sasl.username", options.user),
    ):
        if value:
            found[name] = str(value)
    if options.tls_key_password:
        found["ssl.key.password"] = options.tls_key_password.reveal()
    if options.sasl == "OAUTHBEARER":
        assert options.oauth_client_secret is not None
        found |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": options.oauth_token_url,
            "sasl.oauthbearer.client.id": options.oauth_client_id,
            "sasl.oauthbearer.client.secret": options.oauth_client_secret.reveal(),
            **({"sasl.oauthbearer.scope": options.oauth_scope} if options.oauth_scope else {}),
        }
    elif options.password:
        found["sasl.password"] = options.password.reveal()
    return found
