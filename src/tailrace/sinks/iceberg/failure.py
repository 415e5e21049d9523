"""What Iceberg, a catalog or Java raises, as errors that say whether trying again can help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from tailrace.errors import SinkError, SinkRefused, TailraceError

_REFUSED: Final = ("NotAuthorizedException", "ForbiddenException", "AccessDeniedException")
_CREDENTIALS: Final = "check the credentials, and what they allow"
_CONFLICT: Final = ("CommitFailedException", "ValidationException")
# Authentication, no such database, privileges: as PostgreSQL numbers them.
_REFUSED_STATES: Final = re.compile("28...|3D000|42501")


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
    causes = list(_causes(raised))
    names = [str(cause.getClass().getSimpleName()) for cause in causes]
    # The first says what was being done, the last what is the matter.
    told = dict.fromkeys(_first_line(cause) for cause in (causes[0], causes[-1]))
    message = f"{what}: {names[0]}: {': '.join(filter(None, told))}"
    for cause, name in zip(causes, names, strict=True):
        if hint := _refusal(cause, name):
            return SinkRefused(message, hint)
    if "CommitStateUnknownException" in names:
        return SinkError(message, "whether it was committed is looked up before anything is tried again")
    if any(name in _CONFLICT for name in names):
        return SinkError(message, "somebody else changed the table; it is done again on what is there now")
    return SinkError(message, "it is tried again; does the catalog answer?")


def _refusal(cause: Any, name: str) -> str | None:
    """What to do about it, where trying again cannot help."""
    match name:
        case "PSQLException" if _REFUSED_STATES.fullmatch(str(cause.getSQLState())):
            return "check the catalog's database, user and catalog_password, and what they allow"
        case "NoSuchBucketException":
            return "create the bucket, or mend `warehouse`"
        case "S3Exception" if cause.statusCode() in (401, 403):
            return _CREDENTIALS
        case "SdkClientException" if "Unable to load credentials" in _first_line(cause):
            return "put access_key_id and secret_access_key into the sink's options, or into the environment"
    return _CREDENTIALS if name in _REFUSED else None


def _causes(raised: Any) -> Iterator[Any]:
    while raised is not None:
        yield raised
        raised = raised.getCause()


def _first_line(raised: Any) -> str:
    return str(raised.getMessage() or "").partition("\n")[0]
