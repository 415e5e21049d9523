"""A replica in another PostgreSQL database: the tables as they are now, or every version of every row."""

from tailrace.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
