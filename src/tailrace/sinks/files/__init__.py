"""Writes changes to files, as JSON Lines or Parquet, by table and date."""

from tailrace.sinks.files.sink import FilesOptions, FilesSink

__all__ = ["FilesOptions", "FilesSink"]
