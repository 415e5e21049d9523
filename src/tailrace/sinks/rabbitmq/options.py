"""Settings of the sink `rabbitmq`: broker, credentials, and either streams or an exchange."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError
from tailrace.settings import Secret
from tailrace.sinks.messages.envelope_options import EnvelopeOptions
from tailrace.sinks.messages.payload_encoding import ENCODINGS
from tailrace.sinks.messages.registry_encoding import AvroFormat, JsonSchemaFormat
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.rabbitmq.destination_name import MAX_BYTES, key_token, queue_token
from tailrace.sinks.rabbitmq.message_header import MessageFormat

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_STREAM_PORTS: Final = {"amqp": 5552, "amqps": 5551}
_CONTENT_TYPES: Final = {
    **{name: encoding.content_type for name, encoding in ENCODINGS.items()},
    "avro": AvroFormat.content_type,
    "jsonschema": JsonSchemaFormat.content_type,
}
_EXAMPLE: Final = "for example amqp://host:5672/vhost or amqps://host/vhost (write a / in the vhost as %2F)"


@dataclass(frozen=True)
class RabbitMqOptions(EnvelopeOptions):
    url: str = ""
    """`amqp://user@host:5672/vhost`, or `amqps://…` for TLS; several nodes of a cluster are separated by commas. The
    vhost is `/` unless there is a path. A user and a password in the URL are moved to `user` and `password`."""
    user: str = ""
    """`guest` if nothing else is given, as in other clients. The broker accepts it from its own host only."""
    password: Secret | None = None
    tls_ca: Path | None = None
    """The authority that signed the broker's certificate, if the machine does not know it."""
    tls_certificate: Path | None = None
    """The client's certificate. Without a user the sink logs in with it (SASL EXTERNAL)."""
    tls_key: Path | None = None
    """The key of `tls_certificate`, unless that file contains it."""
    stream: str = ""
    """The template of stream names, such as `cdc.{schema}.{table}`: each table goes to a stream, exactly once."""
    stream_port: int = field(default=0, metadata={"at_least": 0, "at_most": 65535})
    """The port of the stream protocol; 0: 5552, or 5551 with TLS."""
    create: bool = False
    """Create streams that are missing. Queues and exchanges are never created: their owner decides about them."""
    max_age_s: int = field(default=7 * 24 * 3600, metadata={"at_least": 0})
    """The retention of streams that the sink creates; 0: no limit. A week leaves consumers time to recover."""
    max_bytes: int = field(default=0, metadata={"at_least": 0})
    """The size of streams that the sink creates, beyond which the oldest messages go; 0: no limit."""
    exchange: str | None = None
    """The exchange, at least once. An empty name is the default exchange, whose routing keys are names of queues."""
    routing_key: str = ""
    """The template of routing keys, such as `{schema}.{table}`."""
    logical_messages: str = ""
    """The stream or routing key of logical messages (`pg_logical_emit_message`). Unset: they are not published, because
    most applications write them for others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Whatever is wrong with the URL, what precedes the @ is not shown: it may be a password.
        before, at, place = self.url.rpartition("@")
        if not at:
            return
        scheme, _, login = before.rpartition("://")
        name, colon, password = login.partition(":")
        object.__setattr__(self, "user", self.user or unquote(name))
        if colon and self.password is None:
            object.__setattr__(self, "password", Secret(unquote(password)))
        object.__setattr__(self, "url", f"{scheme}://{place}")

    def validate(self) -> Self:
        """Return the options, or raise a ConfigError."""
        if not self.url:
            raise ConfigError("url is missing", _EXAMPLE)
        if not self._is_url():
            raise ConfigError(f"url {self.url} is not a RabbitMQ URL", _EXAMPLE)
        if bool(self.stream) == (self.exchange is not None):
            raise ConfigError(
                "either stream or exchange has to be set",
                "stream = 'cdc.{schema}.{table}', or exchange = 'cdc' and routing_key = '{schema}.{table}'",
            )
        if self.exchange is not None and not self.routing_key:
            raise ConfigError("routing_key is missing", "for example '{schema}.{table}'")
        if self.stream and self.routing_key:
            raise ConfigError("routing_key is for exchanges, and stream is set", "remove one of them")
        if self.exchange is not None and len(self.exchange.encode()) > MAX_BYTES:
            raise ConfigError(f"exchange is longer than {MAX_BYTES} bytes", "correct the name")
        if not self.is_tls and (self.tls_ca or self.tls_certificate):
            raise ConfigError("tls_ca and tls_certificate need TLS", "write amqps:// in `url`")
        if self.tls_key and not self.tls_certificate:
            raise ConfigError("tls_key is set without tls_certificate", "set both")
        if len(self.logical_messages.encode()) > MAX_BYTES:
            raise ConfigError(f"logical_messages is longer than {MAX_BYTES} bytes", "use a shorter name")
        self.template("")
        self.check_envelope()
        return self

    def _is_url(self) -> bool:
        try:
            url = urlsplit(self.url)
            return url.scheme in _PORTS and "/" not in url.path[1:] and all(self.addresses(is_stream=False))
        except ValueError:
            return False

    def addresses(self, *, is_stream: bool) -> list[tuple[str, int]]:
        """Return host and port of each node, for one of the protocols."""
        scheme, _, rest = self.url.partition("://")
        ports = _STREAM_PORTS if is_stream else _PORTS
        found = []
        for host in rest.partition("/")[0].split(","):
            address = urlsplit(f"//{host}")
            if not address.hostname:
                raise ValueError(host)
            given = self.stream_port if is_stream else address.port
            found.append((address.hostname, given or ports[scheme]))
        return found

    @property
    def is_tls(self) -> bool:
        return self.url.startswith("amqps:")

    @property
    def vhost(self) -> str:
        path = urlsplit(self.url).path
        return unquote(path[1:]) if len(path) > 1 else "/"

    @property
    def login(self) -> tuple[str, str]:
        """User and password."""
        return (self.user, self.password.reveal() if self.password else "") if self.user else ("guest", "guest")

    @property
    def is_external(self) -> bool:
        """Whether the client's certificate is its login."""
        return self.tls_certificate is not None and not self.user

    def tls_context(self) -> ssl.SSLContext | None:
        """Return what verifies the broker and its host name; None without TLS."""
        if not self.is_tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_certificate is not None:
                context.load_cert_chain(self.tls_certificate, self.tls_key, password="")
        except OSError as error:
            files = ", ".join(str(file) for file in (self.tls_ca, self.tls_certificate, self.tls_key) if file)
            raise ConfigError(f"{files}: {error.strerror or error}", "these are PEM files") from None
        return context

    @property
    def retention(self) -> dict[str, str]:
        """The arguments of streams that the sink creates."""
        limits = {"max-age": f"{self.max_age_s}s", "max-length-bytes": str(self.max_bytes)}
        given = {"max-age": self.max_age_s, "max-length-bytes": self.max_bytes}
        return {name: limit for name, limit in limits.items() if given[name]}

    @property
    def message_format(self) -> MessageFormat:
        # The application decides what an outbox's payload is.
        is_outbox = self.envelope == "outbox"
        return MessageFormat("" if is_outbox else _CONTENT_TYPES[self.encoding], is_outbox or self.encoding == "json")

    def template(self, database: str) -> DestinationTemplate:
        """Return the template of streams or routing keys."""
        # The routing keys of the default exchange are names of queues.
        escape = key_token if self.exchange else queue_token
        return DestinationTemplate.parse(self.stream or self.routing_key, database, escape)
