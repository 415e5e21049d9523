"""Physical recovery: the archive of WAL, base backups, and restores to any moment that both cover."""
