"""Delivery: how changes go from the log to a sink, and the contract that sinks fulfil."""
