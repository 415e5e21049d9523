"""Benchmarks: the cost of Tailrace and of the same work without it, in one run on one machine."""
