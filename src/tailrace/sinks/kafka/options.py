"""Settings of the sink `kafka`: servers, credentials, topics, and what is passed to the producer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError
from tailrace.settings import Secret
from tailrace.sinks.kafka.topic_name import is_topic_name, is_topic_text, topic_part
from tailrace.sinks.messages.debezium_heartbeat import heartbeat_destination
from tailrace.sinks.messages.debezium_schema import debezium_name
from tailrace.sinks.messages.debezium_transaction import transaction_destination
from tailrace.sinks.messages.envelope_options import EnvelopeOptions
from tailrace.sinks.messages.routing import DestinationTemplate

_SCHEME: Final = "kafka://"
_PORT: Final = 9092
COMPACTED: Final = {"cleanup.policy": "compact"}
_MECHANISMS: Final = ("", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_FIXED: Final = frozenset(
    {
        *("acks", "request.required.acks", "batch.size", "delivery.report.only.error", "enable.gapless.guarantee"),
        *("enable.idempotence", "message.max.bytes", "partitioner", "transactional.id"),
    }
)
"""The producer's properties that exactly-once delivery, or the placement of keys, depends on."""
_VERIFICATION: Final = frozenset({"enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm"})
_OWN: Final = {
    "bootstrap.servers": "url",
    "metadata.broker.list": "url",
    "compression.codec": "compression",
    "compression.type": "compression",
    "sasl.mechanism": "sasl",
    "sasl.mechanisms": "sasl",
    "sasl.oauthbearer.client.id": "oauth_client_id",
    "sasl.oauthbearer.client.secret": "oauth_client_secret",
    "sasl.oauthbearer.scope": "oauth_scope",
    "sasl.oauthbearer.token.endpoint.url": "oauth_token_url",
    "sasl.password": "password",
    "sasl.username": "user",
    "security.protocol": "tls",
    "ssl.ca.location": "tls_ca",
    "ssl.certificate.location": "tls_certificate",
    "ssl.key.location": "tls_key",
    "ssl.key.password": "tls_key_password",
}
"""The producer's properties for which there is a setting."""


