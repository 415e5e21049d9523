"""Uses of the audit trail: a row's history, reverting changes, verifying that nothing was altered."""
