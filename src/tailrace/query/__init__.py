"""The query server: a read-only PostgreSQL protocol front end that runs DuckDB on the lake's tables."""
