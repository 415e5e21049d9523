"""A server that issues signed tokens to clients, and the key by which others verify them (OAuth 2, OpenID Connect)."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from tests.contract.webhook_receiver import Answer, Reaction, Received


class TokenIssuer:
    """Answers requests with client credentials. Each token is a JWT that this issuer's key has signed."""

    def __init__(self, client: str, secret: str, valid_s: int = 3600) -> None:
        self.client, self.secret = client, secret
        self.valid_s = valid_s
        self.forms: list[Mapping[str, list[str]]] = []
        """The forms of the requests that were granted."""
        self._key = rsa.generate_private_key(65537, 2048)

    def react(self, received: Received) -> Reaction:
        form = parse_qs(received.content.decode())
        pair = base64.b64encode(f"{self.client}:{self.secret}".encode()).decode()
        if received.headers.get("authorization") != f"Basic {pair}":
            return Answer(401, {"content-type": "application/json"}, b'{"error": "invalid_client"}')
        self.forms.append(form)
        raw = {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.valid_s}
        return Answer(200, {"content-type": "application/json"}, json.dumps(raw).encode())

    def token(self) -> str:
        now = int(time.time())
        claims = {"sub": self.client, "aud": "kafka", "iat": now, "exp": now + self.valid_s}
        content = f"{_part(self._header)}.{_part(claims)}"
        signature = self._key.sign(content.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{content}.{_text(signature)}"

    @property
    def _header(self) -> dict[str, Any]:
        return {"alg": "RS256", "kid": "key"}

    def write_keys(self, file: Path) -> None:
        """Write the public key as a JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "use": "sig",
            **self._header,
            "n": _text(numbers.n.to_bytes(256, "big")),
            "e": _text(numbers.e.to_bytes(3, "big")),
        }
        file.write_text(json.dumps({"keys": [key]}))


def _part(value: Mapping[str, Any]) -> str:
    return _text(json.dumps(value).encode())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
