"""What Iceberg, a catalog or Java raises, as errors that say whether trying again can help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from tailrace.errors import SinkError, SinkRefused, TailraceError

_REFUSED: Final = ("NotAuthorizedException", "ForbiddenException", "AccessDeniedException")
_CONFLICT: Final = ("CommitFailedException", "ValidationException")


@contextmanager
def classified(what: str) -> Iterator[None]:
    """`what` was being done: it begins the message."""
    try:
        yield
    except Py4JJavaError as error:
        raise _failure(what, error.java_exception) from error
    except Py4JError as error:
        raise SinkError(f"{what}: Java does not answer: {error}", "it is tried again") from error


def _failure(what: str, raised: Any) -> TailraceError:
    names = [cause.getClass().getSimpleName() for cause in _causes(raised)]
    message = f"{what}: {names[0]}: {str(raised.getMessage()).splitlines()[0]}"
    if any(name in _REFUSED for name in names):
        return SinkRefused(message, "check the credentials, and what they allow")
    if "CommitStateUnknownException" in names:
        return SinkError(message, "whether it was committed is looked up before anything is tried again")
    if any(name in _CONFLICT for name in names):
        return SinkError(message, "somebody else changed the table; it is done again on what is there now")
    return SinkError(message, "it is tried again; does the catalog answer?")


def _causes(raised: Any) -> list[Any]:
    found = []
    while raised is not None:
        found.append(raised)
        raised = raised.getCause()
    return found
