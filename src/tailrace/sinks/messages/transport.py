"""Transports: how messages reach a kind of destination, and the transports that a process keeps between tasks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from tailrace.errors import TailraceError
from tailrace.sinks.messages.progress import Progress

Content = TypeVar("Content", contravariant=True)
"""What is published: `OutgoingMessages`, or what a sink makes of changes instead."""


class Transport(Protocol[Content]):
    """A connection of one sink to its destination. One thread uses it at a time."""

    def progress(self) -> Progress | None:
        """Return how far the destination is; None if it does not know. No other process may publish for the sink
        afterwards, where the destination can prevent that."""

    def publish(self, messages: Content, after: Progress) -> None:
        """Publish messages in their order. When it returns, they are durable and `progress` returns `after`.

        A destination that cannot do both at once stores the progress last: after a crash in between, the messages are
        published again, with the same ids.

        Raises a PoisonError for messages that the destination can never accept, and a SinkError if a retry may help.
        After any error the transport is closed and not used again: which messages have arrived is not known.
        """

    def close(self) -> None: ...


@dataclass(frozen=True)
class KeptTransport:
    """A transport that a process keeps for the next task: to connect takes longer than a small step."""

    transport: Transport[Any]
    id: str
    step: Hashable
    """The step that it was last used in."""


_kept: dict[str, KeptTransport] = {}


@contextmanager
def kept_transport(
    key: str, connect: Callable[[], Transport[Any]], step: Hashable, last_id: str
) -> Iterator[KeptTransport]:
    """Yield this process's transport of a sink, and keep it. After an error it is closed.

    Spark's tasks run in any of several processes. A transport that another process has superseded does not know what
    that one has published, so it is replaced.

    Args:
        key: Identifies the sink and its options.
        connect: Makes a transport.
        step: Identifies the step.
        last_id: The transport that published the previous step.
    """
    kept = _kept.pop(key, None)
    if kept is not None and kept.id != last_id and kept.step != step:
        _close(kept)
        kept = None
    kept = KeptTransport(connect(), uuid4().hex, step) if kept is None else replace(kept, step=step)
    try:
        yield kept
    except BaseException:
        _close(kept)
        raise
    _kept[key] = kept


def close_kept_transport(key: str) -> None:
    """Close this process's transport of a sink, if there is one."""
    if (kept := _kept.pop(key, None)) is not None:
        _close(kept)


def _close(kept: KeptTransport) -> None:
    with suppress(TailraceError, OSError):  # it is not used again, and may be broken
        kept.transport.close()
