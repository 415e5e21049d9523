"""Publishes changes as messages to NATS JetStream."""

from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.sink import NatsSink

__all__ = ["NatsOptions", "NatsSink"]
