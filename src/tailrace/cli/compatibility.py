"""Commands that replace another program and read that program's environment and flags: their settings and processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import click

from tailrace.cli import Invocation
from tailrace.settings import Settings

PROCESS_GROUP: Final = "only"
"""The hidden subcommand under which such a command runs its child processes."""


@dataclass(frozen=True)
class CompatibleInvocation(Invocation):
    """Passes the settings of such a command on to the commands it runs, in this process and in child processes."""

    own_settings: Settings = field(kw_only=True)
    command: tuple[str, ...] = field(kw_only=True)
    """The command and its flags."""

    capture_flags: tuple[str, ...] = field(default=(), kw_only=True)
    """More flags for the capture process."""

    def settings(self, *requires: str) -> Settings:  # noqa: ARG002
        return self.own_settings

    def child_command(self, *arguments: str) -> list[str]:
        more = self.capture_flags if arguments[:1] == ("capture",) else ()
        return [*self._program(), *self.command, PROCESS_GROUP, *arguments, *more]


def process_group() -> click.Group:
    """Return the hidden group with the commands that run as child processes."""
    from tailrace.cli import capture, deliver

    group = click.Group(PROCESS_GROUP, help="Run one of the child processes.", hidden=True)
    group.add_command(capture.command)
    group.add_command(deliver.command)
    return group
