"""`tailrace log`: list, print, verify, compact and trim the log."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from tailrace.change import Position, Relation
from tailrace.cli import Invocation, reporting
from tailrace.errors import ConfigError, CorruptError
from tailrace.log.compaction import OLDER_THAN, compact
from tailrace.log.listing import LogObject, listed
from tailrace.log.reader import LogReader
from tailrace.log.rendering import iso, moment, to_json, to_line
from tailrace.log.retention import Limits, retain
from tailrace.log.segment import Header
from tailrace.log.verify import Tally, verify
from tailrace.settings import Settings
from tailrace.settings.pattern import TablePattern
from tailrace.store import Store

# Where there is no terminal: often enough to see that it lives.
_PLAIN_SECONDS = 30.0


class _Bound(click.ParamType[Position | datetime]):
    name = "LSN|POSITION|TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Position | datetime:
        text = str(value)
        if "/" in text:
            return Position.parse(text)
        try:
            return moment(text)
        except ValueError:
            self.fail(f"{text!r} is neither an LSN (0/1A2B), a position (0/1A2B:3) nor an ISO time", param, ctx)


def _with_store(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the store and the settings: from `--store`, else from the file and the environment."""

    @click.option("--store", "url", metavar="URL", help="The log's store; [store] url where it is not given.")
    @click.pass_obj
    @functools.wraps(function)
    def wrapped(invocation: Invocation, /, url: str | None, **options: Any) -> None:
        settings = invocation.lake_settings() if url else invocation.audit_settings("store")
        function(Store.open(url or settings.store.url, settings.store.options), settings, **options)

    return wrapped


@click.group("log", short_help="List, print, verify and compact the log.")
def command() -> None:
    """List, print, verify and compact the log."""


@command.command("ls")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@_with_store
def ls(store: Store, settings: Settings, as_json: bool) -> None:  # noqa: ARG001
    """List the log's objects: a segment each, or several after compaction.

    Flags: merged, idle (no rows), open (ends inside a transaction), void (the one before it left open is void), gap
    (changes before it were lost), damaged.
    """
    reader = LogReader(store)
    layout = "{:>11}  {:>10}  {:>9}  {:<20}  {:<20}  {:<20}  {:<20}  {}"
    names = ("SEGMENTS", "ROWS", "SIZE", "FIRST", "LAST", "FROM", "TO", "FLAGS")
    if not as_json:
        click.echo(layout.format(*names))
    for o in listed(store):
        told = _described(reader, o)
        if as_json:
            click.echo(json.dumps(told))
            continue
        ids = str(o.first) if o.first == o.last else f"{o.first}-{o.last}"
        times = [(told[f"{end}_committed_at"] or "-")[:19] for end in ("first", "last")]
        size, flags = reporting.size(told["bytes"]), " ".join(told["flags"])
        rows = "-" if told["rows"] is None else f"{told['rows']:,}"
        click.echo(layout.format(ids, rows, size, told["first"] or "-", told["last"] or "-", *times, flags).rstrip())


def _described(reader: LogReader, o: LogObject) -> dict[str, Any]:
    flags = ["merged"] if "-" in o.key else []
    headers: list[Header] = []
    try:
        found = [reader.get(id).metadata() for id in range(o.first, o.last + 1)]
        headers = [header for header in found if header is not None]
    except CorruptError:
        flags.append("damaged")
    rows = sum(h.rows for h in headers)
    if headers:
        flags += ["idle"] if not rows else []
        flags += ["open"] if not headers[-1].ends_at_commit else []
        flags += ["void"] if any(h.voids_tail for h in headers) else []
        flags += ["gap"] if any(h.gap_from is not None for h in headers) else []
    firsts, lasts = [h.first for h in headers if h.first], [h.last for h in headers if h.last]
    times = [t for h in headers for t in (h.first_committed_at_us, h.last_committed_at_us) if t is not None]
    return {
        "object": o.key,
        "first_id": o.first,
        "last_id": o.last,
        "rows": rows if headers else None,
        "bytes": o.info.size,
        "payload_bytes": sum(h.payload_bytes for h in headers) if headers else None,
        "first": str(firsts[0]) if firsts else None,
        "last": str(lasts[-1]) if lasts else None,
        "end_lsn": str(headers[-1].end_lsn) if headers else None,
        "first_committed_at": _time(min(times)) if times else None,
        "last_committed_at": _time(max(times)) if times else None,
        "flags": flags,
    }


def _time(micros: int) -> str:
    return iso(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros))


