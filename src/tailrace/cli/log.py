"""`tailrace log`: lists, prints, verifies, compacts and trims the log."""

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
from tailrace.cli import Invocation, output
from tailrace.errors import ConfigError, CorruptError
from tailrace.log.change_text import to_json, to_line
from tailrace.log.compaction import OLDER_THAN, compact
from tailrace.log.listing import LogObject, list_objects
from tailrace.log.reader import LogReader
from tailrace.log.retention import RetentionLimits, retain
from tailrace.log.segment import Header
from tailrace.log.timestamp import format_timestamp, parse_timestamp
from tailrace.log.verify import VerificationTotals, verify
from tailrace.settings import Settings
from tailrace.settings.pattern import TablePattern
from tailrace.store import Store

# Without a terminal, progress is printed this often.
_PLAIN_SECONDS = 30.0


class _BoundParameter(click.ParamType[Position | datetime]):
    name = "LSN|POSITION|TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Position | datetime:
        text = str(value)
        if "/" in text:
            return Position.parse(text)
        try:
            return parse_timestamp(text)
        except ValueError:
            self.fail(f"{text!r} is neither an LSN (0/1A2B), a position (0/1A2B:3) nor an ISO time", param, ctx)


def _with_store(function: Callable[..., None]) -> Callable[..., None]:
    """Pass the store and the settings to a command. `--store` overrides the settings file and the environment."""

    @click.option("--store", "url", metavar="URL", help="Store of the log. Default: [store] url.")
    @click.pass_obj
    @functools.wraps(function)
    def wrapped(invocation: Invocation, /, url: str | None, **options: Any) -> None:
        settings = invocation.lake_settings() if url else invocation.audit_settings("store")
        function(Store.open(url or settings.store.url, settings.store.options), settings, **options)

    return wrapped


@click.group("log", short_help="List, print, verify, compact and trim the log.")
def command() -> None:
    """List, print, verify, compact and trim the log."""


@command.command("ls", short_help="List the objects of the log.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@_with_store
def ls(store: Store, settings: Settings, as_json: bool) -> None:  # noqa: ARG001
    """List the objects of the log. An object holds one segment, or several after compaction.

    Flags: merged (several segments), idle (no rows), open (ends inside a transaction), void (the open transaction of
    the previous segment is void), gap (changes before it were lost), damaged.
    """
    reader = LogReader(store)
    layout = "{:>11}  {:>10}  {:>9}  {:<20}  {:<20}  {:<20}  {:<20}  {}"
    names = ("SEGMENTS", "ROWS", "SIZE", "FIRST", "LAST", "FROM", "TO", "FLAGS")
    if not as_json:
        click.echo(layout.format(*names))
    for o in list_objects(store):
        row = _describe(reader, o)
        if as_json:
            click.echo(json.dumps(row))
            continue
        ids = str(o.first) if o.first == o.last else f"{o.first}-{o.last}"
        times = [(row[f"{end}_committed_at"] or "-")[:19] for end in ("first", "last")]
        size, flags = output.size(row["bytes"]), " ".join(row["flags"])
        rows = "-" if row["rows"] is None else f"{row['rows']:,}"
        click.echo(layout.format(ids, rows, size, row["first"] or "-", row["last"] or "-", *times, flags).rstrip())


def _describe(reader: LogReader, o: LogObject) -> dict[str, Any]:
    flags = ["merged"] if "-" in o.key else []
    headers: list[Header] = []
    try:
        metadata = [reader.get(id).metadata() for id in range(o.first, o.last + 1)]
        headers = [header for header in metadata if header is not None]
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
    return format_timestamp(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros))


@command.command("cat", short_help="Print changes in commit order.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--from", "start", type=_BoundParameter(), help="Print changes at or after this.")
@click.option("--to", "end", type=_BoundParameter(), help="Print changes before this.")
@click.option(
    "--table",
    "patterns",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Print only these tables; * and ? are wildcards. May be repeated.",
)
@click.option("--follow", "-f", is_flag=True, help="Wait for new changes and print them.")
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
    """Print changes in commit order, one per line.

    Times refer to the commit. A time without a zone is UTC.
    """
    wanted = [TablePattern.parse(text) for text in patterns]

    def is_wanted(relation: Relation) -> bool:
        return any(pattern.matches(relation.schema, relation.name) for pattern in wanted)

    tables = is_wanted if wanted else None
    reader = LogReader(store)
    render = to_json if as_json else functools.partial(to_line, shows_xid=True)
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
        # Flush here, so that a closed pipe is noticed inside the try block.
        sys.stdout.flush()
    except KeyboardInterrupt:
        if not follow:
            raise
    except BrokenPipeError:
        # The reader closed the pipe. Skip Python's shutdown, in which busy threads of libraries would print errors.
        os._exit(0)


