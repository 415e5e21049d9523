"""The optional event trigger that writes DDL into the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from tailrace.finding import Finding, Severity
from tailrace.log.ddl_message import PREFIX, TRIGGER, TRIGGER_NAME


def ddl_findings(connection: psycopg.Connection[Any]) -> Iterator[Finding]:
    row = connection.execute(
        "SELECT pg_catalog.count(*) FROM pg_catalog.pg_event_trigger WHERE evtname = ANY (%s) AND evtenabled <> 'D'",
        [[TRIGGER_NAME, f"{TRIGGER_NAME}_drop"]],
    ).fetchone()
    if row is None or row[0] < 2:
        yield Finding(
            Severity.NOTE,
            "DDL",
            "is not in the log. This is optional: an event trigger that adds a logical message to each transaction "
            "that creates, alters or drops a table, so that `tailrace restore --before 'drop of …'` finds it. It has "
            "names, never statements or rows, and sinks do not deliver it. But every other logical slot of the "
            f"database gets the messages too, with the prefix {PREFIX}: a Debezium connector publishes them unless "
            f"its message.prefix.exclude.list has {PREFIX}. A superuser can create the trigger",
            TRIGGER,
        )
