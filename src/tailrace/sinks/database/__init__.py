"""What sinks that write into a PostgreSQL database share: sessions, failures, the ledger, rows brought by COPY."""
