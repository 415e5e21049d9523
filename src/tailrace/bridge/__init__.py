"""The drop-in for the PostgreSQL-to-NATS bridge: its environment, its figures, its HTTP."""
