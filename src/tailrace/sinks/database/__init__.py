"""Shared by the sinks that write to a PostgreSQL database: connections, error classes, the ledger, staged rows."""
