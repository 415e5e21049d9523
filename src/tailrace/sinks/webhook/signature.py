"""Signatures of requests by the Standard Webhooks specification: HMAC-SHA256 over id, time and content.

Several secrets give several signatures, so that a receiver can change its secret at any time: until all receivers have
the new one, the sink signs with both.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from tailrace.errors import ConfigError
from tailrace.settings import Secret

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"

_PREFIX: Final = "whsec_"
LEAST_BYTES: Final = 24
"""The specification's least length of a secret. Receivers accept shorter ones, so that these are only reported."""
_HINT: Final = "A secret is whsec_ and the base64 of 24 to 64 random bytes: echo whsec_$(openssl rand -base64 32)"


def parse_secrets(secret: Secret | None) -> tuple[bytes, ...]:
    """Return the keys of a setting that has any number of secrets, separated by whitespace or commas."""
    texts = secret.reveal().replace(",", " ").split() if secret is not None else []
    return tuple(_parse(text) for text in texts)


def _parse(text: str) -> bytes:
    # The message never quotes the secret, not even a wrong one.
    if not text.startswith(_PREFIX):
        raise ConfigError(f"secret does not begin with {_PREFIX}", _HINT)
    encoded = text.removeprefix(_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError("secret is not base64", _HINT) from None
    if not key:
        raise ConfigError("secret is empty", _HINT)
    return key


def signature_headers(keys: Sequence[bytes], request_id: str, timestamp: int, content: bytes) -> dict[str, str]:
    """Return the headers of a request.

    Args:
        keys: The secrets. Without any, the request is not signed, and has id and time only.
        request_id: The same whenever the request is sent.
        timestamp: When it is sent this time, in seconds since 1970.
        content: The content before compression.
    """
    headers = {ID: request_id, TIMESTAMP: str(timestamp)}
    if keys:
        signed = f"{request_id}.{timestamp}.".encode() + content
        digests = [hmac.digest(key, signed, hashlib.sha256) for key in keys]
        headers[SIGNATURE] = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return headers
