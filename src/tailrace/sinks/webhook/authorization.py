"""How the sink identifies itself: bearer token, user and password, or a token by OAuth 2.0 client credentials."""

from __future__ import annotations

import base64
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import quote_plus, urlencode

from tailrace import stored_json
from tailrace.errors import SinkError, SinkRefused
from tailrace.http.client import HttpAnswer, HttpClient
from tailrace.http.origin import HttpUrl
from tailrace.settings import Secret
from tailrace.sinks.webhook.answer import Verdict, judge

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_DEFAULT_LIFE_S: Final = 300.0
"""Of a token whose server does not say how long it is valid."""
_EARLY_S: Final = 60.0
"""A token is renewed so long before it expires, or when half of its life is over: requests take time, and clocks
differ."""
_FORM: Final = "application/x-www-form-urlencoded"


class Authorization(Protocol):
    def header(self) -> str | None:
        """Return the value of the header `authorization`; None: the receiver needs none."""

    def renew(self, rejected: str) -> bool:
        """Called when the receiver rejects a value with 401. Whether another one is worth a try."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class FixedAuthorization:
    value: Secret | None = None

    @classmethod
    def bearer(cls, token: Secret) -> FixedAuthorization:
        return cls(Secret(f"Bearer {token.reveal()}"))

    @classmethod
    def basic(cls, user: str, password: Secret | None) -> FixedAuthorization:
        pair = f"{user}:{'' if password is None else password.reveal()}"
        return cls(Secret(f"Basic {base64.b64encode(pair.encode()).decode()}"))

    def header(self) -> str | None:
        return None if self.value is None else self.value.reveal()

    def renew(self, rejected: str) -> bool:  # noqa: ARG002
        return False

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class ClientCredentials:
    url: HttpUrl
    id: str
    secret: Secret
    fields: Mapping[str, str] = field(default_factory=dict)
    """More fields of the token request, such as `scope` or `audience`."""


class OAuthAuthorization:
    """Fetches a token when one is needed, and renews it before it expires. Threads share it."""

    def __init__(self, credentials: ClientCredentials, client: HttpClient, timeout_s: float) -> None:
        self._credentials = credentials
        self._client = client
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._value = ""
        self._renew_at = 0.0
        self._in_body = False
        """Whether the server wants the credentials in the body: some do not accept them in the header."""

    def header(self) -> str | None:
        with self._lock:
            if not self._value or time.monotonic() >= self._renew_at:
                self._fetch()
            return self._value

    def renew(self, rejected: str) -> bool:
        with self._lock:
            if self._value == rejected:
                self._value = ""
            return True

    def close(self) -> None:
        self._client.close()

    def _fetch(self) -> None:
        asked_at = time.monotonic()
        answer = self._ask()
        if answer.status in (400, 401) and not self._in_body:
            self._in_body = True
            second = self._ask()
            self._in_body = second.status == 200
            answer = second if self._in_body else answer
        if answer.status != 200:
            raise self._error(answer)
        token, life_s = self._parse(answer.body)
        self._value = f"Bearer {token}"
        self._renew_at = asked_at + max(life_s - _EARLY_S, life_s / 2)

    def _ask(self) -> HttpAnswer:
        given = self._credentials
        fields = {"grant_type": "client_credentials", **given.fields}
        headers = {"content-type": _FORM, "accept": "application/json"}
        if self._in_body:
            fields |= {"client_id": given.id, "client_secret": given.secret.reveal()}
        else:
            pair = f"{quote_plus(given.id)}:{quote_plus(given.secret.reveal())}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        target = (given.url.path or "/") + (f"?{given.url.query}" if given.url.query else "")
        return self._client.exchange("POST", target, headers, urlencode(fields).encode(), self._timeout_s)

    def _error(self, answer: HttpAnswer) -> SinkError | SinkRefused:
        message = f"{self._credentials.url.origin}: the token request was answered with {answer.status}"
        if judge(answer.status, answer.headers).verdict in (Verdict.FAILED, Verdict.UNAVAILABLE):
            return SinkError(message, "Retrying.")
        return SinkRefused(message, "Check oauth_url, oauth_client_id, oauth_client_secret and oauth_fields.")

    def _parse(self, body: bytes) -> tuple[str, float]:
        try:
            raw = stored_json.parse(body)
            token, kind = str(raw["access_token"]), str(raw.get("token_type", "bearer"))
            life_s = float(raw.get("expires_in") or _DEFAULT_LIFE_S)
        except (ValueError, KeyError, TypeError, AttributeError):
            token = kind = ""
            life_s = 0.0
        if not _TOKEN.fullmatch(token) or kind.lower() != "bearer" or not 0 < life_s < float("inf"):
            raise SinkRefused(
                f"{self._credentials.url.origin}: the answer to the token request has no bearer token",
                "Is oauth_url the token endpoint?",
            ) from None
        return token, life_s
