"""Where requests go: scheme, host and port of a URL, and the TLS settings of connections to it."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError
from tailrace.settings import Secret

_PORTS: Final = {"https": 443, "http": 80}
_EXAMPLE: Final = "for example https://hooks.example.com/changes"
_TARGET: Final = re.compile(r"[!-~]*")
"""Visible ASCII: what a request line may hold."""


@dataclass(frozen=True)
class Origin:
    scheme: str
    host: str
    port: int

    @property
    def is_encrypted(self) -> bool:
        return self.scheme == "https"

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        """Without path and query, which may contain a token."""
        return f"{self.scheme}://{self.host_header}"


@dataclass(frozen=True)
class HttpUrl:
    """A URL, taken apart."""

    origin: Origin
    path: str
    query: str
    user: str | None = None
    password: Secret | None = None

    @classmethod
    def parse(cls, setting: str, url: str) -> HttpUrl:
        """Parse a URL. The error of a faulty one does not quote it: it may contain a password or a token.

        Args:
            setting: The setting's name, for the error.
            url: `https://host[:port][/path][?query]`.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ConfigError(f"{setting} is not a URL", _EXAMPLE) from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ConfigError(f"{setting} is not an https:// or http:// URL", _EXAMPLE)
        if parts.fragment or not _TARGET.fullmatch(parts.path + parts.query):
            raise ConfigError(
                f"{setting} has a fragment, or characters that have to be percent-encoded", "write a space as %20"
            )
        try:
            host = parts.hostname.encode("idna" if not parts.hostname.isascii() else "ascii").decode()
        except UnicodeError:
            raise ConfigError(f"{setting} has an invalid host name", _EXAMPLE) from None
        origin = Origin(parts.scheme, host, port or _PORTS[parts.scheme])
        user = None if parts.username is None else unquote(parts.username)
        password = None if parts.password is None else Secret(unquote(parts.password))
        return cls(origin, parts.path, parts.query, user, password)


@dataclass(frozen=True)
class TlsFiles:
    """Files for TLS. The host name is always verified."""

    authority: Path | None = None
    """The only authority that is trusted; None: those that the machine trusts."""
    certificate: Path | None = None
    """The client's own."""
    key: Path | None = None
    """The certificate's key, if it is not in the same file."""

    def context(self) -> ssl.SSLContext:
        """Return the settings of a connection. Raises a ConfigError for files that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.authority)
            if self.certificate is not None:
                # An encrypted key would make OpenSSL ask for its password on the terminal.
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(file) for file in (self.authority, self.certificate, self.key) if file is not None)
            raise ConfigError(
                f"{files}: cannot be used for TLS: {error.strerror or error}",
                "tls_ca and tls_certificate are PEM files; tls_key is a key without a password",
            ) from None
        context.set_alpn_protocols(["http/1.1"])
        return context


def _no_password() -> str:
    return ""
