"""`tailrace deadletter`: lists, shows and replays the changes that destinations rejected."""

from __future__ import annotations

import json

import click

from tailrace.change import Position
from tailrace.cli import Invocation
from tailrace.cli.sink_choice import configured_sinks, find_sink
from tailrace.delivery import dead_letters
from tailrace.errors import ConfigError
from tailrace.log.reader import LogReader
from tailrace.log.terminal import printable
from tailrace.settings import Settings
from tailrace.store import Store


class _PositionParameter(click.ParamType[Position]):
    name = "POSITION"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Position:  # noqa: ARG002
        return Position.parse(str(value))


@click.group("deadletter", short_help="List, show and replay changes that destinations rejected.")
def command() -> None:
    """List, show and replay dead letters: changes that a destination rejected for good.

    A sink with on_poison = "dead_letter" stores such a change and continues with the next one.
    """


@command.command("list", short_help="List dead letters.")
@click.argument("sink", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, without the change's values.")
@click.pass_obj
def list_(invocation: Invocation, sink: str | None, as_json: bool) -> None:
    """List the dead letters of SINK, or of all sinks."""
    layout = "{:<16}  {:<20}  {:<9}  {:<30}  {:<20}  {:<9}  {}"
    count = 0
    for letter in dead_letters.load_all(_store(invocation.settings("store")), sink):
        if as_json:
            click.echo(json.dumps(letter.summary, ensure_ascii=False))
            continue
        if not count:
            click.echo(layout.format("SINK", "POSITION", "OPERATION", "TABLE", "SINCE", "REPLAY", "REASON"))
        count += 1
        operation, since = str(letter.change["operation"]), letter.recorded_at[:19] or "-"
        replay = "requested" if letter.is_replay_requested else "-"
        line = layout.format(
            letter.sink, str(letter.position), operation, letter.table or "-", since, replay, letter.reason
        )
        click.echo(printable(line))
    if not count and not as_json:
        click.echo(f"sink {sink} has no dead letters" if sink else "there are no dead letters")


@command.command("show", short_help="Print a dead letter with the change's values.")
@click.argument("sink")
@click.argument("position", type=_PositionParameter())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def show(invocation: Invocation, sink: str, position: Position, as_json: bool) -> None:
    """Print the dead letter of SINK at POSITION, with the values of the change."""
    letter = dead_letters.find(_store(invocation.settings("store")), sink, position)
    if as_json:
        click.echo(json.dumps(letter.summary | {"change": letter.change}, ensure_ascii=False))
        return
    click.echo(printable(f"{letter.position}  {letter.change['operation']}  {letter.table}".rstrip()))
    click.echo(printable(f"reason: {letter.reason}"))
    click.echo(f"since: {letter.recorded_at or 'unknown'}")
    if letter.is_replay_requested:
        click.echo("a replay is requested")
    for line in json.dumps(letter.change, ensure_ascii=False, indent=2).splitlines():
        click.echo(printable(line))


@command.command("replay", short_help="Deliver dead letters again.")
@click.argument("sink")
@click.argument("positions", type=_PositionParameter(), nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Replay all dead letters of the sink.")
@click.pass_obj
def replay(invocation: Invocation, sink: str, positions: tuple[Position, ...], is_all: bool) -> None:
    """Deliver dead letters of SINK again, once the destination would accept them.

    The sink does so within seconds, wherever it runs, or when it is started. Messages of replayed changes follow those
    of later changes. A sink that keeps tables loads the tables again. A change that is rejected again stays a dead
    letter.
    """
    settings = invocation.settings("store")
    if is_all == bool(positions):
        raise ConfigError("name the positions to replay, or use --all", f"`tailrace deadletter list {sink}`")
    configured = find_sink(configured_sinks(settings), sink)
    store = _store(settings)
    letters = (
        list(dead_letters.load_all(store, sink)) if is_all else [dead_letters.find(store, sink, p) for p in positions]
    )
    dead_letters.check_replayable(configured, LogReader(store), letters)
    for letter in letters:
        dead_letters.request_replay(store, letter)
    noun = "dead letter" if len(letters) == 1 else "dead letters"
    click.echo(f"sink {sink} replays {len(letters):,} {noun} within seconds, or when it is started")


def _store(settings: Settings) -> Store:
    return Store.open(settings.store.url, settings.store.options)
