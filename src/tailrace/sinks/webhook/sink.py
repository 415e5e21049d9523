"""The sink `webhook`: sends each change to an HTTP receiver, at least once, in order for each key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from tailrace.delivery.contract import State
from tailrace.delivery.sink_settings import SinkContext
from tailrace.finding import Finding, Severity
from tailrace.sinks.messages.encoder import MessageEncoder
from tailrace.sinks.messages.message_sink import MessageSink
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.webhook import attempt_record
from tailrace.sinks.webhook.answer import Verdict
from tailrace.sinks.webhook.attempt_record import AttemptRecord
from tailrace.sinks.webhook.options import WebhookOptions
from tailrace.sinks.webhook.request_envelope import RequestEnvelope, depends_on_table
from tailrace.sinks.webhook.sender import SignedSender, make_authorization
from tailrace.sinks.webhook.signature import LEAST_BYTES
from tailrace.sinks.webhook.transport import WebhookTransport

_WITHOUT_TABLE = ("row", "outbox")
"""Envelopes that do not say which table a change belongs to: the path has to."""
_NAMES = "{schema}.{table}"


class WebhookSink(MessageSink[WebhookOptions]):
    Options: ClassVar[type] = WebhookOptions
    collision_hint: ClassVar[str] = (
        "Put {schema} and {table} into `path`, use an envelope that names the table, give the tables different names"
        " with `route`, or exclude one of them."
    )

    def __init__(self, name: str, options: WebhookOptions, context: SinkContext) -> None:
        super().__init__(name, options.validate(), context)

    def template(self) -> DestinationTemplate:
        """Return what two tables must not share: the path, or the name in the messages if those have it."""
        if self._options.envelope in _WITHOUT_TABLE:
            return self._path()
        return DestinationTemplate.parse(_NAMES, self._database)

    def encoder(self) -> MessageEncoder:
        options, path = self._options, self._path()
        headers = options.header_templates(self._database)
        is_outbox = options.envelope == "outbox"
        envelope = RequestEnvelope(
            options.make_envelope(self.name, self._database, self.name, "ce-"),
            path,
            options.methods,
            {name: template for name, template in headers.items() if not _is_fixed(template)},
            options.outbox_aggregate_id if is_outbox else "",
            options.outbox_payload if is_outbox else "",
        )
        # A logical message belongs to no table: it goes to the URL itself if the path depends on one.
        messages_path = "/" if depends_on_table(path) else path.of_operation(("", ""), "message")
        return MessageEncoder(envelope, path, lambda _: messages_path)

    def connect(self) -> WebhookTransport:
        return WebhookTransport(self.name, self._options, self._fixed_headers(), self._store)

    def rewind(self, state: State) -> None:
        super().rewind(state)
        attempt_record.save(self._store, self.name, AttemptRecord())

    def check(self) -> Iterator[Finding]:
        """Resolve, connect, verify TLS, fetch a token, and ask the receiver for its options. Sends no change."""
        options, subject = self._options, f"sink {self.name}:"
        if not options.receiver.origin.is_encrypted:
            yield Finding(Severity.WARNING, subject, "http:// sends changes and credentials unencrypted")
        if not options.keys:
            yield Finding(Severity.WARNING, subject, "secret is not set, so requests are not signed")
        if any(len(key) < LEAST_BYTES for key in options.keys):
            yield Finding(Severity.WARNING, subject, f"a secret has fewer than {LEAST_BYTES} bytes")
        authorization = make_authorization(options)
        sender = SignedSender.make(options, authorization, self._fixed_headers())
        try:
            status, verdict = sender.probe()
        finally:
            sender.close()
            authorization.close()
        if verdict in (Verdict.GONE, Verdict.UNAVAILABLE, Verdict.FAILED) or status in (401, 403):
            yield Finding(Severity.WARNING, subject, f"the receiver answers OPTIONS with {status}")
        if 300 <= status < 400:
            yield Finding(Severity.ERROR, subject, f"the receiver redirects ({status}); set url to the final address")

    def _path(self) -> DestinationTemplate:
        return self._options.path_template(self._database)

    def _fixed_headers(self) -> dict[str, str]:
        headers = self._options.header_templates(self._database)
        return {name: template.of_operation(("", ""), "") for name, template in headers.items() if _is_fixed(template)}


def _is_fixed(template: DestinationTemplate) -> bool:
    return all(name in (None, "database") for _, name in template.parts)
