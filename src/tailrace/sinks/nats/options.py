"""What the settings say of a NATS server, its streams, and what is published there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError
from tailrace.settings import Secret

_PORT: Final = 4222


@dataclass(frozen=True)
class NatsOptions:
    url: str = ""
    """`nats://host:4222`, or `tls://`; several of a cluster with commas between. A user and a password inside it are
    moved into `user` and `password`."""
    user: str = ""
    password: Secret | None = None
    token: Secret | None = None
    nkey: Secret | None = None
    """A user's seed, `SU…`."""
    credentials: Path | None = None
    """A file with a JWT and a seed, as `nsc` writes it."""
    tls_ca: Path | None = None
    """Who signed the server's certificate, if no authority that the machine knows. Implies TLS."""
    encoding: str = field(default="msgpack", metadata={"choices": ("msgpack", "json")})
    stream: str = "CDC"
    subject: str = "cdc"
    """What subjects begin with: `cdc.orders.insert`."""
    schema_in_subject: bool = False
    """`cdc.public.orders.insert`: where tables of several schemas have the same names."""
    bucket: str = "schemas"
    """The KV bucket that says what tables look like."""
    zstd: bool = False
    """Whether chunks of snapshots are compressed, with a dictionary that is trained on the table's rows."""
    create: bool = True
    """Whether a stream or a bucket that is not there is made; they are checked in any case."""
    max_age_s: int = field(default=3600, metadata={"at_least": 1})
    """How long a stream that the sink makes keeps messages: time for consumers to be restarted."""
    shared: bool = False
    """Whether others may publish into the stream too. Alone, the sink has the server refuse what does not follow its
    own last message; then no failure whatever can change the order."""

    def __post_init__(self) -> None:
        found = [urlsplit(one if "://" in one else f"nats://{one}") for one in self.url.split(",") if one.strip()]
        if self.password is None and not self.user and found and found[0].username:
            name, password = unquote(found[0].username), found[0].password
            if password is None:
                object.__setattr__(self, "token", self.token or Secret(name))
            else:
                object.__setattr__(self, "user", name)
                object.__setattr__(self, "password", Secret(unquote(password)))
        bare = [f"{one.scheme}://{one.netloc.rpartition('@')[2]}" for one in found]
        object.__setattr__(self, "url", ",".join(bare))

    def checked(self) -> Self:
        if not self.url:
            raise ConfigError("url is missing", "such as nats://host:4222")
        for one in self.url.split(","):
            if urlsplit(one).scheme not in ("nats", "tls") or not urlsplit(one).hostname:
                raise ConfigError(f"url {one} is no NATS server's", "such as nats://host:4222 or tls://host:4222")
        if not re.fullmatch(r"[^\s.*>/\\]+", self.stream):
            raise ConfigError(f"stream {self.stream!r} is no name for a stream", "no blanks, dots, slashes, * or >")
        if not re.fullmatch(r"[-_A-Za-z0-9]+", self.bucket):
            raise ConfigError(f"bucket {self.bucket!r} is no name for a bucket", "letters, digits, - and _")
        if not re.fullmatch(r"[^\s.*>]+(\.[^\s.*>]+)*", self.subject):
            raise ConfigError(f"subject {self.subject!r} is no beginning of subjects", "such as cdc, or shop.cdc")
        if sum(map(bool, (self.user, self.token, self.nkey, self.credentials))) > 1:
            raise ConfigError("user, token, nkey and credentials: more than one is given", "one of them is enough")
        return self

    def names(self, target: tuple[str, str]) -> tuple[str, ...]:
        """Of a table, as subjects and keys have them: its schema's too, or not."""
        return target if self.schema_in_subject else target[1:]

    def carried(self) -> Self:
        """For executors: with what is secret."""
        return replace(
            self,
            **{
                name: secret.carried()
                for name in ("password", "token", "nkey")
                if (secret := getattr(self, name)) is not None
            },
        )

    @property
    def servers(self) -> list[tuple[str, int, bool]]:
        """Host, port, whether it is spoken to in TLS from the settings alone."""
        found = [urlsplit(one) for one in self.url.split(",")]
        return [(s.hostname or "", s.port or _PORT, s.scheme == "tls" or self.tls_ca is not None) for s in found]
