"""Shared by the sinks that keep tables in a database.

`table_write` and `row_version` reduce changes to their net change, `staging` and `staged_rows` carry it to the commit,
`mirror` and `history` say in which order it is applied, and `replica` which tables there are. None of these knows SQL:
each kind of database has its own statements for the protocols in `mirror`, `history`, `replica` and `staging`. Those of
MySQL are in `sinks/mysql`, those of PostgreSQL in `sinks/postgres`, and what other sinks need of them, too, in
`postgresql`.
"""
