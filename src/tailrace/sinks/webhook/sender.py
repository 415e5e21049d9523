"""Sends one request at a time: compressed, signed, and with the receiver's credentials."""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.http.client import HttpAnswer, HttpClient
from tailrace.sinks.webhook.answer import Judgement, Verdict, judge
from tailrace.sinks.webhook.authorization import (
    Authorization,
    ClientCredentials,
    FixedAuthorization,
    OAuthAuthorization,
)
from tailrace.sinks.webhook.options import WebhookOptions
from tailrace.sinks.webhook.request_content import RequestContent
from tailrace.sinks.webhook.signature import signature_headers

_USER_AGENT: Final = "tailrace"
_GZIP_LEVEL: Final = 5
_UNAUTHORIZED: Final = 401


@dataclass(frozen=True)
class SignedSender:
    """Each thread has its own, with one connection. They share the authorization."""

    options: WebhookOptions
    authorization: Authorization
    fixed_headers: Mapping[str, str]
    """The same in every request."""
    by_row: bool
    """Whether the path depends on the row."""
    client: HttpClient

    @classmethod
    def make(
        cls, options: WebhookOptions, authorization: Authorization, fixed_headers: Mapping[str, str]
    ) -> SignedSender:
        client = HttpClient(options.receiver.origin, options.tls, allow_private=options.allow_private)
        by_row = bool(options.path_template("").columns)
        return cls(options, authorization, fixed_headers, by_row, client)

    def send(self, content: RequestContent) -> tuple[int, Judgement]:
        headers = {"user-agent": _USER_AGENT, **content.headers, **self.fixed_headers}
        # Signed before it is compressed: whatever decompresses it on the way, the receiver verifies what it reads.
        headers |= signature_headers(self.options.keys, content.id, int(time.time()), content.content)
        body = content.content
        if self.options.gzip:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
            headers["content-encoding"] = "gzip"
        target = self.options.target(content.path)
        answer = self._exchange(content.method, target, headers, body)
        return answer.status, judge(answer.status, answer.headers, content.method, by_row=self.by_row)

    def probe(self) -> tuple[int, Verdict]:
        """Ask the receiver for its options, without any change."""
        path = "/" if self.by_row else self.options.path_template("").of_operation(("x", "x"), "insert")
        headers = {"user-agent": _USER_AGENT, **self.fixed_headers}
        answer = self._exchange("OPTIONS", self.options.target(path), headers, b"")
        return answer.status, judge(answer.status, answer.headers).verdict

    def _exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        answer, value = self._exchange_once(method, target, headers, body)
        # A token may be revoked before it expires.
        if answer.status == _UNAUTHORIZED and value is not None and self.authorization.renew(value):
            answer, _ = self._exchange_once(method, target, headers, body)
        return answer

    def _exchange_once(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[HttpAnswer, str | None]:
        value = self.authorization.header()
        own = headers if value is None else {**headers, "authorization": value}
        return self.client.exchange(method, target, own, body, self.options.timeout_s), value

    def close(self) -> None:
        self.client.close()


def make_authorization(options: WebhookOptions) -> Authorization:
    server = options.token_server
    if server is not None and options.oauth_client_secret is not None:
        client = HttpClient(server.origin, options.tls, allow_private=options.allow_private)
        credentials = ClientCredentials(
            server, options.oauth_client_id, options.oauth_client_secret, options.oauth_fields
        )
        return OAuthAuthorization(credentials, client, options.timeout_s)
    if options.bearer is not None:
        return FixedAuthorization.bearer(options.bearer)
    if options.user:
        return FixedAuthorization.basic(options.user, options.password)
    return FixedAuthorization()
