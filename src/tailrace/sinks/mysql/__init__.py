"""A replica in MySQL or MariaDB: the tables as they are now, or every version of every row."""

from tailrace.sinks.mysql.sink import MysqlSink

__all__ = ["MysqlSink"]
