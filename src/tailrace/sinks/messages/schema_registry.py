"""The client of a schema registry with Confluent's REST API.

A schema is checked before the first message that has it: the registry has to know it, or find it compatible with the
subject's schema and register it. A schema that is not compatible stops the sink before any message has it.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from tailrace import stored_json
from tailrace.errors import ConfigError, SinkError, SinkRefused, TailraceError
from tailrace.settings import Secret
from tailrace.sinks.messages.schema_difference import differences

AVRO: Final = "AVRO"
JSON: Final = "JSON"

_TIMEOUT_S: Final = 10.0
"""To connect, and between two reads. A registry answers within milliseconds; a retry follows."""
_LARGEST_ID: Final = 2**32 - 1
_LARGEST_ANSWER: Final = 16 * 1024 * 1024
_LONGEST_REASON: Final = 600
_UNKNOWN: Final = (40401, 40402, 40403)
"""The error codes for a subject, a version and a schema that the registry does not have."""
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True)
class RegistrySettings:
    """Where the registry is, and how to log in. Build it with `parse`."""

    urls: tuple[str, ...]
    """Without user and password. The second is asked if the first does not answer."""
    user: str = ""
    password: Secret | None = None
    token: Secret | None = None
    ca: Path | None = None
    """The authority that signed the registry's certificate, if the machine does not know it."""
    can_register: bool = True
    """Whether the sink registers schemas. If not, somebody else has to, before the first message."""

    @classmethod
    def parse(
        cls,
        url: str,
        user: str = "",
        password: Secret | None = None,
        token: Secret | None = None,
        ca: Path | None = None,
        can_register: bool = True,
    ) -> RegistrySettings:
        """Check the settings. A user and a password in the URL are moved out of it."""
        urls, found_user, found_password = split_url(url)
        if user and found_user:
            raise ConfigError("the registry's user is set twice: in its URL and by registry_user", "Set one of them.")
        user, password = user or found_user, password or found_password
        if token is not None and user:
            raise ConfigError("both registry_user and registry_token are set", "Set one of them.")
        if password is not None and not user:
            raise ConfigError("registry_password is set, but not registry_user", "Set both, or registry_token.")
        if token is not None and not re.fullmatch(r"[!-~]+", token.reveal()):
            raise ConfigError(
                "registry_token has characters that are not allowed in a header", "Does it end with a line end?"
            )
        try:
            ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise ConfigError(
                f"registry_ca {ca} has no certificates: {error.strerror or error}", "It is a file in PEM format."
            ) from None
        return cls(urls, user, password, token, ca, can_register)

    @property
    def headers(self) -> dict[str, str]:
        if self.token is not None:
            return {"Authorization": f"Bearer {self.token.reveal()}"}
        if not self.user:
            return {}
        login = f"{self.user}:{self.password.reveal() if self.password else ''}"
        return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def split_url(url: str) -> tuple[tuple[str, ...], str, Secret | None]:
    """Return one or more URLs, which are separated by commas, and the user and the password that the first one has."""
    user, password = "", None
    urls: list[str] = []
    for text in (part.strip() for part in url.split(",")):
        parts = urlsplit(text)
        if not _is_address(parts):
            raise ConfigError(
                "registry is not a URL with http or https, or several separated by commas",
                "for example https://registry.example:8081",
            )
        if parts.username and not urls:
            user = unquote(parts.username)
            password = None if parts.password is None else Secret(unquote(parts.password))
        urls.append(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}")
    return tuple(urls), user, password


def _is_address(parts: SplitResult) -> bool:
    try:
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # not a port
        return False


@dataclass(frozen=True)
class Schema:
    kind: str
    """`AVRO` or `JSON`."""
    name: str
    """The full name of the record that it describes."""
    text: str

    @property
    def request(self) -> dict[str, str]:
        # Registries older than 5.5 know no types, and Avro is the default.
        return {"schema": self.text} | ({} if self.kind == AVRO else {"schemaType": self.kind})


_ids: dict[tuple[RegistrySettings, str, str, bytes], int] = {}
"""The ids that this process knows. A registry never changes what an id stands for."""


