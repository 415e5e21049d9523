"""Progress in the store, for destinations that cannot hold it: `cursors/<sink>/progress.json`."""

from __future__ import annotations

from typing import Final

from tailrace.errors import CorruptError
from tailrace.log.retention import CURSORS
from tailrace.sinks.messages.progress import Progress
from tailrace.store import Store

_KEY: Final = "progress.json"


def load(store: Store, sink: str) -> Progress | None:
    """Return the stored progress; None if the sink never stored one."""
    key = f"{CURSORS}/{sink}/{_KEY}"
    data = store.get(key)
    if data is None:
        return None
    try:
        return Progress.from_json(data)
    except ValueError as error:
        raise CorruptError(
            f"{store.url}: {key} is not the progress of sink {sink}",
            "remove it: the sink then repeats the step that was under way",
        ) from error


def save(store: Store, sink: str, progress: Progress) -> None:
    """Durable when it returns."""
    store.replace(f"{CURSORS}/{sink}/{_KEY}", progress.to_json().encode())
