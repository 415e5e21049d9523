"""The command line: one module per command, imported only when that command runs."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tailrace.cli.global_option import with_global_options
from tailrace.errors import ConfigError, TailraceError

if TYPE_CHECKING:
    from tailrace.settings import Settings, StoreSettings

# Names and summaries. The module `tailrace.cli.<name>` defines the command as `command`.
COMMANDS: Final = {
    "demo": "Capture and replicate a sample shop on embedded servers.",
    "init": "Write a tailrace.toml that explains every setting.",
    "check": "Check the source and the sinks, and print what fixes them.",
    "run": "Run capture and all sinks under a supervisor, with HTTP.",
    "status": "Show the status of the source, the log and the sinks.",
    "capture": "Stream changes from the source into the log.",
    "deliver": "Deliver changes from the log to the sinks.",
    "sink": "List, pause, resume, reload, rewind, forget and test sinks.",
    "verify": "Compare the rows of destinations with the source's, and repair them.",
    "deadletter": "List, show and replay changes that destinations rejected.",
    "query": "Serve the lake's tables over the PostgreSQL protocol.",
    "snapshot": "Take snapshots of tables while capture runs.",
    "archive": "Write the server's WAL to the store.",
    "backup": "Take, list, verify and expire base backups.",
    "restore": "Restore the server to any moment.",
    "standby": "Run a standby that is fed from the store or by the server.",
    "drill": "Restore a random moment, and prove that it is right.",
    "log": "List, print, verify, compact and trim the log.",
    "audit": "Record an audit trail; replaces Bemi and Zemi.",
    "bridge": "Publish changes to NATS; replaces the PostgreSQL-to-NATS bridge.",
    "history": "Print changes from the audit trail: of a row, a table, or by transaction.",
    "revert": "Undo changes recorded in the audit trail.",
}

DEFAULT_CONFIG: Final = Path("tailrace.toml")


@dataclass(frozen=True)
class Invocation:
    """The global options. Commands receive it through `@click.pass_obj`."""

    config: Path | None = None
    log_level: int = logging.INFO
    log_format: str = "text"

    def settings(self, *requires: str) -> Settings:
        """Load settings from the file and the environment. `requires` names the sections whose `url` must be set."""
        return self._load(requires or ("source", "store"))

    def lake_settings(self) -> Settings:
        """Load settings for a command that needs neither a source nor a log."""
        return self._load(())

    def audit_settings(self, *requires: str) -> Settings:
        """Load settings for a command that reads an audit trail or its log.

        Without a settings file, the environment of `tailrace audit` is used, if it is set.
        """
        from tailrace.audit import bemi_environment

        urls = [os.environ.get(f"TAILRACE_{section.upper()}_URL") for section in requires or ("source",)]
        is_configured = self.config or DEFAULT_CONFIG.exists() or all(urls)
        if not is_configured and bemi_environment.is_given(os.environ):
            return bemi_environment.read(os.environ).settings
        return self._load(requires or ("source", "store"))

    def child_command(self, *arguments: str) -> list[str]:
        """Return the command line that runs a command with the same settings in a child process."""
        config = ["--config", str(self.config)] if self.config is not None else []
        return [*self._program(), *config, *arguments]

    def _program(self) -> list[str]:
        level = logging.getLevelName(self.log_level).lower()
        return [sys.executable, "-m", "tailrace", "--log-level", level, "--log-format", self.log_format]

    def start_logging(self) -> None:
        """Log to stderr, as the global options say."""
        from tailrace.cli import output

        output.log_to_stderr(self.log_level, self.log_format)

    def _load(self, requires: tuple[str, ...]) -> Settings:
        from tailrace.settings import load

        path = self.config or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)
        return load(path, os.environ, requires, _recorded_slot)


def _recorded_slot(store: StoreSettings) -> str | None:
    """The slot of an existing log: one that an earlier version began has another default."""
    from tailrace.log import source_record
    from tailrace.store import Store

    try:
        return source_record.slot(Store.open(store.url, store.options, must_exist=True))
    except TailraceError:
        return None  # the command meets it too, if it needs the store


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tailrace.cli.{cmd_name}").command
        return with_global_options(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _end_quietly(ctx)
        except TailraceError as error:
            from tailrace.cli import output

            output.show_error(error)
            ctx.exit(2 if isinstance(error, ConfigError) else 1)


def _end_quietly(ctx: click.Context) -> None:
    """Who reads the output, such as `head`, has had enough. Python would print an error when it flushes the rest."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (it stays open until the process ends)
    ctx.exit(0)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "obj": Invocation()})
@click.version_option(package_name="tailrace", prog_name="tailrace")
def main() -> None:
    """Capture changes from PostgreSQL into a durable log on an object store, and deliver them to any number of sinks.

    To see it work, run `tailrace demo`. To start with your own database, run `tailrace init`, then `check`, then `run`.
    The options below can also stand after the command.

    Exit codes: 0 success, 1 failure, 2 wrong settings or arguments, 130 stopped by a second signal.
    """


with_global_options(main, is_hidden=False)
