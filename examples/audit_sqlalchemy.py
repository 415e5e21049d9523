"""Who did it, from an application that uses SQLAlchemy: set it once a request, and every transaction says it.

    python examples/audit_sqlalchemy.py postgresql+psycopg://user@host/database

makes a table `notes` and changes it under two users; the trail's `context` has them.
"""

from __future__ import annotations

import json
import sys
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

context: ContextVar[dict[str, Any] | None] = ContextVar("context", default=None)
"""Of the request under way: a middleware sets it."""


def audit(engine: Engine) -> None:
    """From now on every transaction of the engine begins by saying who is at it."""

    @event.listens_for(engine, "begin")
    def say(connection: Connection) -> None:
        who = context.get()
        if who is not None:
            connection.execute(
                text("SELECT pg_logical_emit_message(true, '_bemi', :context)"), {"context": json.dumps(who)}
            )


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str]


def main(url: str) -> None:
    engine = create_engine(url)
    audit(engine)
    Base.metadata.create_all(engine)
    context.set({"user": "ann", "request_id": "r-1"})
    with Session(engine) as session, session.begin():
        session.merge(Note(id=1, body="draft"))
    context.set({"user": "bob", "request_id": "r-2"})
    with Session(engine) as session, session.begin():
        session.get_one(Note, 1).body = "final"


if __name__ == "__main__":
    main(sys.argv[1])
