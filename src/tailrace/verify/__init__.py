"""Compares the rows of a destination with the source's, at one position, and has those that differ corrected.

**One position.** A temporary slot exports a snapshot of the source and its LSN: the snapshot has exactly the
transactions that commit below it. Verification waits until the sink's cursor has passed that LSN, then reads the
destination in one snapshot together with the cursor. The destination must have the source's rows, with the changes
folded in that the log has between the source's LSN and the cursor. So the sink goes on delivering, and nothing is
compared that the sink has not delivered yet.

**Values.** A value is PostgreSQL's own text, as the log has it: from sessions with the same settings on all servers.
A destination that does not hold it exactly says what it holds of it (`RowReader.comparable`).

**Checksums.** A table is divided into ranges of about a thousand rows by the hash of the key, and each range has a sum
of its rows' hashes on either side. Between two PostgreSQL servers each computes its own; other destinations are read,
and hashed here. Rows are compared in the ranges whose sums differ, so a sum never decides that rows differ. Unequal
ranges have equal sums with a chance of 1 : 2^64.

**What is not compared** is named, and is never counted as equal: columns of which the sink does not know the source's
definition yet, tables without a snapshot, and documents that change whenever they are read.
"""
