"""Tailrace: PostgreSQL's write-ahead log as a durable change log, and everything made from it."""

__version__ = "0.1.0"
