"""Commands that are run as another program is, by its environment and flags: settings, and the processes they need."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Final

import click

from tailrace.cli import Invocation
from tailrace.settings import Settings

PARTS: Final = "only"


@dataclass(frozen=True)
class DropIn(Invocation):
    """Settings for the commands that such a command runs, in its own process and in others."""

    given: Settings = field(kw_only=True)
    command: tuple[str, ...] = field(kw_only=True)
    """With the flags that it was given."""

    capture: tuple[str, ...] = field(default=(), kw_only=True)
    """Flags for that part."""

    def settings(self, *requires: str) -> Settings:  # noqa: ARG002
        return self.given

    def child(self, *arguments: str) -> list[str]:
        more = self.capture if arguments[:1] == ("capture",) else ()
        return [sys.executable, "-m", "tailrace", *self.command, PARTS, *arguments, *more]


def parts() -> click.Group:
    """A group for the command's own: what it consists of, each as a process of its own."""
    from tailrace.cli import capture, deliver

    group = click.Group(PARTS, help="A part of it, as a process of its own.", hidden=True)
    group.add_command(capture.command)
    group.add_command(deliver.command)
    return group
