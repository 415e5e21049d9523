"""Passwords and keys that cannot be printed, logged, serialised or pickled by accident."""

from __future__ import annotations

import hmac
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Options = TypeVar("Options", bound=DataclassInstance)

_MASK: Final = "********"


class Secret:
    """A value that prints as a mask; only `reveal` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def to_picklable(self) -> PicklableSecret:
        """The same secret, but picklable. Only for sinks that are sent to the processes that write for them."""
        return PicklableSecret(self._value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_MASK!r})"

    def __str__(self) -> str:
        return _MASK

    def __format__(self, spec: str) -> str:
        return format(_MASK, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __bool__(self) -> bool:
        return bool(self._value)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a secret cannot be pickled: pass a reference to where it is stored instead")


class PicklableSecret(Secret):
    """A secret that can be sent to another Tailrace process, where it unpickles as an ordinary `Secret`."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return Secret, (self._value,)


def read_secret(setting: str, given: Secret | None, file: Path | None) -> Secret | None:
    """Return a secret that is given, or else the content of a file, without the line break at its end; None without
    both.

    Args:
        setting: The setting that names the file, for the error.
        given: The secret, if it is in the settings or the environment.
        file: The file.
    """
    if given is not None or file is None:
        return given
    try:
        return Secret(file.read_text().rstrip("\r\n"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"{setting} {file} cannot be read: {reason}") from None


def with_picklable_secrets(options: Options) -> Options:
    """Return a dataclass of options whose secrets can be pickled, for sinks that are sent to other processes."""
    secrets = {}
    for each in fields(options):
        value = getattr(options, each.name)
        if isinstance(value, Secret):
            secrets[each.name] = value.to_picklable()
    return replace(options, **secrets)


def split_password(url: str) -> tuple[str, Secret | None]:
    """Split a libpq URL into the URL without its password, and the password if it has one."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # libpq's message quotes what it could not parse, which may be the password.
        raise ConfigError(
            "is not a connection URL, such as postgresql://user@host/database (write @ in a name as %40)"
        ) from None
    password = parts.pop("password", None)
    if password is None:
        return url, None
    names = {key: str(value) for key, value in parts.items()}
    hosts = names.pop("host", "").split(",")
    ports = names.pop("port", "").split(",")
    address = ",".join(
        (f"[{host}]" if ":" in host else quote(host, safe="")) + (f":{port}" if port else "")
        for host, port in zip(hosts, ports if len(ports) == len(hosts) else ports * len(hosts), strict=True)
    )
    user = quote(names.pop("user", ""), safe="")
    rebuilt = f"postgresql://{user}{'@' if user else ''}{address}/{quote(names.pop('dbname', ''), safe='')}"
    if names:
        rebuilt += "?" + urlencode(names, quote_via=quote)
    same = conninfo_to_dict(rebuilt) == parts
    return rebuilt if same else make_conninfo("", **parts), Secret(str(password))
