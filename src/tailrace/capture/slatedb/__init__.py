"""Capture of SlateDB: the WAL stream, checkpoints and scans, checks."""
