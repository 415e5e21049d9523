"""Settings of the sink `webhook`: where requests go, what they look like, how they are signed, when to give up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from tailrace.errors import ConfigError
from tailrace.http.origin import HttpUrl, TlsFiles
from tailrace.settings import Secret
from tailrace.settings.secret import read_secret
from tailrace.sinks.messages.envelope_options import EnvelopeOptions
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.webhook import signature
from tailrace.sinks.webhook.request_envelope import escape_header, escape_path

METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")
OPERATIONS: Final = ("insert", "update", "delete", "truncate", "snapshot", "message")
_OWN_HEADERS: Final = re.compile(
    r"host|connection|content-(length|encoding)|transfer-encoding|te|trailer|upgrade|expect|keep-alive|authorization"
    r"|proxy-.*|webhook-.*|tailrace-.*|ce-.*"
)
"""Headers that the sink sets itself, or that would change what a request is."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_TEXT: Final = re.compile(r"[ -~]*")
_PATH_TEXT: Final = re.compile(r"[!-~]*")


@dataclass(frozen=True)
class WebhookOptions(EnvelopeOptions):
    url: str = field(default="", repr=False)
    """`https://host/path`. It may contain a token, so it is never printed; a user and a password in it are moved to
    `user` and `password`."""
    path: str = "/"
    """A template that is appended to the URL: `/{schema}/{table}`. Values are percent-encoded."""
    methods: Mapping[str, str] = field(default_factory=dict)
    """By operation (insert, update, delete, truncate, snapshot, message); POST for those that are not named."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Templates by name. They may be keys of an API, so they are never printed."""
    secret: Secret | None = None
    """`whsec_…`; several, separated by spaces, while receivers change to a new one. Unset: requests are not signed."""
    secret_file: Path | None = None
    batch: int = field(default=1, metadata={"at_least": 1, "at_most": 10_000})
    """Changes in a request. 1: a request is one change, as receivers of webhooks expect; above, it is an array."""
    batch_bytes: int = field(default=1_000_000, metadata={"at_least": 1})
    """What many servers accept as a body by default. A larger change is sent alone."""
    gzip: bool = False
    """Off: many receivers do not decompress requests."""
    connections: int = field(default=4, metadata={"at_least": 1, "at_most": 64})
    """Requests at the same time. 1: strictly one after the other, in log order."""
    timeout_s: float = field(default=15.0, metadata={"at_least": 0.1, "at_most": 600})
    """For a whole request and its answer. The Standard Webhooks specification recommends 15 to 30 seconds."""
    attempts: int = field(default=20, metadata={"at_least": 1})
    """After so many failures a change counts as rejected. With the growing pauses, that is about ten minutes."""
    allow_private: bool = False
    """Accept hosts with addresses that are not public. Off: a URL may come from somebody else."""
    user: str = ""
    password: Secret | None = None
    password_file: Path | None = None
    bearer: Secret | None = None
    bearer_file: Path | None = None
    oauth_url: str = field(default="", repr=False)
    """The token endpoint, for client credentials."""
    oauth_client_id: str = ""
    oauth_client_secret: Secret | None = None
    oauth_client_secret_file: Path | None = None
    oauth_fields: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More fields of the token request, such as `scope` and `audience`."""
    tls_ca: Path | None = None
    """The authority that signed the receiver's certificate, if the machine does not know it."""
    tls_certificate: Path | None = None
    """The client's certificate, for a receiver that requires one."""
    tls_key: Path | None = None
    """Its key, if that is in another file."""
    encoding: str = field(default="json", metadata={"choices": ("json", "msgpack")})
    """A receiver of webhooks knows no schema registry."""
    debezium_tombstones: bool = False
    """A request without a change would say nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url:
            return
        parsed = HttpUrl.parse("url", self.url)
        if parsed.user is not None:
            object.__setattr__(self, "user", self.user or parsed.user)
            object.__setattr__(self, "password", self.password or parsed.password)
            scheme, _, rest = self.url.partition("://")
            authority, slash, path = rest.partition("/")
            object.__setattr__(self, "url", f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}")

    def validate(self) -> Self:
        """Return the options with the secrets from their files, or raise a ConfigError."""
        if not self.url:
            raise ConfigError("url is missing", "for example https://hooks.example.com/changes")
        self.check_envelope()
        self._check_content()
        self._check_templates()
        read = replace(
            self,
            secret=read_secret("secret_file", self.secret, self.secret_file),
            password=read_secret("password_file", self.password, self.password_file),
            bearer=read_secret("bearer_file", self.bearer, self.bearer_file),
            oauth_client_secret=read_secret(
                "oauth_client_secret_file", self.oauth_client_secret, self.oauth_client_secret_file
            ),
        )
        read._check_credentials()
        return read

    @cached_property
    def receiver(self) -> HttpUrl:
        return HttpUrl.parse("url", self.url)

    @cached_property
    def token_server(self) -> HttpUrl | None:
        return HttpUrl.parse("oauth_url", self.oauth_url) if self.oauth_url else None

    @cached_property
    def keys(self) -> tuple[bytes, ...]:
        return signature.parse_secrets(self.secret)

    @property
    def tls(self) -> TlsFiles:
        return TlsFiles(self.tls_ca, self.tls_certificate, self.tls_key)

    def path_template(self, database: str) -> DestinationTemplate:
        return DestinationTemplate.parse(self.path, database, escape_path)

    def header_templates(self, database: str) -> dict[str, DestinationTemplate]:
        return {
            name.lower(): DestinationTemplate.parse(template, database, escape_header)
            for name, template in self.headers.items()
        }

    def target(self, path: str) -> str:
        """Return path and query of a request: the URL's, followed by what the template made."""
        base = self.receiver
        own, _, own_query = path.partition("?")
        joined = (base.path or "/") if own == "/" else base.path.rstrip("/") + own
        query = "&".join(filter(None, (base.query, own_query)))
        return f"{joined}?{query}" if query else joined

    def _check_content(self) -> None:
        if self.debezium_tombstones:
            raise ConfigError("debezium_tombstones: a request cannot be a tombstone", "remove the setting")
        is_binary = self.envelope == "cloudevents" and self.cloudevents_mode == "binary"
        if self.batch > 1 and (is_binary or self.envelope == "outbox"):
            what = "a binary CloudEvent" if is_binary else "an event of an outbox"
            raise ConfigError(f"batch is {self.batch}, and {what} is a request of its own", "set batch = 1")

    def _check_templates(self) -> None:
        if not self.path.startswith("/"):
            raise ConfigError(f"path {self.path!r} does not begin with a slash", "for example /{schema}/{table}")
        if "{" in self.url:
            raise ConfigError("url contains a brace", "put templates into path, which is appended to url")
        for text, _ in self.path_template("").parts:
            if not _PATH_TEXT.fullmatch(text) or "#" in text:
                raise ConfigError(f"path {self.path!r} has characters that have to be percent-encoded")
        for operation, method in self.methods.items():
            if operation not in OPERATIONS or method not in METHODS:
                raise ConfigError(
                    f"methods: {operation} = {method!r} is not known",
                    f"operations are {', '.join(OPERATIONS)}; methods are {', '.join(METHODS)}",
                )
        for name, template in self.header_templates("").items():
            if not _HEADER_NAME.fullmatch(name) or _OWN_HEADERS.fullmatch(name):
                raise ConfigError(f"headers: {name} cannot be set", "the sink sets it itself, or it is not a header")
            if not all(_HEADER_TEXT.fullmatch(text) for text, _ in template.parts):
                raise ConfigError(f"headers: the value of {name} is not printable ASCII")

    def _check_credentials(self) -> None:
        _ = self.keys, self.receiver
        if sum(map(bool, (self.user, self.bearer, self.oauth_url))) > 1:
            raise ConfigError("more than one of user, bearer and oauth_url is set", "set only one of them")
        if self.bearer is not None and not re.fullmatch(r"[!-~]+", self.bearer.reveal()):
            raise ConfigError("bearer is not a token", "it has no spaces and no line breaks")
        if self.token_server is not None and not (self.oauth_client_id and self.oauth_client_secret):
            raise ConfigError("oauth_client_id and oauth_client_secret are missing", "oauth_url needs both")
        if self.tls_key is not None and self.tls_certificate is None:
            raise ConfigError("tls_key is set without tls_certificate")
