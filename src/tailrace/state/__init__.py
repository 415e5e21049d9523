"""A table's rows at any LSN: its snapshot, merged with the changes since."""
