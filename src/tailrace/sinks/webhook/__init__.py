"""The sink `webhook`: changes as HTTP requests, signed by the Standard Webhooks specification."""

from tailrace.sinks.webhook.options import WebhookOptions
from tailrace.sinks.webhook.sink import WebhookSink

__all__ = ["WebhookOptions", "WebhookSink"]
