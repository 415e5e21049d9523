"""What the audit trail is for: a row's history, taking changes back, proving that nothing was altered."""
