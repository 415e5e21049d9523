"""Translation of PostgreSQL's SQL to DuckDB's: a syntax tree of PostgreSQL's own parser, typed as PostgreSQL does.

Each expression has a PostgreSQL type. Functions, operators and casts are chosen as PostgreSQL chooses them, and each
has an exact rendering for DuckDB or is refused.
"""
