"""What the Iceberg sink and the query server share: settings, the consistent point, metadata. Needs no Spark."""
