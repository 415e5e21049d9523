"""The sink `iceberg`: tables of a lake, each committed at once, and a point that says which of them belong together.

A table's last snapshot says what it holds, so a step that was committed in part is finished without repeating anything:
changes that a table has already are left out for it.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from tailrace.change import Lsn
from tailrace.errors import FencedError
from tailrace.log import origin
from tailrace.log.decoding import TableChanges
from tailrace.sinks import Context
from tailrace.sinks.base import Parallel, Part, State, Step
from tailrace.sinks.gathering import gathered
from tailrace.sinks.iceberg import effect, point, properties
from tailrace.sinks.iceberg.catalog import Catalog
from tailrace.sinks.iceberg.datafile import Warehouse
from tailrace.sinks.iceberg.failure import classified
from tailrace.sinks.iceberg.fingerprint import Seed
from tailrace.sinks.iceberg.options import IcebergOptions
from tailrace.sinks.iceberg.point import Held, Kind, Point
from tailrace.sinks.iceberg.schema import Shape, fresh
from tailrace.sinks.iceberg.table import Lake, LakeTable, Staged, write
from tailrace.sinks.iceberg.tables import Tables, location, place
from tailrace.sinks.iceberg.upkeep import Upkeep
from tailrace.store import Store

_KINDS: Final[Mapping[str, tuple[Kind, ...]]] = {
    "mirror": ("mirror",),
    "changelog": ("changelog",),
    "both": ("mirror", "changelog"),
}
_HANDS: Final = 4
"""Tables that are opened or committed at the same time: most of it is waiting, for the catalog and the object store."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Known:
    """What is needed of a table to write data files for it, wherever that is done."""

    shape: Shape
    directory: str
    floor: Lsn = Lsn(0)  # noqa: RUF009 (an immutable value)
    """It holds all changes that commit below this: a step that did not end has come so far."""


