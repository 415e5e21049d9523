"""The database through SlateDB's binding: its manifest, checkpoints, and scans of a checkpoint.

The binding comes with `pip install 'tailrace[slatedb]'`. It is asynchronous; each call here waits for its result.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError, SourceError, SourceRefused, TailraceError
from tailrace.settings.slatedb import SlateDbSettings

if TYPE_CHECKING:
    from types import ModuleType

T = TypeVar("T")

_LIFETIME_MS: Final = 3_600_000
"""If capture dies during a scan, the database keeps the checkpoint's files no longer than this."""
_REFRESH_S: Final = 300.0
_SCAN_ROWS: Final = 4096
_READ_AHEAD_BYTES: Final = 4 << 20
_CONCURRENT_READS: Final = 64
_TIMEOUT_S: Final = 60.0
"""The binding repeats a request for ever if the store refuses or does not answer it."""

_NAME: Final = "tailrace"
_FOLLOWER: Final = f"{_NAME} after "
"""A checkpoint's name, followed by the id of the one that it replaces. A process that was killed leaves both."""

MergeOperator = Callable[[bytes, bytes | None, bytes], bytes]
"""Returns the new value, from key, existing value or None, and operand."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The state of the database that its manifest records."""

    next_wal_id: int
    """All WAL files below this id were known to the writer."""
    replay_after_wal_id: int
    """Everything in the WAL up to this file is in sorted tables."""
    last_l0_seq: int
    """Sorted tables hold everything up to this sequence number, and nothing after it."""


@dataclass(frozen=True, slots=True)
class DatabaseCheckpoint:
    """A state of the database that is kept until the checkpoint is deleted or expires."""

    id: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """Some rows of a scan, in the order of their keys."""

    keys: list[bytes]
    values: list[bytes]
    expire_ts: list[int | None]