@command.command("verify", short_help="Verify checksums, the hash chain and the order of changes.")
@_with_store
def verify_(store: Store, settings: Settings) -> None:  # noqa: ARG001
    """Verify every checksum, digest and link of the hash chain, the segment ids, and the order of all changes.

    Prints the findings and exits with 1 if there are any.
    """
    tally, findings = VerificationTotals(), 0
    with _progress() as update:
        for finding in verify(store, tally, lambda t: update(_summary(t))):
            findings += 1
            click.echo(str(finding))
    gaps = f", {tally.accepted_gaps} accepted gaps" if tally.accepted_gaps else ""
    gaps += f", {tally.left_out:,} changes of Tailrace's own tables left out" if tally.left_out else ""
    click.echo(f"{_summary(tally)}{gaps}; the hash chain ends with {tally.link}")
    click.echo(f"{findings} findings" if findings else "no findings")
    if findings:
        raise SystemExit(1)


def _summary(tally: VerificationTotals) -> str:
    objects = f"{tally.objects:,} of {tally.objects_total:,} objects"
    return f"{objects}, {tally.segments:,} segments, {tally.rows:,} rows, {output.size(tally.bytes)}"


@command.command("compact", short_help="Merge small segments into larger objects.")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=OLDER_THAN / timedelta(minutes=1),
    show_default=True,
    metavar="MINUTES",
    help="Merge only segments that are older than this.",
)
@_with_store
def compact_(store: Store, settings: Settings, older_than: float) -> None:  # noqa: ARG001
    """Merge small segments into larger objects.

    Readers and capture can run at the same time. The newest segment is never merged.
    """
    with _progress() as update:
        result = compact(
            store,
            older_than=timedelta(minutes=older_than),
            progress=lambda r: update(f"{r.merged:,} objects merged into {r.written:,}"),
        )
    left = f", deleted {result.leftovers:,} objects left by an interrupted run" if result.leftovers else ""
    click.echo(f"{result.merged:,} objects merged into {result.written:,}{left}")


@command.command("retain", short_help="Remove the oldest part of the log.")
@click.option("--max-age-hours", type=click.FloatRange(min=0), help="Default: [retention] max_age_hours.")
@click.option("--max-bytes", type=click.IntRange(min=0), help="Default: [retention] max_bytes.")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option(
    "--force", is_flag=True, help="Also remove changes that sinks have not delivered yet: they will miss them."
)
@_with_store
def retain_(
    store: Store, settings: Settings, max_age_hours: float | None, max_bytes: int | None, dry_run: bool, force: bool
) -> None:
    """Remove the oldest part of the log, beyond the given limits.

    Changes that a sink still has to deliver are retained, unless --force is given. Changes that are needed to start
    from a snapshot are always retained.
    """
    hours = max_age_hours if max_age_hours is not None else settings.retention.max_age_hours
    limit = max_bytes if max_bytes is not None else settings.retention.max_bytes
    if hours is None and limit is None:
        raise ConfigError("no limit is given, so everything is retained", "set [retention] max_age_hours or max_bytes")
    limits = RetentionLimits(timedelta(hours=hours) if hours is not None else None, limit)
    with _progress() as update:
        plan = retain(store, limits, force=force, dry_run=dry_run, progress=lambda o: update(f"removed {o.key}"))
    done = "would be removed" if dry_run else "removed"
    size = output.size(sum(o.info.size for o in plan.remove))
    ids = f": segments {plan.remove[0].first} to {plan.remove[-1].last}" if plan.remove else ""
    click.echo(f"{len(plan.remove):,} objects ({size}) {done}{ids}")
    if plan.retained_for:
        click.echo(f"more is retained for {plan.retained_for}")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show progress until the context exits: a live line on a terminal, else a line on stderr every 30 seconds."""
    if sys.stderr.isatty():
        with output.live_line() as update:
            yield update
        return
    printed_at = time.monotonic()

    def update_line(text: str) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at >= _PLAIN_SECONDS:
            printed_at = time.monotonic()
            click.echo(text, err=True)

    yield update_line
