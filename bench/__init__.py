"""Benchmarks: what Tailrace costs, beside what the same work costs without it, in one run on one machine."""
