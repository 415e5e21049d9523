"""A session with a SlateDB database: whether the log continues where it ends, and the WAL from there on."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Protocol

from tailrace.capture.slatedb.database import DatabaseCheckpoint, Manifest, MergeOperator, SlateDatabase
from tailrace.capture.slatedb.merge_resolver import MergeResolver
from tailrace.capture.slatedb.relation import relation_of
from tailrace.capture.slatedb.wal_converter import ResumeToken, WalConverter
from tailrace.capture.slatedb.wal_stream import NEW_STORE, WalStream, gap_error
from tailrace.change import Lsn
from tailrace.errors import ConfigError, GapError, SourceRefused, TailraceError, WrongSource
from tailrace.log import source_record
from tailrace.log.reader import LogReader
from tailrace.log.segment import SourceIdentity
from tailrace.log.writer import LogWriter
from tailrace.settings import Settings
from tailrace.settings.slatedb import SlateDbSettings
from tailrace.slatedb.wal_reader import WalReader
from tailrace.store import Store

_log = logging.getLogger("tailrace.capture")

KIND: Final = "slatedb"
NO_WAL: Final = "has no WAL file: the WAL is switched off, or it is in a store of its own"
NO_WAL_HINT: Final = "set wal_enabled in the writer's settings, or [source] wal_url"


class CheckpointSnapshots(Protocol):
    """What a session requires of the component that takes snapshots."""

    def begin(self, checkpoint: DatabaseCheckpoint | None, since: Lsn) -> None:
        """Called before the stream starts.

        `checkpoint` is where the log was just started. Snapshots from before `since` do not count, because the log does
        not reach back to them.
        """


def open_database(settings: SlateDbSettings) -> SlateDatabase:
    return SlateDatabase(settings, merge_operator(settings))


def open_wal(settings: SlateDbSettings) -> WalReader:
    return WalReader("", settings.wal_url or settings.url, settings.options)


def identity(settings: SlateDbSettings) -> SourceIdentity:
    return SourceIdentity(settings.url, 0, settings.name, "", "", KIND)


def merge_operator(settings: SlateDbSettings) -> MergeOperator | None:
    if settings.merge_operator is None:
        return None
    module, _, name = settings.merge_operator.partition(":")
    try:
        found: MergeOperator = getattr(importlib.import_module(module), name)
    except Exception as error:  # an import runs the module's code
        raise ConfigError(
            f"[source] merge_operator {settings.merge_operator!r} cannot be imported: {type(error).__name__}: {error}",
            "write module:function, and put the module on PYTHONPATH",
        ) from error
    if not callable(found):
        raise ConfigError(
            f"[source] merge_operator {settings.merge_operator!r} is not a function, but {type(found).__name__}",
            "name a function of key, existing value or None, and operand that returns the new value",
        )
    return found


class SlateDbSource:
    """Fulfils `Source`."""

    def __init__(self, settings: Settings, store: Store, snapshots: CheckpointSnapshots | None) -> None:
        assert settings.slatedb is not None
        self._settings = settings.slatedb
        self._store = store
        self._snapshots = snapshots
        self.error: TailraceError | None = None

    def close(self) -> None:
        """Nothing runs beside the sessions."""

    @contextlib.contextmanager
    def connect(self, stopping: threading.Event) -> Iterator[SlateDbSession]:  # noqa: ARG002 (nothing waits)
        session = SlateDbSession(self._settings, self._store, self._snapshots)
        try:
            yield session
        finally:
            session.close()


class SlateDbSession:
    """Fulfils `SourceSession`."""

    def __init__(self, settings: SlateDbSettings, store: Store, snapshots: CheckpointSnapshots | None) -> None:
        self._settings = settings
        self._store = store
        self._snapshots = snapshots
        self._database = open_database(settings)
        self._wal = open_wal(settings)
        self._resolver: MergeResolver | None = None

    def close(self) -> None:
        if self._resolver is not None:
            self._resolver.close()

    def identify(self) -> SourceIdentity:
        return identity(self._settings)

    def current_lsn(self) -> Lsn:
        """The position after the last entry of the WAL."""
        for file in reversed(self._wal.list()):
            rows = file.rows()
            if rows is not None and len(rows):
                return Lsn(rows["seq"][-1].as_py() + 1)
        return Lsn(self._database.newest().last_l0_seq + 1)

    def begin(self, writer: LogWriter, *, accept_gap: bool) -> None:
        if writer.last_source is not None:
            _check_identity(writer.source, writer.last_source)
        if writer.is_empty and not self._wal.list():
            self._database.newest()  # raises if there is no database at all
            raise SourceRefused(f"slatedb.{self._settings.name} {NO_WAL}", NO_WAL_HINT)
        checkpoint = self._begin_at_checkpoint(writer) if writer.is_empty else self._continue(writer, accept_gap)
        if self._snapshots is not None:
            self._snapshots.begin(checkpoint, source_record.begins_at(self._store))

    def converter(self, writer: LogWriter) -> WalConverter:
        return WalConverter(self._settings, writer.end_lsn, self._resolver)

    def stream(self, writer: LogWriter) -> WalStream:
        assert writer.resume is not None
        return WalStream(
            self._wal, ResumeToken.parse(writer.resume), writer.end_lsn - 1, self._database, self._resolver
        )

    def _begin_at_checkpoint(self, writer: LogWriter) -> DatabaseCheckpoint:
        """Start the log, or continue it after a gap, at the boundary of a checkpoint: all before it is in its scan."""
        checkpoint = self._database.create_checkpoint()
        manifest = checkpoint.manifest
        lsn = Lsn(manifest.last_l0_seq + 1)
        if lsn <= writer.end_lsn and not writer.is_empty:
            raise GapError(
                f"the database's sorted tables end at sequence number {manifest.last_l0_seq}, but the log has changes "
                f"up to {writer.end_lsn - 1}, so a snapshot does not replace the lost files",
                f"run this again once the database has flushed what is in memory; {NEW_STORE}",
            )
        token = ResumeToken(manifest.replay_after_wal_id)
        if self._settings.merge_operator is not None:
            # One of its own, because the snapshot deletes its checkpoint.
            follows = None if writer.resume is None else ResumeToken.parse(writer.resume).checkpoint
            base = self._database.create_checkpoint(source=checkpoint, follows=follows)
            self._resolver = self._resolver_at(base, lsn)
            token = replace(token, checkpoint=base.id)
        source_record.begin(self._store, writer, lsn, token.to_text())
        _log.info("the log begins at %s, after WAL file %d", lsn, token.wal_id)
        return checkpoint

    def _continue(self, writer: LogWriter, accept_gap: bool) -> DatabaseCheckpoint | None:
        """Check that the WAL continues where the log ends. Returns a checkpoint if the log begins again after a gap."""
        assert writer.resume is not None
        token = ResumeToken.parse(writer.resume)
        lost = self._lost_files(token)
        if lost is None:
            if accept_gap and self._is_bypassed(token, writer):
                return self._begin_at_checkpoint(writer)
            return self._prepare_merges(writer, token, accept_gap)
        if lacks_nothing(self._database.newest(), lost, writer.end_lsn):
            _log.info("WAL files %d to %d are gone; the log has all their entries", lost[0], lost[-1])
            skipped = replace(token, wal_id=lost[-1], sha256=None)
            writer.append_idle(skipped.to_text())
            return self._prepare_merges(writer, skipped, accept_gap)
        if not accept_gap:
            raise gap_error(lost)
        return self._begin_at_checkpoint(writer)

    def _prepare_merges(self, writer: LogWriter, token: ResumeToken, accept_gap: bool) -> DatabaseCheckpoint | None:
        """Find the checkpoint that merges are resolved from. Returns one if the log begins again because none fits."""
        if self._settings.merge_operator is None:
            return None
        base = None if token.checkpoint is None else self._database.find_checkpoint(token.checkpoint)
        if base is None:
            base = self._database.create_checkpoint(follows=token.checkpoint)
            if base.manifest.last_l0_seq >= writer.end_lsn:
                self._database.delete_checkpoint(base.id)
                if accept_gap:
                    return self._begin_at_checkpoint(writer)
                raise GapError(
                    f"merges after {writer.end_lsn} cannot be resolved: the log names no checkpoint of the database "
                    "that still exists, and its sorted tables hold later writes",
                    "to continue with a new snapshot: tailrace capture --accept-gap",
                )
        self._resolver = self._resolver_at(base, writer.end_lsn)
        self._resolver.load(LogReader(self._store), writer.end_lsn)
        return None

    def _resolver_at(self, base: DatabaseCheckpoint, end: Lsn) -> MergeResolver:
        operator = merge_operator(self._settings)
        assert operator is not None
        assert self._settings.merge_operator is not None
        name, relation = self._settings.merge_operator, relation_of(self._settings)
        return MergeResolver(self._database, operator, name, relation, base, end)

    def _is_bypassed(self, token: ResumeToken, writer: LogWriter) -> bool:
        """Whether sorted tables hold writes that the WAL after the token does not have. Reads it to its end."""
        try:
            stream = WalStream(self._wal, token, writer.end_lsn - 1, self._database)
            while stream.receive().portions:
                pass
            stream.check_end()
        except GapError:
            return True
        stream.close(Lsn(0), Lsn(0))
        return False

    def _lost_files(self, token: ResumeToken) -> range | None:
        """The files after the token's that are gone. Raises WrongSource if the token's file is another one now."""
        content = self._wal.get(token.wal_id).content() if token.sha256 is not None else None
        if content is not None and hashlib.sha256(content.data).hexdigest() != token.sha256:
            raise WrongSource(
                f"WAL file {token.wal_id} is not the one that the log was captured from: this is another database",
                NEW_STORE,
            )
        if content is None and token.sha256 is not None and self._wal.gap(token.wal_id + 1) is None:
            # Then the manifest must know the file.
            next_id = self._database.newest().next_wal_id
            if next_id <= token.wal_id:
                raise WrongSource(
                    f"the log was captured up to WAL file {token.wal_id}, but the database has none from {next_id} on: "
                    "this is another database",
                    NEW_STORE,
                )
        return lost_files(self._wal, self._database, token)


def lost_files(wal: WalReader, database: SlateDatabase, token: ResumeToken) -> range | None:
    """The files after the token's that are gone; None if there are none."""
    next_id = token.wal_id + 1
    if (gap := wal.gap(next_id)) is not None:
        return gap
    # If no file follows, the manifest says whether there was one.
    end = database.newest().next_wal_id
    return range(next_id, end) if end > next_id and wal.get(next_id).metadata() is None else None


def lacks_nothing(manifest: Manifest, lost: range, end: Lsn) -> bool:
    """Whether a log that ends at `end` has all entries of lost files, or they had none: openings of a database leave
    files without entries."""
    return lost[-1] <= manifest.replay_after_wal_id and manifest.last_l0_seq < end


def _check_identity(current: SourceIdentity, recorded: SourceIdentity) -> None:
    hint = "point [source] at the database that this log was captured from, or [store] at an empty location"
    if recorded.kind != current.kind:
        raise WrongSource(f"the log was captured from {recorded.kind}, this source is {current.kind}", hint)
    if recorded.system_id != current.system_id:
        raise WrongSource(f"the log was captured from {recorded.system_id}, this source is {current.system_id}", hint)
