"""Audit context from an application that uses SQLAlchemy: set it once per request, and every transaction carries it.

    python examples/audit_sqlalchemy.py postgresql+psycopg://user@host/database

creates a table `notes`, waits until `tailrace audit` captures it, and changes it as two users. The trail's column
`context` has both.
"""

from __future__ import annotations

import json
import sys
import time
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

context: ContextVar[dict[str, Any] | None] = ContextVar("context", default=None)
"""The context of the current request. A middleware sets it."""


def audit(engine: Engine) -> None:
    """Make every transaction of the engine begin with a message that carries the context."""

    @event.listens_for(engine, "begin")
    def emit_context(connection: Connection) -> None:
        current = context.get()
        if current is not None:
            connection.execute(
                text("SELECT pg_logical_emit_message(true, '_bemi', :context)"), {"context": json.dumps(current)}
            )


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str]


def wait_until_captured(engine: Engine) -> None:
    """Wait for a running `tailrace audit`, which adds new tables to its publication within seconds.

    An application need not do this. But what changes before that is not in the trail.
    """
    query = text("SELECT count(*) FROM pg_publication_tables WHERE tablename = 'notes'")
    with engine.connect() as connection:
        if not connection.scalar(query):
            print("waiting until the table is captured: is `tailrace audit` running?")
        while not connection.scalar(query):
            connection.rollback()
            time.sleep(0.5)


def main(url: str) -> None:
    engine = create_engine(url)
    audit(engine)
    Base.metadata.create_all(engine)
    wait_until_captured(engine)
    context.set({"user": "ann", "request_id": "r-1"})
    with Session(engine) as session, session.begin():
        session.merge(Note(id=1, body="draft"))
    context.set({"user": "bob", "request_id": "r-2"})
    with Session(engine) as session, session.begin():
        session.get_one(Note, 1).body = "final"


if __name__ == "__main__":
    main(sys.argv[1])