@dataclass(frozen=True)
class SchemaRegistry:
    settings: RegistrySettings

    def schema_id(self, subject: str, schema: Schema) -> int:
        """Return the id of a schema in a subject. The first time, check that it is compatible and register it.

        Raises SinkRefused if it is not compatible, or not registered and the sink may not register it.
        """
        key = self.settings, subject, schema.kind, hashlib.sha256(schema.text.encode()).digest()
        if key not in _ids:
            found = self._look_up(subject, schema)
            _ids[key] = self._register(subject, schema) if found is None else found
        return _ids[key]

    def compatibility(self) -> str:
        """Return the registry's general level of compatibility, such as BACKWARD."""
        answer = self._call("GET", "/config")
        return str(answer.content.get("compatibilityLevel", "NONE"))

    def _look_up(self, subject: str, schema: Schema) -> int | None:
        answer = self._call("POST", f"/subjects/{_quoted(subject)}", subject, schema)
        return None if answer.is_unknown else answer.schema_id

    def _register(self, subject: str, schema: Schema) -> int:
        if not self.settings.can_register:
            raise SinkRefused(
                f"subject {subject} of the schema registry does not have the current schema of {schema.name}",
                "Register the schema, or set registry_register = true.",
            )
        self._check_compatibility(subject, schema)
        answer = self._call("POST", f"/subjects/{_quoted(subject)}/versions", subject, schema)
        if answer.status == HTTPStatus.CONFLICT:
            raise self._incompatible(subject, schema, answer.reason)
        return answer.schema_id

    def _check_compatibility(self, subject: str, schema: Schema) -> None:
        path = f"/compatibility/subjects/{_quoted(subject)}/versions/latest?verbose=true"
        answer = self._call("POST", path, subject, schema)
        if answer.is_unknown or answer.content.get("is_compatible") is True:
            return
        raise self._incompatible(subject, schema, " ".join(map(str, answer.content.get("messages", ()))))

    def _incompatible(self, subject: str, schema: Schema, reason: str) -> SinkRefused:
        latest = self._call("GET", f"/subjects/{_quoted(subject)}/versions/latest", subject)
        registered = latest.content.get("schema")
        found = differences(registered, schema.text) if isinstance(registered, str) else []
        shown = "; ".join([*found, *([f"the registry says: {reason}"] if reason else [])])
        return SinkRefused(
            f"subject {subject} of the schema registry: the schema of {schema.name} is not compatible with the"
            f" registered one: {shown[:_LONGEST_REASON]}",
            f"Set the compatibility of subject {subject} to a level that allows it, such as NONE, once its readers can"
            " cope; or send the table to another topic. Then restart the sink. No message with the new schema was"
            " sent.",
        )

    def _call(self, method: str, path: str, subject: str = "", schema: Schema | None = None) -> _Answer:
        """Ask each of the URLs until one answers. Raise an error unless the answer is one that callers expect."""
        body = None if schema is None else schema.request
        failure: TailraceError | None = None
        for url in self.settings.urls:
            try:
                status, data = self._exchange(url, method, path, body)
            except ssl.SSLCertVerificationError as error:
                raise SinkRefused(
                    f"the certificate of the schema registry {url} is not valid: {error.verify_message}",
                    "Set registry_ca to the certificate of the authority that signed it, or correct the host name.",
                ) from None
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
                failure = SinkError(f"the schema registry {url} cannot be reached: {reason}", "Is it running?")
                continue
            answer = _Answer.parse(url, status, data)
            if not answer.is_overloaded:
                return answer.checked(subject)
            failure = SinkError(f"the schema registry {url} answered {status}: {answer.reason}", "See its log.")
        assert failure is not None
        raise failure

    def _exchange(self, url: str, method: str, path: str, body: Mapping[str, str] | None) -> tuple[int, bytes]:
        parts = urlsplit(url)
        assert parts.hostname is not None
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=self.settings.ca)
            connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S, context=context)
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        headers = {"Accept": f"{_CONTENT_TYPE}, application/json", **self.settings.headers}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), _CONTENT_TYPE
        try:
            connection.request(method, parts.path + path, data, headers)
            response = connection.getresponse()
            return response.status, response.read(_LARGEST_ANSWER)
        finally:
            connection.close()


@dataclass(frozen=True)
class _Answer:
    url: str
    status: int
    content: Mapping[str, Any]
    is_json: bool

    @classmethod
    def parse(cls, url: str, status: int, data: bytes) -> _Answer:
        try:
            content = stored_json.parse(data)
        except ValueError:
            content = None
        return cls(url, status, content if isinstance(content, dict) else {}, isinstance(content, dict))

    @property
    def reason(self) -> str:
        return str(self.content.get("message", http.client.responses.get(self.status, "")))[:_LONGEST_REASON]

    @property
    def is_overloaded(self) -> bool:
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR or self.status == HTTPStatus.TOO_MANY_REQUESTS

    @property
    def is_unknown(self) -> bool:
        return self.status == HTTPStatus.NOT_FOUND and self.content.get("error_code") in _UNKNOWN

    @property
    def schema_id(self) -> int:
        found = self.content.get("id")
        if not isinstance(found, int) or not 0 <= found <= _LARGEST_ID:
            raise SinkRefused(
                f"{self.url} answered without the id of a schema, so it is not a schema registry", _URL_HINT
            )
        return found

    def checked(self, subject: str) -> _Answer:
        if self.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise SinkRefused(
                f"the schema registry {self.url} refused: {self.reason}",
                "Check registry_user and registry_password, or registry_token, and the user's rights. A user who may"
                " not register schemas needs registry_register = false.",
            )
        if self.is_unknown or (self.is_json and self.status in (HTTPStatus.OK, HTTPStatus.CONFLICT)):
            return self
        if self.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            raise SinkRefused(f"the schema registry refused the schema of {subject}: {self.reason}", _REFUSED_HINT)
        raise SinkRefused(f"{self.url} answered {self.status}, so it is not a schema registry", _URL_HINT)


_URL_HINT: Final = "Set registry to the URL below which its API has /subjects."
_REFUSED_HINT: Final = (
    "A subject has schemas of one type: Avro or JSON Schema. A registry in read-only mode needs"
    " registry_register = false, and schemas that somebody else registers."
)


def _quoted(subject: str) -> str:
    return quote(subject, safe="")
