"""Settings of the sink `opensearch`: the cluster, how to log in, and what its indices look like."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from tailrace.errors import ConfigError
from tailrace.http.origin import HttpUrl, TlsFiles
from tailrace.settings import Secret
from tailrace.settings.pattern import ColumnPattern
from tailrace.settings.secret import read_secret
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.opensearch.index_name import is_index_text, name_part

_EXAMPLE: Final = "for example https://search.example.com:9200"
_INDEX_EXAMPLE: Final = "for example {schema}-{table}, or shop-{table}"


@dataclass(frozen=True)
class OpenSearchOptions:
    url: str = field(default="", repr=False)
    """`https://host:9200`; several nodes of one cluster, separated by commas. A user and a password in it are moved to
    `user` and `password`."""
    index: str = "{schema}-{table}"
    """A template of the alias under which a table's documents are found. Letters that an index name cannot have are
    percent-encoded."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """`schema.table.column`, or a pattern → the mapping of the column's field as JSON, such as
    `{"type": "text", "analyzer": "english"}`."""
    index_settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the indices, such as `number_of_shards`. Unset: those of the cluster and its index templates."""
    refresh: str = field(default="interval", metadata={"choices": ("interval", "step")})
    """When searches see a change. `interval`: as the index's `refresh_interval` says, within a second by default.
    `step`: before the sink's cursor moves, which costs the cluster more. A document read by id is always current."""
    bulk_bytes: int = field(default=5_000_000, metadata={"at_least": 1_000, "at_most": 90_000_000})
    """The size of a request. Larger ones are no faster, and a cluster rejects those above 100 MB."""
    bulk_documents: int = field(default=5_000, metadata={"at_least": 1})
    """Documents in a request: few enough that one request does not occupy the cluster for seconds."""
    cursor_index: str = "tailrace-cursors"
    """The index of the sink's cursor. Another one for another Tailrace whose sinks have the same names."""
    timeout_s: float = field(default=60.0, metadata={"at_least": 1, "at_most": 600})
    """For a request and its answer: a busy cluster may take a while for a large one."""
    user: str = ""
    password: Secret | None = None
    password_file: Path | None = None
    api_key: Secret | None = None
    """As Elasticsearch encodes it: Base64 of `id:key`."""
    api_key_file: Path | None = None
    bearer: Secret | None = None
    bearer_file: Path | None = None
    tls_ca: Path | None = None
    """The authority that signed the cluster's certificates, if the machine does not know it."""
    tls_certificate: Path | None = None
    """The client's certificate, for a cluster that requires one."""
    tls_key: Path | None = None
    """Its key, if that is in another file."""

    def __post_init__(self) -> None:
        urls, user, password = [], None, None
        for url in filter(None, self.url.split(",")):
            parsed = HttpUrl.parse("url", url.strip())
            if parsed.user is not None:
                user, password = parsed.user, parsed.password
            urls.append(f"{parsed.origin}{parsed.path}")
            if parsed.query:
                raise ConfigError("url has a query", _EXAMPLE)
        object.__setattr__(self, "url", ",".join(urls))
        if user is not None:
            object.__setattr__(self, "user", self.user or user)
            object.__setattr__(self, "password", self.password or password)

    def validate(self) -> Self:
        """Return the options with the secrets from their files, or raise a ConfigError."""
        if not self.url:
            raise ConfigError("url is missing", _EXAMPLE)
        _ = self.field_mappings
        if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,99}", self.cursor_index):
            raise ConfigError(f"cursor_index {self.cursor_index!r} is not the name of an index")
        template = self.template("")
        if template.columns or not all(is_index_text(text) for text, _ in template.parts):
            raise ConfigError(
                f"index {self.index!r} is not a template of index names: it may have {{database}}, {{schema}} and"
                " {{table}}, lower-case letters, digits, '-', '_' and '.'",
                _INDEX_EXAMPLE,
            )
        if not any(name == "table" for _, name in template.parts):
            raise ConfigError(f"index {self.index!r} lacks {{table}}: each table has an index", _INDEX_EXAMPLE)
        read = replace(
            self,
            password=read_secret("password_file", self.password, self.password_file),
            api_key=read_secret("api_key_file", self.api_key, self.api_key_file),
            bearer=read_secret("bearer_file", self.bearer, self.bearer_file),
        )
        read._check_credentials()
        return read

    @cached_property
    def nodes(self) -> tuple[HttpUrl, ...]:
        return tuple(HttpUrl.parse("url", url) for url in self.url.split(","))

    @cached_property
    def field_mappings(self) -> tuple[tuple[ColumnPattern, Mapping[str, Any]], ...]:
        """The mappings that the settings give, by pattern."""
        found = []
        for pattern, text in self.fields.items():
            try:
                mapping = json.loads(text)
            except ValueError:
                mapping = None
            if not isinstance(mapping, dict) or not isinstance(mapping.get("type"), str):
                raise ConfigError(
                    f"fields: the mapping of {pattern} is not JSON with a type", 'for example {"type": "keyword"}'
                )
            found.append((ColumnPattern.parse(pattern), mapping))
        return tuple(found)

    @property
    def tls(self) -> TlsFiles:
        return TlsFiles(self.tls_ca, self.tls_certificate, self.tls_key)

    @property
    def authorization(self) -> str | None:
        """The value of the header `authorization`."""
        if self.api_key is not None:
            return f"ApiKey {self.api_key.reveal()}"
        if self.bearer is not None:
            return f"Bearer {self.bearer.reveal()}"
        if self.user:
            pair = f"{self.user}:{'' if self.password is None else self.password.reveal()}"
            return f"Basic {base64.b64encode(pair.encode()).decode()}"
        return None

    def template(self, database: str) -> DestinationTemplate:
        return DestinationTemplate.parse(self.index, database, name_part)

    def _check_credentials(self) -> None:
        if sum(map(bool, (self.user, self.bearer, self.api_key))) > 1:
            raise ConfigError("more than one of user, api_key and bearer is set", "set only one of them")
        for name, secret in (("api_key", self.api_key), ("bearer", self.bearer)):
            if secret is not None and not re.fullmatch(r"[!-~]+", secret.reveal()):
                raise ConfigError(f"{name} is not a token", "it has no spaces and no line breaks")
        if self.tls_key is not None and self.tls_certificate is None:
            raise ConfigError("tls_key is set without tls_certificate")
