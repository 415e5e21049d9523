"""The drop-in replacement for the PostgreSQL-to-NATS bridge: its environment variables, status and HTTP API."""
