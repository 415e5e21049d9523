"""A replica in another PostgreSQL: the tables as they are, or every version they ever had."""

from tailrace.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