class SlateDatabase:
    """A database that somebody else writes."""

    def __init__(self, settings: SlateDbSettings, merge_operator: MergeOperator | None = None) -> None:
        self._settings = settings
        self._merge_operator = merge_operator
        self._uniffi = _binding()

    def newest(self) -> Manifest:
        """The newest manifest. Raises SourceRefused if there is no database."""
        return self._run(self._read_manifest(None))

    def newest_first(self) -> Iterator[Manifest]:
        """All manifests that garbage collection left. Each takes a request, so stop early."""
        id = self._run(self._newest_id())
        while (found := self._run(self._admin().read_manifest(id))) is not None:
            yield _manifest(found)
            id -= 1

    def create_checkpoint(
        self,
        lifetime_ms: int = _LIFETIME_MS,
        source: DatabaseCheckpoint | None = None,
        follows: str | None = None,
    ) -> DatabaseCheckpoint:
        """Create a checkpoint: of the newest state, or of the same state as another checkpoint.

        `follows` is the id of the checkpoint that it will replace.
        """
        return self._run(self._create_checkpoint(lifetime_ms, source, follows))

    def find_checkpoint(self, id: str) -> DatabaseCheckpoint | None:
        """None if it does not exist, because it was deleted or has expired."""
        return self._run(self._find_checkpoint(id))

    def related_checkpoints(self, id: str) -> set[str]:
        """The ids of the checkpoints that still exist of those that one followed, and of those that follow it."""
        return _related(id, self._run(self._names()))

    def refresh_checkpoint(self, checkpoint: DatabaseCheckpoint, lifetime_ms: int) -> None:
        self._run(self._admin().refresh_checkpoint(checkpoint.id, lifetime_ms))

    def delete_checkpoint(self, id: str) -> None:
        self._run(self._admin().delete_checkpoint(id))

    def scan(self, checkpoint: DatabaseCheckpoint) -> Iterator[ScannedRows]:
        """All rows with a sequence number up to the checkpoint's `last_l0_seq`, without those that are expired."""
        loop = asyncio.new_event_loop()
        rows = self._scan(checkpoint)
        try:
            while True:
                with self._errors():
                    found = loop.run_until_complete(asyncio.wait_for(anext(rows, None), _TIMEOUT_S))
                if found is None:
                    return
                yield found
        finally:
            loop.run_until_complete(rows.aclose())
            loop.close()

    async def _read_manifest(self, id: int | None) -> Manifest:
        found = await self._admin().read_manifest(id)
        if found is None:
            raise SourceRefused(
                f"{self._settings.url} has no SlateDB database", "correct [source] url, or create the database"
            )
        return _manifest(found)

    async def _newest_id(self) -> int:
        found = await self._admin().read_manifest(None)
        return 0 if found is None else found.id

    async def _create_checkpoint(
        self, lifetime_ms: int, source: DatabaseCheckpoint | None, follows: str | None
    ) -> DatabaseCheckpoint:
        await self._read_manifest(None)
        options = self._uniffi.CheckpointOptions(
            lifetime_ms=lifetime_ms,
            source=None if source is None else source.id,
            name=_NAME if follows is None else f"{_FOLLOWER}{follows}",
        )
        created = await self._admin().create_detached_checkpoint(options)
        return DatabaseCheckpoint(created.id, await self._read_manifest(created.manifest_id))

    async def _find_checkpoint(self, id: str) -> DatabaseCheckpoint | None:
        await self._read_manifest(None)
        for found in await self._admin().list_checkpoints(None):
            if found.id == id:
                return DatabaseCheckpoint(id, await self._read_manifest(found.manifest_id))
        return None

    async def _names(self) -> dict[str, str | None]:
        """The names of the database's checkpoints, by their ids."""
        return {found.id: found.name for found in await self._admin().list_checkpoints(None)}

    def open_checkpoint(self, checkpoint: DatabaseCheckpoint) -> CheckpointReader:
        """Reads single rows of a checkpoint."""
        return CheckpointReader(self._uniffi, self._open_reader(checkpoint), self._errors)

    async def _open_reader(self, checkpoint: DatabaseCheckpoint) -> Any:
        uniffi = self._uniffi
        store, path = self._store(self._settings.url)
        builder = uniffi.DbReaderBuilder(path, store)
        if self._settings.wal_url is not None:
            builder.with_wal_object_store(self._store(self._settings.wal_url)[0])
        if self._merge_operator is not None:
            builder.with_merge_operator(_adapter(uniffi, self._merge_operator))
        builder.with_db_cache_disabled()
        builder.with_reader_mode(uniffi.ReaderMode.CHECKPOINT(checkpoint.id))
        builder.with_options(
            uniffi.ReaderOptions(
                manifest_poll_interval_ms=_LIFETIME_MS,
                checkpoint_lifetime_ms=2 * _LIFETIME_MS,
                max_memtable_bytes=64 << 20,
                skip_wal_replay=True,
            )
        )
        return await builder.build()

    async def _scan(self, checkpoint: DatabaseCheckpoint) -> AsyncGenerator[ScannedRows]:
        uniffi = self._uniffi
        reader = await self._open_reader(checkpoint)
        try:
            everything = uniffi.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=True)
            options = uniffi.ScanOptions(
                durability_filter=uniffi.DurabilityLevel.MEMORY,
                dirty=False,
                read_ahead_bytes=_READ_AHEAD_BYTES,
                cache_blocks=False,
                max_fetch_tasks=4,
            )
            iterator = await reader.scan_with_options(everything, options)
            refreshed_at = time.monotonic()
            while found := await iterator.next_batch(_SCAN_ROWS):
                yield ScannedRows([r.key for r in found], [r.value for r in found], [r.expire_ts for r in found])
                if time.monotonic() - refreshed_at > _REFRESH_S:
                    await self._admin().refresh_checkpoint(checkpoint.id, _LIFETIME_MS)
                    refreshed_at = time.monotonic()
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.shutdown(), _TIMEOUT_S)

    def _admin(self) -> Any:
        store, path = self._store(self._settings.url)
        builder = self._uniffi.AdminBuilder(path, store)
        if self._settings.wal_url is not None:
            builder.with_wal_object_store(self._store(self._settings.wal_url)[0])
        return builder.build()

    def _store(self, url: str) -> tuple[Any, str]:
        """The binding's store, and the database's path there."""
        uniffi, parts = self._uniffi, urlsplit(url)
        path = unquote(parts.path).strip("/")
        if parts.scheme in ("", "file"):
            return uniffi.ObjectStore.resolve("file:///"), path
        kinds = uniffi.ObjectStoreType
        kind = {"s3": kinds.S3, "gs": kinds.GCS, "az": kinds.AZURE, "abfs": kinds.AZURE, "abfss": kinds.AZURE}
        if parts.scheme not in kind:
            raise ConfigError(
                f"SlateDB database {url}: unknown scheme {parts.scheme!r}", "use file://, s3://, gs:// or az://"
            )
        builder = uniffi.ObjectStoreBuilder.from_env(kind[parts.scheme])
        builder.with_url(f"{parts.scheme}://{parts.netloc}")
        options = dict(self._settings.options)
        if options.get("endpoint", "").startswith("http://"):
            options["allow_http"] = "true"
        for name, value in options.items():
            builder.with_config(name, value)
        return builder.build(), path

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._errors():
            return asyncio.run(asyncio.wait_for(work, _TIMEOUT_S))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise Tailrace's errors."""
        errors = self._uniffi.Error
        try:
            yield
        except TailraceError:
            raise
        except TimeoutError:
            raise SourceError(
                f"{self._settings.url}: SlateDB did not respond within {_TIMEOUT_S:.0f} s: the store is not "
                "reachable, or denies Tailrace the right to write a manifest",
                "retrying automatically; a checkpoint changes the database's manifest",
            ) from None
        except (errors.Unavailable, errors.Closed) as error:
            raise SourceError(
                f"SlateDB: {error}", "retrying automatically; check that the store is reachable"
            ) from error
        except self._uniffi.Error as error:
            text = str(error)
            hint = "check [source] url and the store's permissions: a snapshot creates a checkpoint in the database"
            if "merge operator" in text.lower():
                hint = 'the database has merges: set [source] merge_operator = "module:function"'
            raise SourceRefused(f"SlateDB: {text}", hint) from error


