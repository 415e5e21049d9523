"""Changes as messages in RabbitMQ: streams, or an exchange."""

from tailrace.sinks.rabbitmq.options import RabbitMqOptions
from tailrace.sinks.rabbitmq.sink import RabbitMqSink

__all__ = ["RabbitMqOptions", "RabbitMqSink"]
