"""One sink, step by step: what it is given next, from where, and how it begins. Knows the log and the sink, not Spark.

Who calls it says how errands are carried out: in this process, or in Spark's executors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from tailrace import settings
from tailrace.change import Lsn
from tailrace.errors import GapError, PoisonError, SnapshotError
from tailrace.log import origin, plan
from tailrace.log.decoding import Admission
from tailrace.log.plan import Batch, Offset
from tailrace.log.snapshot import Snapshot, SnapshotReader
from tailrace.log.trim import Trim
from tailrace.settings.pattern import TablePattern
from tailrace.sinks import Configured
from tailrace.sinks.aside import SetAside
from tailrace.sinks.base import REWIND, Helped, Load, NotesGaps, Parallel, State, Step
from tailrace.sinks.cursor import mirror, mirrored
from tailrace.sinks.errand import Errand, Rows, Staff, Staged, in_this_process, reader
from tailrace.sinks.shaping import Shaping
from tailrace.store import Store

_log = logging.getLogger("tailrace.deliver")

SMALL_BYTES: Final = 4 * 1024 * 1024
"""Of payloads: decoded in less time than Spark takes to start a job (0.45 s); larger ones go to the executors."""

# A write to the store that nobody waits for; retention looks once a minute.
_MIRROR_SECONDS: Final = 5.0


class Stepper:
    """Not for several threads at once."""

    def __init__(
        self,
        configured: Configured,
        store: settings.Store,
        staff: Staff = in_this_process,
        hands: Callable[[], int] = lambda: 1,
    ) -> None:
        self.sink = configured.sink
        self.common = configured.common
        self._begins = configured.common.start or configured.sink.start
        self.state = State()
        self.changes = 0
        self.steps = 0
        self._settings = store
        self._store = Store.open(store.url, store.options)
        self._reader = reader(store)
        self._snapshots = SnapshotReader(self._store)
        self._shaping = Shaping(configured.common)
        self._knows_source = False
        self._told: set[int] = set()
        self._staff = staff
        self._hands = hands
        if isinstance(self.sink, Helped):
            self.sink.engage(staff, hands)
        self._offset: Offset | None = None
        self._recalled: Lsn | None = None
        self._aside = SetAside(self._reader, self.common.name)
        self._mirrored_at = float("-inf")

    @property
    def cursor(self) -> Lsn | None:
        return self._recalled if self.state.cursor is None else self.state.cursor

    def _cursor(self) -> Lsn:
        assert self.state.cursor is not None, "open() comes first"
        return self.state.cursor

    @property
    def set_aside(self) -> int:
        return len(self._aside.positions)

    def open(self) -> None:
        """Where the sink stands: from its destination, with what was begun there brought to its end."""
        self.sink.close()
        source = origin.load(self._store)
        self._knows_source = source is not None
        self.state = self.sink.open()
        self._offset = None
        self._aside.load()
        self._shaping = Shaping(self.common, str(source["database"]) if source else "")
        if (pending := self.sink.pending()) is not None:
            self._redo(pending)
        if self.state.cursor is None:
            self._first_state()
        self._check_beginning()
        self._mirror(at_once=True)

    def _check_beginning(self) -> None:
        """That the log goes back to where the sink stands: what was in another one, before it, is not in this."""
        begins_at, cursor = plan.beginning(self._reader), self._cursor()
        if not 0 < cursor < begins_at:
            return
        if not isinstance(self.sink, NotesGaps):
            raise GapError(
                f"sink {self.common.name} stands at {cursor}, and the log begins at {begins_at}: "
                "what happened between them is in neither",
                "is it the right store? " + REWIND.format(self.common.name),
            )
        self._pass_gap(cursor, begins_at)

    def _pass_gap(self, lost_from: Lsn, end: Lsn) -> None:
        assert isinstance(self.sink, NotesGaps)
        after = replace(self.state, cursor=end)
        _log.warning(
            "sink %s: what happened between %s and %s is lost: the log does not have it",
            *(self.common.name, lost_from, end),
        )
        self.sink.note_gap(self.state, after, lost_from)
        self.state, self._offset = after, None

    def _know_source(self) -> None:
        """Opened before there was a log, a sink learns only now whose it is."""
        if not self._knows_source and origin.load(self._store) is not None:
            self.open()

    def recall(self) -> None:
        """Where it stood when it ran last, as long as the destination cannot be asked: to tell how far behind it is."""
        if self.state.cursor is None:
            self._recalled = mirrored(self._store, self.common.name)

    def close(self) -> None:
        self._mirror(at_once=True)
        self.sink.close()

    def rewind(self, where: str) -> None:
        """`snapshot`, an LSN or a time: what is delivered next. A sink that keeps tables loads them anew."""
        self.state = self.sink.open()
        place = None if where == "snapshot" else self._lsn(where, "--rewind")
        if where == "snapshot" or self.sink.keeps_tables:
            found = self._usable(before=place)
            if not found:
                raise SnapshotError(
                    f"sink {self.common.name}: there is no snapshot" + (f" at or before {place}" if place else ""),
                    "take one with `tailrace snapshot`, or rewind to a later place",
                )
            after = State(min(s.lsn for s in found), {})
        else:
            assert place is not None
            after = State(place, dict.fromkeys(self.state.tables, Lsn(0)))
        plan.begin(self._reader, after.cursor)  # raises where the log no longer has it
        self.sink.rewind(after)
        self.state, self._offset = after, None
        self._mirror(at_once=True)

    def reload(self, patterns: Sequence[str]) -> int:
        """Load some tables anew, from their newest snapshots, while the others stay as they are; how many there are."""
        wanted = [TablePattern.parse(pattern) for pattern in patterns]
        found = [
            s
            for s in self._usable()
            if s.relation.oid in self.state.tables
            and any(pattern.matches(s.relation.schema, s.relation.name) for pattern in wanted)
        ]
        if found:
            gone = {s.relation.oid for s in found}
            after = replace(self.state, tables={oid: at for oid, at in self.state.tables.items() if oid not in gone})
            self.sink.rewind(after)
            self.state = after
            self.load_missing()
        return len(found)

    def offset(self) -> Offset:
        """Where in the log the sink's cursor is."""
        if self._offset is None or self._offset.lsn != self.cursor:
            self._offset = plan.begin(self._reader, self.cursor, across_gaps=isinstance(self.sink, NotesGaps))
        return self._offset

    def backlog(self) -> Batch:
        """The next that there is to deliver, if there is anything: its first transactions."""
        return self._following(plan.Limits(1, 1))

    def ahead(self) -> Batch:
        """As much of it as makes a step."""
        return self._following()

    def _following(self, limits: plan.Limits | None = None) -> Batch:
        """Up to a gap, if there is one; then past it, if the sink can go on from there."""
        while True:
            try:
                return plan.following(self._reader, self.offset(), limits, up_to_gap=True)
            except GapError:
                gap = plan.gap_at(self._reader, self.offset()) if isinstance(self.sink, NotesGaps) else None
                if gap is None or gap.gap_from is None:
                    raise
                self._pass_gap(gap.gap_from, gap.end_lsn)

    def log_end(self) -> Offset:
        """The place after everything that is in the log now."""
        return plan.latest(self._reader)

    def oldest_undelivered_us(self) -> int | None:
        """When the first change was committed that is not delivered; None when there is none."""
        slices = self.backlog().slices
        header = self._reader.awaited_header(slices[0].segment) if slices else None
        return header.first_committed_at_us if header else None

    def load_missing(self) -> int:
        """Load the tables that have a snapshot and that the destination does not have; how many there were."""
        if self._begins != "snapshot":
            return 0
        self._know_source()
        missing = self._due(self._usable())
        # Until the log has all below the cursor, it cannot tell what happened to a table between there and here.
        if missing and min(s.lsn for s in missing) < self._cursor() and plan.latest(self._reader).lsn < self._cursor():
            return 0
        for snapshot in missing:
            self._load(snapshot)
        return len(missing)

    def deliver(self, end: Offset) -> None:
        """Everything from the cursor up to a place in the log, as one step."""
        self._know_source()
        start = self.offset()
        if end.lsn <= start.lsn or end.segment <= start.segment:
            return  # a repetition of what the destination has already
        batch = plan.between(self._reader, start, end)
        after = replace(self.state, cursor=end.lsn)
        if not batch.slices:
            self._commit(Step(self.state, after, start, end, 0), [])
            return
        parts = self._parts(batch)
        step = Step(self.state, after, start, end, len(parts))
        self.sink.begin(step)
        staged = self._run(step, [], parts)
        if any(s.has_marker for s in staged):
            self.load_missing()
        if self._begins == "snapshot":
            self._tell_who_waits(batch)

    def _parts(self, batch: Batch, count: int | None = None) -> list[tuple[plan.Slice, ...]]:
        whole = self.sink.whole_transactions or self.sink.parallel is Parallel.KEYS
        if count is None:
            # Twice as many as there are hands, so that one that is slow does not hold up the others for long.
            count = 1 if batch.bytes <= SMALL_BYTES else 2 * self._hands()
        parts = batch.parts(count, whole_transactions=whole)
        # There may be fewer than asked for; asked for that many, when the step is repeated, they must be the same.
        while len(parts) < count:
            count = len(parts)
            parts = batch.parts(count, whole_transactions=whole)
        return parts

    def _run(
        self,
        step: Step,
        loading: Sequence[Errand],
        parts: Sequence[tuple[plan.Slice, ...]],
        admission: Admission | None = None,
    ) -> list[Staged]:
        """Stage, then commit. A change that is poison is set aside, if that is wanted, and the rest tried again."""
        if admission is None:
            admission = Admission(step.start.lsn, step.before.tables, self._begins != "snapshot")
        while True:
            errands = list(loading) + [
                Errand(
                    self.sink, self._shaping, self._settings, step, n, part, admission, without=self._aside.positions
                )
                for n, part in enumerate(parts)
            ]
            try:
                staged = list(self._hand_out(errands))
                self._commit(step, staged)
                return staged
            except PoisonError as error:
                if self.common.on_poison != "set_aside" or not error.positions:
                    raise
                self._aside.put(error)

    def _hand_out(self, errands: Sequence[Errand]) -> Sequence[Staged]:
        size = sum(sum(s.bytes for s in e.slices) + (e.rows.chunk.bytes if e.rows else 0) for e in errands)
        if size <= SMALL_BYTES:
            return in_this_process(errands, self.sink.parallel)
        return self._staff(errands, self.sink.parallel)

    def _commit(self, step: Step, staged: Sequence[Staged]) -> None:
        self.sink.commit(step, [s.receipt for s in staged])
        self.state, self._offset = step.after, step.end if step.end.lsn == step.after.cursor else None
        self.changes += sum(s.changes for s in staged)
        self.steps += 1
        self._mirror()

    def _redo(self, step: Step) -> None:
        """Exactly as it was begun, so that it overwrites what it may have left."""
        if step.before.cursor != self.state.cursor:
            return  # it was committed; only the note of it is left
        _log.info(
            "sink %s: a step up to %s was begun and not finished: it is done again", self.common.name, step.end.lsn
        )
        batch = plan.between(self._reader, step.start, step.end)
        self._run(step, [], self._parts(batch, step.parts))

    def _first_state(self) -> None:
        if self._begins == "snapshot":
            found = self._usable()
            begin = plan.begin(self._reader, None)
            after = State(min((s.lsn for s in found), default=begin.lsn), {})
        else:
            after = State(self._lsn(self._begins, f"sink {self.common.name}: start"), {})
        self.sink.rewind(after)
        self.state = after

    def _lsn(self, text: str, option: str) -> Lsn:
        lsn = plan.parse_place(self._reader, text, option)
        return plan.begin(self._reader, None).lsn if lsn is None else lsn

    def _due(self, usable: Sequence[Snapshot]) -> list[Snapshot]:
        """Those the destination does not have. Tables that share a place there, being dropped and made again at the
        source, come one after the other: the next when the sink has passed its snapshot, and never an earlier again."""
        at: dict[object, list[Snapshot]] = {}
        for snapshot in usable:
            at.setdefault(self._target(snapshot), []).append(snapshot)
        found = []
        for snapshot in sorted(usable, key=lambda s: s.lsn):
            others = at[self._target(snapshot)]
            has_later = any(o.lsn > snapshot.lsn and o.relation.oid in self.state.tables for o in others)
            is_early = snapshot.lsn > self._cursor() and any(o.lsn < snapshot.lsn for o in others)
            if snapshot.relation.oid not in self.state.tables and not has_later and not is_early:
                found.append(snapshot)
        return found

    def _usable(self, before: Lsn | None = None) -> list[Snapshot]:
        """Each table's newest snapshot that the log reaches back to, of tables that go to this sink."""
        since = max(origin.begins_at(self._store), _trimmed_to(self._store))
        found = self._snapshots.newest_of_each(since, before)
        return [snapshot for snapshot in found if self._shaping.load(snapshot.relation) is not None]

    def _target(self, snapshot: Snapshot) -> tuple[str, str] | None:
        shaped = self._shaping.load(snapshot.relation)
        return shaped[1] if shaped is not None else None

    def _load(self, snapshot: Snapshot) -> None:
        """A table's rows, and what happened to it since if the sink is further already, in one step."""
        shaped = self._shaping.load(snapshot.relation)
        assert shaped is not None
        relation, target = shaped
        load = Load(relation, target, snapshot.id, snapshot.lsn)
        oid = snapshot.relation.oid
        cursor = self._cursor()
        end = start = self.offset()
        if snapshot.lsn < cursor:
            start = plan.begin(self._reader, snapshot.lsn)
            # The cursor may stand inside a segment: what commits at or above it there is not in this step.
            end = plan.after(self._reader, start, cursor)
        batch = plan.between(self._reader, start, end)
        after = replace(self.state, tables={**self.state.tables, oid: snapshot.lsn})
        parts = self._parts(batch)
        step = Step(self.state, after, start, end, len(parts), (load,))
        _log.info(
            "sink %s: loading %s, %s rows as of %s",
            self.common.name,
            relation.qualified_name,
            f"{snapshot.rows:,}",
            snapshot.lsn,
        )
        admission = Admission(snapshot.lsn, {oid: snapshot.lsn}, others=False, messages=False, end=cursor)
        self._run(step, list(self._loading(step, load, snapshot)), parts, admission)

    def _loading(self, step: Step, load: Load, snapshot: Snapshot) -> Iterator[Errand]:
        first = 0
        bare = replace(snapshot, store=None)
        for number, chunk in enumerate(snapshot.manifest):
            rows = Rows(bare, chunk, first, load)
            yield Errand(self.sink, self._shaping, self._settings, step, number, rows=rows)
            first += chunk.rows

    def _tell_who_waits(self, batch: Batch) -> None:
        """A table whose changes are in the log but that has no snapshot: somebody may wonder where it is."""
        for s in batch.slices:
            for _, relation in self._reader.relations(s.segment):
                if relation.oid in self.state.tables or relation.oid in self._told:
                    continue
                self._told.add(relation.oid)
                if self._shaping.load(relation) is not None:
                    _log.warning(
                        "sink %s: %s waits for its snapshot; unless capture is about to take it, "
                        "`tailrace snapshot %s` does",
                        self.common.name,
                        relation.qualified_name,
                        relation.qualified_name,
                    )

    def _mirror(self, *, at_once: bool = False) -> None:
        """For retention, which asks the store alone, and seldom."""
        now = time.monotonic()
        if self.state.cursor is not None and (at_once or now - self._mirrored_at >= _MIRROR_SECONDS):
            mirror(self._store, self.common.name, self.state.cursor)
            self._mirrored_at = now


def _trimmed_to(store: Store) -> Lsn:
    trim = Trim.load(store)
    return trim.end.commit_lsn if trim else Lsn(0)