@command.command("cat")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--from", "start", type=_Bound(), help="Changes at or after this.")
@click.option("--to", "end", type=_Bound(), help="Changes before this.")
@click.option("--table", "patterns", multiple=True, metavar="SCHEMA.TABLE", help="Only these tables; * and ? are wild.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what arrives.")
@_with_store
def cat(
    store: Store,
    settings: Settings,  # noqa: ARG001
    as_json: bool,
    start: Position | datetime | None,
    end: Position | datetime | None,
    patterns: tuple[str, ...],
    follow: bool,
) -> None:
    """Print changes in commit order, one a line.

    A time without a zone is UTC, and means the time of the commit.
    """
    wanted = [TablePattern.parse(text) for text in patterns]

    def is_wanted(relation: Relation) -> bool:
        return any(pattern.matches(relation.schema, relation.name) for pattern in wanted)

    tables = is_wanted if wanted else None
    reader = LogReader(store)
    render = to_json if as_json else to_line
    changes = reader.follow(start, tables=tables) if follow else reader.changes(start, end, tables=tables)
    try:
        for change in changes:
            if follow and isinstance(end, Position) and change.position >= end:
                break
            if follow and isinstance(end, datetime) and change.committed_at >= end:
                continue
            sys.stdout.write(render(change) + "\n")
            if follow:
                sys.stdout.flush()
        # A pipe that the reader closed shows here at the latest.
        sys.stdout.flush()
    except KeyboardInterrupt:
        if not follow:
            raise
    except BrokenPipeError:
        # Nobody reads on. Not by way of Python's end: threads of libraries, in the middle of something, complain then.
        os._exit(0)


@command.command("verify")
@_with_store
def verify_(store: Store, settings: Settings) -> None:  # noqa: ARG001
    """Check every checksum, digest and link, the ids, and the order of all changes.

    Exits with 1 when something is wrong.
    """
    tally, found = Tally(), 0
    with _progress() as update:
        for finding in verify(store, tally, lambda t: update(_counted(t))):
            found += 1
            click.echo(str(finding))
    gaps = f", {tally.accepted_gaps} accepted gaps" if tally.accepted_gaps else ""
    gaps += f", {tally.left_out:,} changes of Tailrace's own tables left out" if tally.left_out else ""
    click.echo(f"{_counted(tally)}{gaps}; the chain ends with {tally.link}")
    click.echo(f"{found} findings" if found else "nothing is wrong")
    if found:
        raise SystemExit(1)


def _counted(tally: Tally) -> str:
    objects = f"{tally.objects:,} of {tally.objects_in_all:,} objects"
    return f"{objects}, {tally.segments:,} segments, {tally.rows:,} rows, {reporting.size(tally.bytes)}"


@command.command("compact")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=OLDER_THAN / timedelta(minutes=1),
    show_default=True,
    metavar="MINUTES",
    help="Leave younger segments alone.",
)
@_with_store
def compact_(store: Store, settings: Settings, older_than: float) -> None:  # noqa: ARG001
    """Merge small segments into larger objects; readers do not notice.

    The newest segment is never touched, and capture may run meanwhile.
    """
    with _progress() as update:
        result = compact(
            store,
            older_than=timedelta(minutes=older_than),
            progress=lambda r: update(f"{r.merged:,} objects merged into {r.written:,}"),
        )
    left = f", {result.left_over:,} left over from an interrupted run deleted" if result.left_over else ""
    click.echo(f"{result.merged:,} objects merged into {result.written:,}{left}")


@command.command("retain")
@click.option("--max-age-hours", type=click.FloatRange(min=0), help="Else [retention] max_age_hours.")
@click.option("--max-bytes", type=click.IntRange(min=0), help="Else [retention] max_bytes.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--force", is_flag=True, help="Also what sinks have not delivered yet: they will miss it.")
@_with_store
def retain_(
    store: Store, settings: Settings, max_age_hours: float | None, max_bytes: int | None, dry_run: bool, force: bool
) -> None:
    """Remove the oldest part of the log: never what a sink, or a bootstrap from a snapshot, still needs."""
    hours = max_age_hours if max_age_hours is not None else settings.retention.max_age_hours
    limit = max_bytes if max_bytes is not None else settings.retention.max_bytes
    if hours is None and limit is None:
        raise ConfigError("no limit is given, so everything is kept", "set [retention] max_age_hours or max_bytes")
    limits = Limits(timedelta(hours=hours) if hours is not None else None, limit)
    with _progress() as update:
        plan = retain(store, limits, force=force, dry_run=dry_run, progress=lambda o: update(f"removed {o.key}"))
    done = "would be removed" if dry_run else "removed"
    size = reporting.size(sum(o.info.size for o in plan.remove))
    ids = f": segments {plan.remove[0].first} to {plan.remove[-1].last}" if plan.remove else ""
    click.echo(f"{len(plan.remove):,} objects ({size}) {done}{ids}")
    if plan.kept_for:
        click.echo(f"more is kept for {plan.kept_for}")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A live line on a terminal; elsewhere a line now and then."""
    if sys.stderr.isatty():
        with reporting.status_line() as update:
            yield update
        return
    said_at = time.monotonic()

    def say(text: str) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _PLAIN_SECONDS:
            said_at = time.monotonic()
            click.echo(text, err=True)

    yield say
