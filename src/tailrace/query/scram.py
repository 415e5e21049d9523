"""SCRAM-SHA-256 (RFC 5802, 7677), the server's side, as PostgreSQL speaks it.

A user is kept as PostgreSQL keeps one in `pg_authid`: `SCRAM-SHA-256$<rounds>:<salt>$<stored>:<server>`, from which the
password cannot be told. Channel binding is not offered: TLS alone keeps others from listening.
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


class Refused(Exception):
    """Not who they say they are, or not SCRAM."""


@dataclass(frozen=True, repr=False)
class Verifier:
    rounds: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, text: str) -> Self:
        """From PostgreSQL's form of a verifier, or from a password in the clear."""
        if match := _VERIFIER.fullmatch(text):
            return cls(int(match[1]), *(base64.b64decode(match[part]) for part in (2, 3, 4)))
        if text.startswith(f"{MECHANISM}$"):
            raise ConfigError("a SCRAM verifier is not whole", "copy it from rolpassword of pg_authid as it stands")
        return cls.from_password(text)

    @classmethod
    def from_password(cls, password: str, salt: bytes | None = None) -> Self:
        salt = salt or secrets.token_bytes(16)
        salted = hashlib.pbkdf2_hmac("sha256", _prepared(password), salt, _ROUNDS)
        return cls(_ROUNDS, salt, hashlib.sha256(_hmac(salted, b"Client Key")).digest(), _hmac(salted, b"Server Key"))

    @classmethod
    def of_nobody(cls, name: str, pepper: bytes) -> Self:
        """For a user that there is not: nobody can tell by the salt, which stays the same, nor by the time taken."""
        return cls(_ROUNDS, _hmac(pepper, name.encode())[:16], secrets.token_bytes(32), secrets.token_bytes(32))


class Exchange:
    """One authentication: two messages from the client, two answers."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._first_bare = b""
        self._first_answer = b""
        self._header = b""
        self._nonce = b""

    def first(self, data: bytes) -> bytes:
        match = re.fullmatch(rb"((?:n|y),,)(n=[^,]*,r=([\x21-\x2b\x2d-\x7e]+))(?:,.*)?", data)
        if match is None:
            raise Refused
        self._header, self._first_bare = match[1], match[2]
        self._nonce = match[3] + base64.b64encode(secrets.token_bytes(18))
        salt = base64.b64encode(self._verifier.salt)
        self._first_answer = b"r=%s,s=%s,i=%d" % (self._nonce, salt, self._verifier.rounds)
        return self._first_answer

    def final(self, data: bytes) -> bytes:
        match = re.fullmatch(rb"(c=([A-Za-z0-9+/=]+),r=([^,]+)),p=([A-Za-z0-9+/=]+)", data)
        if match is None or base64.b64decode(match[2]) != self._header or match[3] != self._nonce:
            raise Refused
        told = b",".join((self._first_bare, self._first_answer, match[1]))
        signature = _hmac(self._verifier.stored_key, told)
        proof = base64.b64decode(match[4])
        if len(proof) != len(signature):
            raise Refused
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key):
            raise Refused
        return b"v=" + base64.b64encode(_hmac(self._verifier.server_key, told))


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _prepared(password: str) -> bytes:
    """As PostgreSQL and libpq do: SASLprep where the text allows it, else the bytes as they are."""
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
