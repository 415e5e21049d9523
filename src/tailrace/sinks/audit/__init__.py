"""The audit trail: every change as a row of the table `changes`, compatible with Bemi and Zemi."""

from tailrace.sinks.audit.sink import AuditOptions, AuditSink

__all__ = ["AuditOptions", "AuditSink"]
