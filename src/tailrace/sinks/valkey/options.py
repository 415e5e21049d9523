"""Settings of the sink `valkey`: server, credentials, mode, keys and durability."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError
from tailrace.settings import Secret
from tailrace.sinks.messages.envelope_options import EnvelopeOptions
from tailrace.sinks.valkey.key_template import KeyTemplate

_PORT: Final = 6379
_SCHEMES: Final = {"valkey": False, "redis": False, "valkeys": True, "rediss": True}
"""By scheme: whether the connection is encrypted."""
_EXAMPLE: Final = "for example valkey://host:6379, or valkeys://user@host:6379/0 for TLS"
ROWS: Final = ("hash", "json")
_KEYS: Final = {"stream": "{schema}:{table}"}


@dataclass(frozen=True)
class ValkeyOptions(EnvelopeOptions):
    """The settings of envelopes are for `mode = "stream"`."""

    url: str = ""
    """`valkey://host:6379/0` or `redis://…`; `valkeys://` and `rediss://` for TLS. A user and a password in the URL are
    moved to `user` and `password`."""
    user: str = ""
    """Unset: the server's default user."""
    password: Secret | None = None
    tls_ca: Path | None = None
    """The authority that signed the server's certificate, if the machine does not know it."""
    tls_certificate: Path | None = None
    """The client's certificate, for servers that require one."""
    tls_key: Path | None = None
    mode: str = field(default="hash", metadata={"choices": (*ROWS, "stream", "invalidate")})
    """`hash`, `json`: the rows as they are. `stream`: every change. `invalidate`: the keys of changed rows."""
    key: str = ""
    """The template of keys. Unset: `{schema}:{table}:{key}`, for streams `{schema}:{table}`."""
    ttl_s: int = field(default=0, metadata={"at_least": 0})
    """After how many seconds without a write a row expires; 0: never."""
    stream_max_entries: int = field(default=0, metadata={"at_least": 0})
    """About how many entries a stream retains; 0: all."""
    message_stream: str = ""
    """The stream of logical messages. Unset: they are not published, because most applications write them for
    others."""
    debezium_prefix: str = ""
    """Debezium's `topic.prefix`, which its events name."""
    channel: str = ""
    """For `invalidate`: the channel on which keys are published. Unset: the keys are deleted."""
    durability: str = field(default="aof", metadata={"choices": ("aof", "replicas", "none")})
    """When a step is durable. `aof`: the server has it in its append-only file, on disk. `replicas`: `replicas`
    replicas have it. `none`: at once; a server that crashes may go back, and delivery continues from there."""
    replicas: int = field(default=1, metadata={"at_least": 1})
    """How many replicas `durability = "replicas"` waits for."""

    def __post_init__(self) -> None:
        """Move credentials out of the URL, which is printed."""
        super().__post_init__()
        scheme, separator, rest = self.url.partition("://")
        credentials, at, address = rest.rpartition("@")
        if at:
            user, colon, password = credentials.partition(":")
            object.__setattr__(self, "url", f"{scheme}{separator}{address}")
            object.__setattr__(self, "user", self.user or unquote(user))
            if colon and self.password is None:
                object.__setattr__(self, "password", Secret(unquote(password)))

    def validate(self) -> Self:
        """Return the options, or raise a ConfigError."""
        self._check_url()
        if self.user and self.password is None:
            raise ConfigError("user is set, and password is not", "the password from the environment or the URL")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError("tls_certificate and tls_key belong together", "set both or neither")
        if (self.tls_ca or self.tls_certificate) and not self.uses_tls:
            raise ConfigError("tls_ca and tls_certificate need TLS", "let url begin with valkeys:// or rediss://")
        if self.mode == "stream":
            self.check_envelope()
            if self.envelope == "debezium" and not self.debezium_prefix:
                raise ConfigError("debezium_prefix is missing", "it is `topic.prefix` of Debezium's connector")
        self._check_mode()
        self.template("")
        return self

    def _check_url(self) -> None:
        if not self.url:
            raise ConfigError("url is missing", _EXAMPLE)
        try:
            parts = urlsplit(self.url)
            is_url = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or _PORT) > 0
            is_url &= not parts.path.strip("/") or parts.path.strip("/").isdecimal()
        except ValueError:
            is_url = False
        if not is_url:
            # The message does not quote the URL: it may be part of a password that is not escaped.
            raise ConfigError("url is not the URL of a server", _EXAMPLE)

    def _check_mode(self) -> None:
        given = {
            "ttl_s": (self.ttl_s, ROWS),
            "stream_max_entries": (self.stream_max_entries, ("stream",)),
            "message_stream": (self.message_stream, ("stream",)),
            "channel": (self.channel, ("invalidate",)),
        }
        for name, (value, modes) in given.items():
            if value and self.mode not in modes:
                raise ConfigError(f"{name} is not for mode {self.mode!r}", f"it is for {' and '.join(modes)}")

    @property
    def uses_tls(self) -> bool:
        return _SCHEMES.get(urlsplit(self.url).scheme, False)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or _PORT

    @property
    def database(self) -> int:
        """The number of the database in the server."""
        return int(urlsplit(self.url).path.strip("/") or 0)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return how to encrypt the connection; None: it is not. Certificate and host name are always verified."""
        if not self.uses_tls:
            return None
        context = ssl.create_default_context(cafile=self.tls_ca)
        if self.tls_certificate is not None:
            context.load_cert_chain(self.tls_certificate, self.tls_key)
        return context

    def template(self, source: str) -> KeyTemplate:
        """Return the template of keys. `source` is the name of the source's database."""
        return KeyTemplate.parse(self.key or _KEYS.get(self.mode, "{schema}:{table}:{key}"), source)
