"""Error classes for errors of the server: retry, or ask the operator."""

from __future__ import annotations

from typing import Final

from tailrace.errors import SinkError, SinkRefused, TailraceError

RECONNECTING: Final = "Reconnecting automatically."
_TEMPORARY: Final = {
    "OOM": "The server has no memory left: raise `maxmemory`, or remove keys. Retrying.",
    "READONLY": "The server is a replica. Retrying, in case it is promoted; else correct `url`.",
    "LOADING": "The server loads its data. Retrying.",
    "BUSY": "The server runs a script. Retrying.",
    "MISCONF": "The server cannot write to its disk. Retrying.",
    "NOREPLICAS": "The server has too few replicas. Retrying.",
    "MASTERDOWN": "The server has lost its primary. Retrying.",
    "CLUSTERDOWN": "The cluster is down. Retrying.",
    "TRYAGAIN": "Retrying.",
    "UNBLOCKED": "The server's role changed. Retrying.",
}
_REFUSED: Final = {
    "NOAUTH": "Set user and password.",
    "WRONGPASS": "Check user and password.",
    "NOPERM": "`tailrace check` says which right is missing.",
    "MOVED": "Use a server that is not part of a cluster.",
    "CROSSSLOT": "Use a server that is not part of a cluster.",
}


class ServerError(Exception):
    """An answer of the server that is an error."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


def as_sink_error(error: ServerError, action: str) -> TailraceError:
    """Return the error to raise for an answer of the server. Arguments, which may be values, are not quoted."""
    text = f"{action}: {error.code}" if error.code in (_TEMPORARY | _REFUSED) else f"{action}: {_cut(str(error))}"
    if error.code in _TEMPORARY:
        return SinkError(text, _TEMPORARY[error.code])
    return SinkRefused(text, _REFUSED.get(error.code, "`tailrace check` may say more."))


def _cut(text: str) -> str:
    """An error about an unknown command quotes its arguments, which follow the first comma."""
    return text.partition(",")[0]
