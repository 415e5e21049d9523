"""Rows as hashes or JSON in Valkey or Redis, changes as entries of streams, or keys of a cache that are invalidated."""

from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.sink import ValkeySink

__all__ = ["ValkeyOptions", "ValkeySink"]
