"""Settings of the sink `nats`: server, credentials, stream, subjects and encoding."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError
from tailrace.settings import Secret
from tailrace.settings.secret import with_picklable_secrets
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.nats.subject import MESSAGES, token

_PORT: Final = 4222


@dataclass(frozen=True)
class NatsOptions:
    url: str = ""
    """`nats://host:4222` or `tls://host:4222`; several servers of a cluster are separated by commas. A user and a
    password in the URL are moved to `user` and `password`."""
    user: str = ""
    password: Secret | None = None
    token: Secret | None = None
    nkey: Secret | None = None
    """A user's seed, `SU…`."""
    credentials: Path | None = None
    """A file with a JWT and a seed, written by `nsc`."""
    tls_ca: Path | None = None
    """The authority that signed the server's certificate, if the machine does not know it. Implies TLS."""
    encoding: str = field(default="msgpack", metadata={"choices": ("msgpack", "json")})
    stream: str = "CDC"
    subject: str = "cdc"
    """The prefix of subjects, as in `cdc.orders.insert`."""
    schema_in_subject: bool = False
    """Use subjects like `cdc.public.orders.insert`, for tables of the same name in several schemas."""
    bucket: str = "schemas"
    """The KV bucket that describes the tables."""
    zstd: bool = False
    """Compress snapshot chunks, with a dictionary trained on the table's rows."""
    create: bool = True
    """Create the streams and the bucket if they are missing. They are checked in any case."""
    max_age_s: int = field(default=3600, metadata={"at_least": 1})
    """The retention of a stream that the sink creates. Consumers must be restarted within this time."""
    shared: bool = False
    """Whether others may publish to the stream too. If not, the server rejects every message that does not follow the
    sink's last one, so that no failure can change the order."""

    def __post_init__(self) -> None:
        servers = [urlsplit(url if "://" in url else f"nats://{url}") for url in self.url.split(",") if url.strip()]
        if self.password is None and not self.user and servers and servers[0].username:
            name, password = unquote(servers[0].username), servers[0].password
            if password is None:
                object.__setattr__(self, "token", self.token or Secret(name))
            else:
                object.__setattr__(self, "user", name)
                object.__setattr__(self, "password", Secret(unquote(password)))
        urls = [f"{server.scheme}://{server.netloc.rpartition('@')[2]}" for server in servers]
        object.__setattr__(self, "url", ",".join(urls))

    def validate(self) -> Self:
        """Return the options, or raise a ConfigError."""
        if not self.url:
            raise ConfigError("url is missing", "for example nats://host:4222")
        for url in self.url.split(","):
            if urlsplit(url).scheme not in ("nats", "tls") or not urlsplit(url).hostname:
                raise ConfigError(f"url {url} is not a NATS URL", "for example nats://host:4222 or tls://host:4222")
        if not re.fullmatch(r"[^\s.*>/\\]+", self.stream):
            raise ConfigError(f"stream {self.stream!r} is not a stream name", "no whitespace, dots, slashes, * or >")
        if not re.fullmatch(r"[-_A-Za-z0-9]+", self.bucket):
            raise ConfigError(f"bucket {self.bucket!r} is not a bucket name", "only letters, digits, - and _")
        if not re.fullmatch(r"[^\s.*>]+(\.[^\s.*>]+)*", self.subject):
            raise ConfigError(f"subject {self.subject!r} is not a subject prefix", "for example cdc or shop.cdc")
        if sum(map(bool, (self.user, self.token, self.nkey, self.credentials))) > 1:
            raise ConfigError("more than one of user, token, nkey and credentials is set", "set only one of them")
        return self

    def names(self, target: tuple[str, str]) -> tuple[str, ...]:
        """Return the parts of a table's name that subjects and bucket keys contain."""
        return target if self.schema_in_subject else target[1:]

    @property
    def template(self) -> DestinationTemplate:
        """The template of subjects: prefix, table and operation."""
        prefix = self.subject.replace("{", "{{").replace("}", "}}")
        table = "{schema}.{table}" if self.schema_in_subject else "{table}"
        return DestinationTemplate.parse(f"{prefix}.{table}.{{operation}}", escape=token)

    def message_subject(self, prefix: str) -> str:
        """Return the subject of logical messages with a prefix."""
        return f"{self.subject}.{MESSAGES}.{token(prefix) or '%'}"

    def to_picklable(self) -> Self:
        """Return the options with secrets that can be pickled, for executors."""
        return with_picklable_secrets(self)

    @property
    def servers(self) -> list[tuple[str, int, bool]]:
        """Host and port of each server, and whether the settings require TLS."""
        urls = [urlsplit(url) for url in self.url.split(",")]
        return [(u.hostname or "", u.port or _PORT, u.scheme == "tls" or self.tls_ca is not None) for u in urls]
