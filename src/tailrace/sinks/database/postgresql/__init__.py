"""PostgreSQL as a destination, for all sinks that write to it: connections, error classes, the ledger, COPY."""
