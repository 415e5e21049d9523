"""`tables.json`: the tables that capture has seen in the source, by oid, so that it knows which ones are new."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from tailrace import stored_json
from tailrace.errors import CorruptError
from tailrace.store import Store

KEY: Final = "tables.json"


def save(store: Store, oids: Iterable[int]) -> None:
    store.replace(KEY, json.dumps({"seen": sorted(oids)}).encode())


def load(store: Store) -> frozenset[int] | None:
    """The oids; None before capture looked for the first time."""
    data = store.get(KEY)
    if data is None:
        return None
    try:
        return frozenset(int(oid) for oid in stored_json.parse(data)["seen"])
    except stored_json.ERRORS as error:
        raise CorruptError(f"{KEY} is not a file that capture wrote", "remove it: capture writes it again") from error
