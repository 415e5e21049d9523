"""Translates Java's exceptions, of Iceberg and its catalogs, into errors that say whether a retry can help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from tailrace.errors import SinkError, SinkRefused, TailraceError

_REFUSED: Final = ("NotAuthorizedException", "ForbiddenException", "AccessDeniedException")
_CREDENTIALS: Final = "check the credentials and their permissions"
_CONFLICT: Final = ("CommitFailedException", "ValidationException")
# SQLSTATEs: authentication, no such database, privileges.
_REFUSED_STATES: Final = re.compile("28...|3D000|42501")


@contextmanager
def translate_java_errors(what: str) -> Iterator[None]:
    """Raise a TailraceError for a Java exception. Its message begins with `what`."""
    try:
        yield
    except Py4JJavaError as error:
        raise _translate(what, error.java_exception) from error
    except Py4JError as error:
        raise SinkError(f"{what}: Java does not answer: {error}", "retrying automatically") from error


def _translate(what: str, raised: Any) -> TailraceError:
    causes = list(_causes(raised))
    names = [str(cause.getClass().getSimpleName()) for cause in causes]
    # The first cause names the operation, the last one the reason.
    lines = dict.fromkeys(_first_line(cause) for cause in (causes[0], causes[-1]))
    message = f"{what}: {names[0]}: {': '.join(filter(None, lines))}"
    for cause, name in zip(causes, names, strict=True):
        if hint := _refusal(cause, name):
            return SinkRefused(message, hint)
    if "CommitStateUnknownException" in names:
        return SinkError(message, "retrying after checking whether it was committed")
    if any(name in _CONFLICT for name in names):
        return SinkError(message, "another writer changed the table; retrying on its current state")
    return SinkError(message, "retrying automatically; check that the catalog is reachable")


def _refusal(cause: Any, name: str) -> str | None:
    """The hint for a failure that a retry cannot fix; None for others."""
    match name:
        case "PSQLException" if _REFUSED_STATES.fullmatch(str(cause.getSQLState())):
            return "check the catalog's database, user, catalog_password and privileges"
        case "NoSuchBucketException":
            return "create the bucket, or correct `warehouse`"
        case "S3Exception" if cause.statusCode() in (401, 403):
            return _CREDENTIALS
        case "SdkClientException" if "Unable to load credentials" in _first_line(cause):
            return "set access_key_id and secret_access_key in the sink's options or in the environment"
    return _CREDENTIALS if name in _REFUSED else None


def _causes(raised: Any) -> Iterator[Any]:
    while raised is not None:
        yield raised
        raised = raised.getCause()


def _first_line(raised: Any) -> str:
    return str(raised.getMessage() or "").partition("\n")[0]