def _related(id: str, names: Mapping[str, str | None]) -> set[str]:
    followed = {one: name.removeprefix(_FOLLOWER) for one, name in names.items() if name and name.startswith(_FOLLOWER)}
    related, new = {id}, {id}
    while new:
        new = {followed[one] for one in new if one in followed} | {one for one in followed if followed[one] in new}
        new -= related
        related |= new
    return related & names.keys() - {id}


def _manifest(found: Any) -> Manifest:
    return Manifest(found.next_wal_sst_id, found.replay_after_wal_id, found.last_l0_seq)


class CheckpointReader:
    """Reads single rows of a checkpoint. Only one thread uses it."""

    def __init__(
        self,
        uniffi: ModuleType,
        opened: Coroutine[Any, Any, Any],
        errors: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._errors = errors
        self._loop = asyncio.new_event_loop()
        self._options = uniffi.ReadOptions(
            durability_filter=uniffi.DurabilityLevel.MEMORY, dirty=False, cache_blocks=False
        )
        with errors():
            self._reader = self._loop.run_until_complete(asyncio.wait_for(opened, _TIMEOUT_S))

    def get(self, keys: list[bytes]) -> list[tuple[bytes, int | None] | None]:
        """For each key, its value and expiry; None if there is no row."""
        with self._errors():
            return self._loop.run_until_complete(self._get(keys))

    def close(self) -> None:
        with self._errors():
            self._loop.run_until_complete(asyncio.wait_for(self._reader.shutdown(), _TIMEOUT_S))
        self._loop.close()

    async def _get(self, keys: list[bytes]) -> list[tuple[bytes, int | None] | None]:
        found: list[tuple[bytes, int | None] | None] = []
        for start in range(0, len(keys), _CONCURRENT_READS):
            part = keys[start : start + _CONCURRENT_READS]
            reads = (self._reader.get_key_value_with_options(key, self._options) for key in part)
            rows = await asyncio.wait_for(asyncio.gather(*reads), _TIMEOUT_S)
            found += [None if row is None else (row.value, row.expire_ts) for row in rows]
        return found


def shown_key(key: bytes) -> str:
    """A key as messages print it."""
    text = key.decode("ascii", errors="replace")
    shown = text if text.isprintable() and "\ufffd" not in text else f"\\x{key.hex()}"
    return shown if len(shown) <= 100 else f"{shown[:100]}…"


def _adapter(uniffi: ModuleType, merge: MergeOperator) -> Any:
    class Adapter(uniffi.MergeOperator):  # type: ignore[misc, name-defined]
        def merge(self, key: bytes, existing_value: bytes | None, operand: bytes) -> bytes:
            try:
                merged = merge(key, existing_value, operand)
            except Exception as error:  # whatever the operator raises; its text may have values
                raise uniffi.MergeOperatorCallbackError.Failed(f"it raised {type(error).__name__}") from error
            if not isinstance(merged, bytes):
                raise uniffi.MergeOperatorCallbackError.Failed(f"it returned {type(merged).__name__}, not bytes")
            return merged

    return Adapter()


def _binding() -> ModuleType:
    try:
        from slatedb import uniffi
    except ImportError:
        raise ConfigError("SlateDB's binding is not installed", "run pip install 'tailrace[slatedb]'") from None
    return uniffi  # type: ignore[no-any-return]