@dataclass(frozen=True)
class KafkaOptions(EnvelopeOptions):
    url: str = ""
    """`kafka://host:9092`; several servers are separated by commas. A user and a password in the URL are moved to
    `user` and `password`."""
    topic: str = ""
    """The template of topics. Unset: `{schema}.{table}`, after `topic_prefix` if that is set."""
    topic_prefix: str = ""
    """Debezium's `topic.prefix`. The envelope `debezium` needs it."""
    message_topic: str = ""
    """The topic of logical messages. Unset: `<topic_prefix>.message` for the envelope `debezium`. With other envelopes
    they are not published then, because most applications write them for others."""
    debezium_transactions: bool = False
    """`provide.transaction.metadata`: events have a place in their transaction, and the topic
    `<topic_prefix>.transaction` has the begin and the end of each."""
    debezium_heartbeat_s: int = field(default=0, metadata={"at_least": 0})
    """`heartbeat.interval.ms` in seconds, to the topic `__debezium-heartbeat.<topic_prefix>`; 0: none. A sink is
    maintained every ten seconds, so they come no faster."""
    create_topics: bool = True
    """Create topics that are missing. If not, they have to exist. In either case they are checked."""
    partitions: int = field(default=0, metadata={"at_least": 0})
    """Of topics. 0: what the server does by default, and any number in topics that exist."""
    replication: int = field(default=0, metadata={"at_least": 0})
    """The replication factor of topics; 0 likewise."""
    compact: bool = False
    """Whether topics are compacted: the last message of each key is retained forever. The envelope `row` suits this."""
    cursor_topic: str = ""
    """The compacted topic that holds the sink's progress. Unset: `tailrace-cursor-<name of the sink>`."""
    compression: str = field(default="lz4", metadata={"choices": ("none", "gzip", "snappy", "lz4", "zstd")})
    """lz4 costs the least processor time."""
    sasl: str = field(default="", metadata={"choices": _MECHANISMS})
    """The mechanism that `user` and `password`, or the oauth settings, are for. Unset: no authentication."""
    user: str = ""
    password: Secret | None = None
    oauth_token_url: str = ""
    oauth_client_id: str = ""
    oauth_client_secret: Secret | None = None
    oauth_scope: str = ""
    tls: bool = False
    """Encrypt the connection. The server's certificate and host name are always verified."""
    tls_ca: Path | None = None
    """The authority that signed the server's certificate, if the machine does not know it. Implies `tls`."""
    tls_certificate: Path | None = None
    """The client's certificate, for servers that require one. Implies `tls`."""
    tls_key: Path | None = None
    tls_key_password: Secret | None = None
    producer: Mapping[str, str] = field(default_factory=dict)
    """Properties of librdkafka's producer, such as `linger.ms`, except those that exactly-once delivery depends on.
    Those about connections (`ssl.*`, `socket.*` …) apply to all of the sink's clients."""

    def __post_init__(self) -> None:
        """Move credentials out of the URL, which is printed."""
        super().__post_init__()
        scheme, separator, rest = self.url.partition("://") if "://" in self.url else ("", "", self.url)
        credentials, at, servers = rest.rpartition("@")
        if "," in credentials:
            servers = ""  # part of a password that is not escaped would be taken for a server
        object.__setattr__(self, "url", scheme + separator + re.sub(r"\s*,\s*", ",", servers))
        if at:
            user, colon, password = credentials.partition(":")
            object.__setattr__(self, "user", self.user or unquote(user))
            if colon and self.password is None:
                object.__setattr__(self, "password", Secret(unquote(password)))

    def validate(self) -> Self:
        """Return the options, or raise a ConfigError."""
        self.check_envelope()
        self._check_servers()
        self._check_security()
        if self.envelope == "debezium" and not self.topic_prefix:
            raise ConfigError("topic_prefix is missing", "it is `topic.prefix` of Debezium's connector")
        if self.topic and self.topic_prefix and self.envelope != "debezium":
            raise ConfigError("topic and topic_prefix are both set", "write the prefix into topic")
        for name, value in (
            *(("topic_prefix", self.topic_prefix), ("message_topic", self.message_topic)),
            ("cursor_topic", self.cursor_topic),
        ):
            if value and not is_topic_name(value):
                raise ConfigError(f"{name} {value!r} is not a topic name", "only letters, digits, '.', '_' and '-'")
        if not all(is_topic_text(text) for text, _ in self.template("").parts):
            raise ConfigError(f"topic {self.topic!r} is not a topic name", "only letters, digits, '.', '_' and '-'")
        self._check_producer()
        return self

    def _check_producer(self) -> None:
        for name in self.producer:
            if name in _FIXED:
                raise ConfigError(f"producer.{name} cannot be set", "exactly-once delivery depends on it")
            if name in _VERIFICATION:
                raise ConfigError(f"producer.{name} cannot be set", "certificates and host names are always verified")
            if name in _OWN:
                raise ConfigError(f"producer.{name} cannot be set", f"use {_OWN[name]}")

    def _check_servers(self) -> None:
        """The message does not quote a server: it may be part of a password that is not escaped."""
        example = "for example kafka://one:9092,two:9092, or kafka://user:…@one with %XX for special characters"
        if not self.url:
            raise ConfigError("url is missing", example)
        if not self.url.startswith(_SCHEME):
            raise ConfigError(f"url does not begin with {_SCHEME}", example)
        for number, server in enumerate(self._servers, 1):
            try:
                parts = urlsplit(f"//{server}")
                is_server = bool(parts.hostname and (parts.port or _PORT)) and parts.netloc == server
            except ValueError:
                is_server = False
            if not is_server:
                raise ConfigError(f"url: server {number} is not host:port", example)

    @property
    def _servers(self) -> list[str]:
        return self.url.removeprefix(_SCHEME).split(",")

    def _check_security(self) -> None:
        is_oauth = self.sasl == "OAUTHBEARER"
        if self.user and not self.sasl:
            raise ConfigError("user is set, and sasl is not", 'for example sasl = "SCRAM-SHA-512"')
        if self.sasl and not is_oauth and not (self.user and self.password):
            raise ConfigError(f"sasl = {self.sasl!r} needs user and password", "the password from the environment")
        if is_oauth and not (self.oauth_token_url and self.oauth_client_id and self.oauth_client_secret):
            raise ConfigError(
                "OAUTHBEARER needs oauth_token_url, oauth_client_id and oauth_client_secret", "set all three"
            )
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("tls_certificate and tls_key belong together", "set both or neither")

    @property
    def bootstrap(self) -> str:
        servers = [urlsplit(f"//{server}") for server in self._servers]
        return ",".join(f"{_host(server.hostname or '')}:{server.port or _PORT}" for server in servers)

    @property
    def uses_tls(self) -> bool:
        return self.tls or self.tls_ca is not None or self.tls_certificate is not None

    def template(self, database: str) -> DestinationTemplate:
        """Return the template of topics."""
        if self.envelope == "debezium" and not self.topic:
            return DestinationTemplate.parse(f"{self.topic_prefix}.{{schema}}.{{table}}", database, debezium_name)
        prefix = f"{self.topic_prefix}." if self.topic_prefix else ""
        return DestinationTemplate.parse(self.topic or f"{prefix}{{schema}}.{{table}}", database, topic_part)

    @property
    def other_topics(self) -> tuple[str, ...]:
        """The topics of messages that are not of a table."""
        found = [self.logical_message_topic] if self.logical_message_topic else []
        if self.envelope == "debezium":
            found += [transaction_destination(self.topic_prefix), heartbeat_destination(self.topic_prefix)]
        return tuple(found)

    @property
    def logical_message_topic(self) -> str:
        """The topic of logical messages; empty: they are not published."""
        if self.message_topic or self.envelope != "debezium":
            return self.message_topic
        return f"{self.topic_prefix}.message"

    def declared(self, topic: str) -> Mapping[str, str]:
        """Return the properties that a topic is created with. Logical messages have no keys, or keys that many of them
        share: their topic is not compacted."""
        return COMPACTED if self.compact and topic != self.logical_message_topic else {}


def _host(name: str) -> str:
    return f"[{name}]" if ":" in name else name
