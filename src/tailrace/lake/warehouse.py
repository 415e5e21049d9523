"""The warehouse: the store that holds a lake's tables, addressed by Iceberg's locations."""

from __future__ import annotations

from typing import Any, Final

from tailrace.errors import SinkDiverged, SinkError
from tailrace.lake.options import IcebergOptions
from tailrace.store import Store

MOVED: Final = "move the table back, or drop it from the catalog and run `tailrace sink rewind … snapshot`"
"""The hint for a table whose location is not below the warehouse's."""


def store_key(root: str, location: str) -> str | None:
    """The key of an Iceberg location in the store whose root it is; None if it is not below the root."""
    path = location.removeprefix("file://").removeprefix("file:") if root.startswith("/") else location
    return path.removeprefix(f"{root}/").lstrip("/") if path.startswith(f"{root}/") else None


class Warehouse:
    """Reads and writes files by their Iceberg locations."""

    def __init__(self, options: IcebergOptions) -> None:
        self.root = options.root
        self.is_remote = options.is_remote
        self.store = Store.open(options.warehouse, options.options)

    def put(self, location: str, content: bytes) -> None:
        """Durable when it returns."""
        self.store.replace(self._key(location), content)

    def get(self, location: str) -> bytes:
        content = self.store.get(self._key(location))
        if content is None:
            raise _missing(location)
        return content

    def get_range(self, location: str, start: int, length: int) -> bytes:
        content = self.store.get_range(self._key(location), start, length)
        if content is None:
            raise _missing(location)
        return content

    def open(self, location: str) -> Any:
        """A file that can be read in parts."""
        try:
            return self.store.source(self._key(location))
        except FileNotFoundError:
            raise _missing(location) from None

    def _key(self, location: str) -> str:
        key = store_key(self.root, location)
        if key is None:
            raise SinkDiverged(f"{location} is not in the warehouse {self.root}", MOVED)
        return key


def _missing(location: str) -> SinkError:
    return SinkError(
        f"{location} is missing, although the table's metadata names it", "restore it; retrying automatically"
    )
