"""The audit trail: every change as a row of the table `changes`, as Bemi's and Zemi's users know it."""

from tailrace.sinks.audit.sink import AuditOptions, AuditSink

__all__ = ["AuditOptions", "AuditSink"]
