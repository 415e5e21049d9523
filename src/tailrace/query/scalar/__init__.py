"""Functions of PostgreSQL that DuckDB lacks or computes differently, in Python, called by DuckDB for whole columns.

Each function takes and returns PostgreSQL's text of a value where DuckDB has no exact type for it.
"""