class IcebergSink:
    Options: ClassVar[type] = IcebergOptions
    values: ClassVar[Literal["text", "typed"]] = "typed"
    parallel: ClassVar[Parallel] = Parallel.RANGES
    whole_transactions: ClassVar[bool] = False
    keeps_tables: ClassVar[bool] = True
    start: ClassVar[str] = "snapshot"
    interval_ms: ClassVar[int] = 1_000
    """Each step makes a snapshot of each table that changed, and a few small files: one a second is quick enough to
    look at, and few enough to look after."""

    def __init__(self, name: str, options: IcebergOptions, context: Context) -> None:
        options.check()
        self.name = name
        self._options = options
        self._context = context
        self._session: _Session | None = None
        self._kept: Warehouse | None = None
        self._generation = ""
        self._seed: Seed = (0, 0)
        self._known: Mapping[tuple[int, Kind], Known] = {}

    @property
    def packages(self) -> tuple[str, ...]:
        return properties.packages(self._options)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_session": None, "_kept": None, "_options": self._options.carried()}

    @property
    def _warehouse(self) -> Warehouse:
        if self._kept is None:
            self._kept = Warehouse(self._options)
        return self._kept

    def open(self) -> State:
        self.close()
        with classified(f"sink {self.name}"):
            found = point.load(self._warehouse.store, self.name)
            source = origin.load(Store.open(self._context.store.url, self._context.store.options))
            self._generation = found.lake if found else secrets.token_hex(4)
            # Nobody who writes rows may know which of them would be taken for each other.
            self._seed = secrets.randbits(64), secrets.randbits(64)
            catalog = Catalog(self._options)
            indexes = Path(tempfile.mkdtemp(prefix="tailrace-lake-"))
            lake = Lake(self.name, catalog, self._warehouse, self._seed, indexes)
            tables = Tables(lake, self._generation)
            hands = ThreadPoolExecutor(_HANDS, f"lake {self.name}")
            database = str(source["database"]) if source else ""
            self._session = _Session(lake, tables, Upkeep(lake, self._options), hands, database, found)
            tables.open(found.tables if found else (), hands)
            self._learn()
        if found is None:
            return State()
        return State(found.cursor, {t.oid: t.since for t in found.tables if t.since is not None})

    def pending(self) -> Step | None:
        return None

    def begin(self, step: Step) -> None:
        pass

    def stage(self, part: Part) -> tuple[tuple[Kind, Staged], ...]:
        loaded = {load.relation.oid for load in part.step.loads}
        found = [
            (kind, self._stage(run, kind, loaded, is_load=part.load is not None))
            for run in gathered(part.chunks)
            for kind in self._kinds()
        ]
        return tuple([(kind, staged) for kind, staged in found if staged is not None])

    def commit(self, step: Step, receipts: Sequence[tuple[tuple[Kind, Staged], ...]]) -> None:
        session = self._opened()
        staged = [one for receipt in receipts for one in receipt]
        with classified(f"sink {self.name}"):
            self._check_fence(session, step)
            for load in step.loads:
                for kind in self._kinds():
                    session.tables.begin_load(load, kind)
            for kind, one in staged:
                session.tables.ready(one, kind).apply(one)
            committed_at = self._committed_at(session.point, staged)
            last = {(one.effect.relation.oid, kind): one.effect.last for kind, one in staged}

            def finish(table: LakeTable) -> None:
                position = last.get((table.oid, table.kind), "")
                table.commit(Held(step.after.cursor or Lsn(0), position, committed_at, table.shape.relation.digest))

            # After a failure those under way still end, and `close` waits for them: what they commit is not done again.
            for _ in session.hands.map(finish, session.tables):
                pass
            session.tables.settle()
            self._publish(step.after, committed_at)
            self._learn()

    def rewind(self, state: State) -> None:
        session = self._opened()
        self._publish(state, session.point.committed_at if session.point else None)
        self._learn()

    def tend(self) -> None:
        session = self._opened()
        if session.point is None:
            return
        with classified(f"sink {self.name}: upkeep"):
            if session.upkeep.turn(session.tables):
                since = {table.oid: table.since for table in session.point.tables if table.since is not None}
                self._publish(State(session.point.cursor, since), session.point.committed_at)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.hands.shutdown()
            shutil.rmtree(session.lake.indexes, ignore_errors=True)
            session.lake.catalog.close()
        self._kept = None

    def _kinds(self) -> tuple[Kind, ...]:
        return _KINDS[self._options.mode]

    def _stage(self, run: TableChanges, kind: Kind, loaded: Container[int], *, is_load: bool) -> Staged | None:
        known = self._known.get((run.relation.oid, kind))
        # A mirror is loaded whatever it has; a changelog has told already what it has told.
        counts = kind == "changelog" or run.relation.oid not in loaded
        if known is not None and counts and (run.at.commit_lsn < known.floor).any():
            run = run.take(run.at.commit_lsn >= known.floor)
            if not len(run):
                return None
        found = effect.mirrored(run, self._seed, is_load=is_load) if kind == "mirror" else effect.told(run)
        has_special = any(content.special is not None for content in found.contents)
        nulls = tuple(dict.fromkeys(name for content in found.contents for name in content.nulls(run.relation)))
        moment = int(run.at.committed_at_us.max(initial=0))
        staged = Staged(replace(found, born=None), (), nulls, has_special, moment)
        if found.born is None:
            return staged
        shape, relation = self._foreseen(known, kind, staged), run.relation
        if known is None:
            directory = location(self._options.root, relation, place(run.target, kind), self._generation)
        else:
            directory = known.directory
        return replace(staged, files=(write(self._warehouse, directory, shape, found.born),))

    def _foreseen(self, known: Known | None, kind: Kind, staged: Staged) -> Shape:
        """The columns as they will be when this is committed, as far as can be told."""
        relation, special, nulls = staged.effect.relation, staged.has_special, staged.nulls
        if known is not None and known.shape.relation == relation:
            shape = known.shape
            if (shape.has_special or not special) and not (nulls and shape.key_is_required):
                return shape
        return fresh(relation, kind, with_special=special, nulls=nulls)

    def _check_fence(self, session: _Session, step: Step) -> None:
        found = point.load(session.lake.warehouse.store, self.name)
        if found != session.point or (found is not None and found.cursor != step.before.cursor):
            raise FencedError(
                f"sink {self.name} stands at {found.cursor if found else 'nothing'}, not at {step.before.cursor}, "
                "where this starts",
                "is another deliver running with a sink of this name?",
            )

    def _publish(self, state: State, committed_at: datetime | None) -> None:
        session = self._opened()
        assert state.cursor is not None
        tables = session.tables.point(state.tables)
        published = Point(
            self.name, state.cursor, committed_at, datetime.now(UTC), session.database, tables, self._generation
        )
        point.publish(session.lake.warehouse.store, published)
        session.point = published

    def _committed_at(self, before: Point | None, staged: Sequence[tuple[Kind, Staged]]) -> datetime | None:
        newest = max((one.committed_at_us for _, one in staged), default=0)
        moments = [before.committed_at] if before and before.committed_at else []
        if newest:
            moments.append(_EPOCH + timedelta(microseconds=newest))
        return max(moments, default=None)

    def _learn(self) -> None:
        """For the stages to come."""
        session = self._opened()
        cursor = session.point.cursor if session.point else Lsn(0)
        known = {}
        for table in session.tables:
            floor = table.held.cursor if table.held else Lsn(0)
            if table.kind == "mirror" and floor <= cursor:
                floor = Lsn(0)
            known[table.oid, table.kind] = Known(table.shape, table.directory, floor)
        self._known = known

    def _opened(self) -> _Session:
        assert self._session is not None, "open() comes first"
        return self._session


@dataclass
class _Session:
    lake: Lake
    tables: Tables
    upkeep: Upkeep
    hands: ThreadPoolExecutor
    database: str
    """The source's."""
    point: Point | None
