"""The query server: PostgreSQL's protocol over DuckDB on the lake's tables, read-only."""
