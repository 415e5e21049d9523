"""The server side of SCRAM-SHA-256 (RFC 5802, 7677), as in PostgreSQL.

A user's verifier has the form of PostgreSQL's `pg_authid`: `SCRAM-SHA-256$<rounds>:<salt>$<stored>:<server>`. It does
not reveal the password. Channel binding is not offered: TLS alone protects against eavesdropping.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final, Self

from tailrace.errors import ConfigError

MECHANISM: Final = "SCRAM-SHA-256"
_ROUNDS: Final = 4096
_VERIFIER: Final = re.compile(r"SCRAM-SHA-256\$([0-9]{1,7}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")


class AuthenticationError(Exception):
    """The client failed to authenticate or did not follow SCRAM."""


@dataclass(frozen=True, repr=False)
class Verifier:
    rounds: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse PostgreSQL's form of a verifier, or derive one from a plain-text password."""
        if match := _VERIFIER.fullmatch(text):
            return cls(int(match[1]), *(base64.b64decode(match[part]) for part in (2, 3, 4)))
        if text.startswith(f"{MECHANISM}$"):
            raise ConfigError("a SCRAM verifier is incomplete", "copy the whole rolpassword from pg_authid")
        return cls.from_password(text)

    @classmethod
    def from_password(cls, password: str, salt: bytes | None = None) -> Self:
        salt = salt or secrets.token_bytes(16)
        salted = hashlib.pbkdf2_hmac("sha256", _saslprep(password), salt, _ROUNDS)
        return cls(_ROUNDS, salt, hashlib.sha256(_hmac(salted, b"Client Key")).digest(), _hmac(salted, b"Server Key"))

    @classmethod
    def for_unknown_user(cls, name: str, pepper: bytes, rounds: int) -> Self:
        """A verifier for an unknown user. Neither the salt, which is stable, nor the timing gives it away."""
        return cls(rounds, _hmac(pepper, name.encode())[:16], secrets.token_bytes(32), secrets.token_bytes(32))


class Exchange:
    """One authentication: two client messages and two replies."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._first_bare = b""
        self._first_reply = b""
        self._header = b""
        self._nonce = b""

    def first(self, data: bytes) -> bytes:
        match = re.fullmatch(rb"((?:n|y),,)(n=[^,]*,r=([\x21-\x2b\x2d-\x7e]+))(?:,.*)?", data)
        if match is None:
            raise AuthenticationError
        self._header, self._first_bare = match[1], match[2]
        self._nonce = match[3] + base64.b64encode(secrets.token_bytes(18))
        salt = base64.b64encode(self._verifier.salt)
        self._first_reply = b"r=%s,s=%s,i=%d" % (self._nonce, salt, self._verifier.rounds)
        return self._first_reply

    def final(self, data: bytes) -> bytes:
        match = re.fullmatch(rb"(c=([A-Za-z0-9+/=]+),r=([^,]+)),p=([A-Za-z0-9+/=]+)", data)
        if match is None or base64.b64decode(match[2]) != self._header or match[3] != self._nonce:
            raise AuthenticationError
        auth_message = b",".join((self._first_bare, self._first_reply, match[1]))
        signature = _hmac(self._verifier.stored_key, auth_message)
        proof = base64.b64decode(match[4])
        if len(proof) != len(signature):
            raise AuthenticationError
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key):
            raise AuthenticationError
        return b"v=" + base64.b64encode(_hmac(self._verifier.server_key, auth_message))


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _saslprep(password: str) -> bytes:
    """Apply SASLprep where the text allows it, else return the bytes unchanged, as PostgreSQL and libpq do."""
    import stringprep
    import unicodedata

    raw = password.encode()
    if password.isascii():
        return raw
    mapped = "".join(" " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c))
    text = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    tables = (
        stringprep.in_table_a1,
        stringprep.in_table_c12,
        stringprep.in_table_c21_c22,
        stringprep.in_table_c3,
        stringprep.in_table_c4,
        stringprep.in_table_c5,
        stringprep.in_table_c6,
        stringprep.in_table_c7,
        stringprep.in_table_c8,
        stringprep.in_table_c9,
    )
    if not text or any(prohibited(c) for c in text for prohibited in tables):
        return raw
    return text.encode()
