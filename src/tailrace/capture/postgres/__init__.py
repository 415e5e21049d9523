"""Capture of PostgreSQL: slot, replication stream, sealer, bootstrap, snapshots, checks."""
