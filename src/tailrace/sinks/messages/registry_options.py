"""The settings of the schema registry that the encodings `avro` and `jsonschema` need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from tailrace.errors import ConfigError
from tailrace.finding import Finding, Severity
from tailrace.settings import Secret
from tailrace.sinks.messages.registry_encoding import AvroFormat, JsonSchemaFormat, RegistryEncoding, Subjects
from tailrace.sinks.messages.schema_registry import RegistrySettings, SchemaRegistry, split_url

REGISTRY_ENCODINGS: Final = ("avro", "jsonschema")


@dataclass(frozen=True)
class RegistryOptions:
    registry: str = ""
    """The URL of the schema registry, or several of one cluster, separated by commas. A user and a password in the URL
    are moved to `registry_user` and `registry_password`."""
    registry_user: str = ""
    registry_password: Secret | None = None
    registry_token: Secret | None = None
    """A bearer token, instead of user and password."""
    registry_ca: Path | None = None
    """The authority that signed the registry's certificate, if the machine does not know it."""
    registry_subjects: str = field(default="topic", metadata={"choices": ("topic", "record", "topic_record")})
    """How subjects are named: Confluent's strategies. By topic is what most consumers and tools expect."""
    registry_register: bool = True
    """Whether the sink registers schemas. If not, they have to be registered before the first message."""

    def __post_init__(self) -> None:
        if "@" not in self.registry:
            return
        urls, user, password = split_url(self.registry)
        object.__setattr__(self, "registry", ",".join(urls))
        if user and not self.registry_user:
            object.__setattr__(self, "registry_user", user)
            object.__setattr__(self, "registry_password", password)

    def check_registry(self, encoding: str) -> None:
        """Raise a ConfigError unless the encoding has the registry that it needs."""
        if encoding in REGISTRY_ENCODINGS:
            if not self.registry:
                raise ConfigError(
                    f"encoding {encoding} needs a schema registry", "Set registry, for example http://registry:8081"
                )
            self.registry_settings()
            return
        names = ("registry", "registry_user", "registry_password", "registry_token", "registry_ca")
        if given := [name for name in names if getattr(self, name)]:
            raise ConfigError(
                f"encoding {encoding} has no use for {given[0]}", 'Set encoding = "avro" or "jsonschema", or remove it.'
            )

    def registry_settings(self) -> RegistrySettings:
        return RegistrySettings.parse(
            self.registry,
            self.registry_user,
            self.registry_password,
            self.registry_token,
            self.registry_ca,
            self.registry_register,
        )

    def registry_findings(self) -> Iterator[Finding]:
        """Log in to the registry, and report what an operator should know. Raises an error if it does not answer."""
        if self.registry and SchemaRegistry(self.registry_settings()).compatibility() == "NONE":
            message = "checks no compatibility, except of subjects with a level of their own"
            yield Finding(Severity.NOTE, f"schema registry {self.registry}", message)

    def registry_encoding(self, encoding: str, namespace: str) -> RegistryEncoding:
        """Return the encoding. `namespace` precedes the names of records."""
        formats: dict[str, Any] = {"avro": AvroFormat, "jsonschema": JsonSchemaFormat}
        registry = SchemaRegistry(self.registry_settings())
        return RegistryEncoding(registry, formats[encoding](namespace), cast(Subjects, self.registry_subjects))
