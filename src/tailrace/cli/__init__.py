"""The command line: one module per command, loaded only when that command runs."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tailrace.errors import ConfigError, TailraceError

if TYPE_CHECKING:
    from tailrace.settings import Settings

# One line per command: `tailrace.cli.<name>` holds it as `command`.
COMMANDS: Final = {
    "demo": "A shop on an embedded PostgreSQL, captured and replicated live.",
    "init": "Write a tailrace.toml that explains every setting.",
    "check": "Inspect the source, and print the SQL that mends it.",
    "run": "Capture and deliver, kept running, with HTTP.",
    "status": "Show source, log and sinks.",
    "capture": "Stream changes into the log.",
    "deliver": "Deliver the log to its sinks.",
    "query": "Serve the lake's tables over PostgreSQL's protocol.",
    "snapshot": "Copy tables as they are now, beside the stream.",
    "log": "List, print, verify and compact the log.",
    "audit": "Keep an audit trail, with Bemi's and Zemi's environment.",
    "bridge": "PostgreSQL to NATS, with the bridge's environment.",
    "history": "Print a row's life from the audit trail.",
    "revert": "Take changes back.",
}

DEFAULT_CONFIG: Final = Path("tailrace.toml")


@dataclass(frozen=True)
class Invocation:
    """What the group knows and a command needs: `@click.pass_obj` hands it over."""

    config: Path | None
    log_level: int = logging.INFO

    def settings(self, *requires: str) -> Settings:
        """Settings from file and environment; `requires` names the sections without whose url the command is lost."""
        return self._load(requires or ("source", "store"))

    def lake_settings(self) -> Settings:
        """For a command that knows neither source nor log."""
        return self._load(())

    def audit_settings(self, *requires: str) -> Settings:
        """For a command that looks at an audit trail, or its log: as `tailrace audit` has them, if none are given."""
        from tailrace.audit import environment

        given = [os.environ.get(f"TAILRACE_{section.upper()}_URL") for section in requires or ("source",)]
        is_configured = self.config or DEFAULT_CONFIG.exists() or all(given)
        if not is_configured and environment.is_given(os.environ):
            return environment.read(os.environ).settings
        return self._load(requires or ("source", "store"))

    def child(self, *arguments: str) -> list[str]:
        """How another process runs a command with the same settings."""
        config = ["--config", str(self.config)] if self.config is not None else []
        return [sys.executable, "-m", "tailrace", *config, *arguments]

    def _load(self, requires: tuple[str, ...]) -> Settings:
        from tailrace.settings import load

        path = self.config or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)
        return load(path, os.environ, requires)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tailrace.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TailraceError as error:
            click.echo(f"error: {error}", err=True)
            if error.hint:
                click.echo(f"hint: {error.hint}", err=True)
            ctx.exit(2 if isinstance(error, ConfigError) else 1)


@click.group(cls=_Commands)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="TAILRACE_CONFIG",
    help="Settings; tailrace.toml where there is one. TAILRACE_<SECTION>_<KEY> overrides it.",
)
@click.version_option(package_name="tailrace", prog_name="tailrace")
@click.pass_context
def main(ctx: click.Context, config: Path | None) -> None:
    """PostgreSQL's write-ahead log as a durable change log on an object store."""
    ctx.obj = Invocation(config)
