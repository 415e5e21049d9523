"""The demo's SlateDB database: shopping carts, captured into a log of their own. Needs SlateDB's binding."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from pathlib import Path
from typing import Any, Final

from slatedb import uniffi
from tailrace import settings
from tailrace.capture.slatedb.session import SlateDbSession
from tailrace.cli.demo.demo_capture import DemoCapture
from tailrace.log.reader import LogReader
from tailrace.settings.slatedb import SlateDbSettings, ValueSettings
from tailrace.state import table_state
from tailrace.store import Store

_CARTS: Final = 50
_PAUSE_S: Final = 0.02

Rows = dict[bytes, bytes]


def add_item(key: bytes, existing: bytes | None, operand: bytes) -> bytes:  # noqa: ARG001
    """The database's merge operator: adds the numbers of an operand to a cart."""
    cart = json.loads(existing) if existing else {"items": 0, "cents": 0}
    return json.dumps({name: cart[name] + more for name, more in json.loads(operand).items()}).encode()


class _AddItem(uniffi.MergeOperator):  # type: ignore[misc]
    def merge(self, key: bytes, existing_value: bytes | None, operand: bytes) -> bytes:
        return add_item(key, existing_value, operand)


class DemoSlateDb:
    """Runs writer and capture until the context exits."""

    name: Final = "slatedb.carts"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.store = Store.open(str(directory / "carts-log"))
        self._source = SlateDbSettings(
            url=(directory / "carts").as_uri(),
            name="carts",
            merge_operator=f"{__name__}:{add_item.__name__}",
            value=ValueSettings("json", {"items": "int4", "cents": "int8"}),
        )
        self._chance = random.Random()  # noqa: S311
        self._stopping = threading.Event()
        self._capture: DemoCapture | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._write, name="carts", daemon=True)
        self.writes = 0
        self._error: BaseException | None = None

    def __enter__(self) -> DemoSlateDb:
        self._db = self._loop.run_until_complete(self._open())
        self._thread.start()
        configured = settings.Settings(store=settings.StoreSettings(url=self.store.url), slatedb=self._source)
        self._capture = DemoCapture(configured, self.store)
        self._capture.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_writing()
        if self._capture is not None:
            self._capture.__exit__()
        self._loop.run_until_complete(self._db.shutdown())
        self._loop.close()

    @property
    def command(self) -> str:
        """The command to see its changes from another terminal."""
        return f"tailrace log cat --follow --store {self.store.url}"

    @property
    def changes(self) -> int:
        """The number of changes in its log."""
        assert self._capture is not None
        return self._capture.capture.progress.changes

    def finish(self) -> tuple[Rows, Rows]:
        """Stop writing. Return the rows of a scan, and those of snapshot and log."""
        assert self._capture is not None
        self._stop_writing()
        self._loop.run_until_complete(self._db.flush())
        end, capture = SlateDbSession(self._source, self.store, None).current_lsn(), self._capture
        capture.wait(lambda: capture.capture.durable_lsn >= end and capture.has_snapshots)
        return self._loop.run_until_complete(self._scan()), self._rows_from_log()

    def _stop_writing(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            while not self._stopping.wait(_PAUSE_S):
                self._loop.run_until_complete(self._write_one())
                self.writes += 1
        except Exception as error:
            self._error = error

    async def _write_one(self) -> None:
        """A customer adds to a cart, empties it, or leaves."""
        key = f"cart-{self._chance.randrange(_CARTS)}".encode()
        match self._chance.randrange(10):
            case 0:
                await self._db.delete(key)
            case 1:
                await self._db.put(key, b'{"items": 0, "cents": 0}')
            case _:
                operand = {"items": self._chance.randrange(1, 4), "cents": self._chance.randrange(100, 10_000)}
                await self._db.merge(key, json.dumps(operand).encode())

    async def _open(self) -> Any:
        path = str(self._directory / "carts").strip("/")
        builder = uniffi.DbBuilder(path, uniffi.ObjectStore.resolve("file:///"))
        chosen = uniffi.Settings.default()
        chosen.set("flush_interval", '"20ms"')
        builder.with_settings(chosen)
        builder.with_merge_operator(_AddItem())
        return await builder.build()

    async def _scan(self) -> Rows:
        everything = uniffi.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=True)
        rows = await self._db.scan(everything)
        found: Rows = {}
        while batch := await rows.next_batch(1000):
            found |= {row.key: row.value for row in batch}
        return found

    def _rows_from_log(self) -> Rows:
        reader = LogReader(self.store)
        state = table_state.find(reader, "slatedb", self._source.name)
        found: Rows = {}
        for images in table_state.rows(state, reader, 0, 1):
            batch = images.batch
            found |= dict(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
        return found
