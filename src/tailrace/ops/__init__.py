"""Operating Tailrace: what everything tells of itself, over HTTP and to Prometheus; and what keeps it running."""
