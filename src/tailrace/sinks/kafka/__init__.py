"""The sink `kafka`: messages and progress in one transaction."""

from tailrace.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
