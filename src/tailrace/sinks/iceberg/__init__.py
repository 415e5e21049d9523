"""The lake: PostgreSQL's tables as Iceberg tables. `point` and `options` are for readers too, and need no Spark."""
