"""Settings of the sink `mysql`: the server, credentials, and how tables and values are mapped."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn, Self
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError, SinkRefused
from tailrace.settings import Secret
from tailrace.settings.secret import read_secret
from tailrace.sinks.database.replica_sink import MODES
from tailrace.sinks.mysql.unrepresentable import UnrepresentablePolicy

_SCHEMES: Final = ("mysql", "mariadb")
_PORT: Final = 3306
_EXAMPLE: Final = "such as mysql://user@host:3306/database (write @ in a name as %40)"
_TLS: Final = ("disable", "require", "verify-ca", "verify-full")


class ClearPassword:
    """PyMySQL would send the password as it is to whatever server asks for it."""

    def __init__(self, connection: object) -> None:
        pass

    def authenticate(self, packet: object) -> NoReturn:  # noqa: ARG002
        raise SinkRefused(
            "the server asks for the password in clear text, and its certificate is not verified",
            'set tls_ca, or tls = "verify-full"',
        )


@dataclass(frozen=True)
class MysqlOptions:
    url: str = ""
    """`mysql://user@host:3306/database`. A password inside it is moved into `password`."""
    password: Secret | None = None
    password_file: Path | None = None
    tls: str | None = field(default=None, metadata={"choices": _TLS})
    """Unset: `verify-full` if one of the files below is set, else TLS without verification if the server has it."""
    tls_ca: Path | None = None
    """The authority that signed the server's certificate."""
    tls_certificate: Path | None = None
    """The client's certificate."""
    tls_key: Path | None = None
    """The key of `tls_certificate`, unless that file contains it."""
    database: str = field(default="shared", metadata={"choices": ("shared", "per_schema")})
    """`shared`: all tables are in the URL's database. Those of the schema `public` keep their names, others are called
    `schema_table`. `per_schema`: each schema is a database of its own, which the user must be allowed to create."""
    mode: str = field(default="mirror", metadata={"choices": MODES})
    """`mirror`: the tables as they are. `history`: every version of every row, with the time it was valid."""
    on_unrepresentable: str | Mapping[str, str] = "stop"
    """What to do with values that MySQL's types cannot hold, by default, by type or by column. The default stops the
    sink, because any other choice changes values."""

    def __post_init__(self) -> None:
        # Whatever is wrong with the URL, what precedes the @ is not shown: it may be a password.
        before, at, place = self.url.rpartition("@")
        scheme, _, login = before.rpartition("://")
        name, colon, password = login.partition(":")
        if not at or not colon:
            return
        if self.password is None:
            object.__setattr__(self, "password", Secret(unquote(password)))
        object.__setattr__(self, "url", f"{scheme}://{name}@{place}")

    def validate(self) -> Self:
        """These settings, validated, with the password read from its file."""
        if not self.url:
            raise ConfigError("url is missing", _EXAMPLE)
        try:
            url = urlsplit(self.url)
            is_valid = url.scheme in _SCHEMES and bool(url.hostname) and url.port != 0 and bool(url.path.strip("/"))
        except ValueError:
            is_valid = False
        if not is_valid or "/" in url.path[1:] or url.query or url.fragment:
            raise ConfigError(f"url {self.url} does not name a server and a database", _EXAMPLE)
        if self.tls == "disable" and (self.tls_ca or self.tls_certificate):
            raise ConfigError("tls_ca and tls_certificate need TLS", 'remove them, or tls = "disable"')
        if self.tls_key and not self.tls_certificate:
            raise ConfigError("tls_key is set without tls_certificate", "set both")
        self.policy()
        return replace(self, password=read_secret("password_file", self.password, self.password_file))

    def to_picklable(self) -> Self:
        """These settings with the password, for executors."""
        return self if self.password is None else replace(self, password=self.password.to_picklable())

    def policy(self) -> UnrepresentablePolicy:
        return UnrepresentablePolicy.parse(self.on_unrepresentable)

    @property
    def url_database(self) -> str:
        """The database of Tailrace's own tables and, unless each schema has its own, of all tables."""
        return unquote(urlsplit(self.url).path[1:])

    def parameters(self) -> dict[str, Any]:
        """PyMySQL's parameters for a connection."""
        url = urlsplit(self.url)
        found: dict[str, Any] = {
            "host": url.hostname,
            "port": url.port or _PORT,
            "user": unquote(url.username or ""),
            "database": self.url_database,
        }
        if self.password is not None:
            found["password"] = self.password.reveal().encode()
        mode = self.tls or ("verify-full" if self.tls_ca or self.tls_certificate else None)
        if mode not in ("verify-ca", "verify-full"):
            found["auth_plugin_map"] = {"mysql_clear_password": ClearPassword, "dialog": ClearPassword}
        match mode:
            case None:
                return found
            case "disable":
                return found | {"ssl_disabled": True}
            case _:
                return found | {"ssl": self._tls_context(mode)}

    def _tls_context(self, mode: str) -> ssl.SSLContext:
        # PyMySQL's own does not verify the host's name unless there is a file of authorities.
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_certificate is not None:
                context.load_cert_chain(self.tls_certificate, self.tls_key, password="")
        except OSError as error:
            files = ", ".join(str(file) for file in (self.tls_ca, self.tls_certificate, self.tls_key) if file)
            raise ConfigError(f"{files}: {error.strerror or error}", "these are PEM files") from None
        context.check_hostname = mode == "verify-full"
        if mode == "require":
            context.verify_mode = ssl.CERT_NONE
        return context
