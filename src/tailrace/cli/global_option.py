"""The options that every command accepts, before its name and after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def with_global_options(command: click.Command, *, is_hidden: bool = True) -> click.Command:
    """Return a command, or a group with all of its commands, that accepts the options.

    Args:
        command: The command, which is changed.
        is_hidden: Whether its help leaves them out.
    """
    known = {name for parameter in command.params for name in parameter.opts}
    command.params += [option for option in _options(is_hidden) if not known.issuperset(option.opts)]
    if isinstance(command, click.Group):
        for each in command.commands.values():
            with_global_options(each)
    return command


def _options(is_hidden: bool) -> Iterator[click.Option]:
    """Each option changes the `Invocation` that the command gets."""
    yield click.Option(
        ["--config"],
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=None if is_hidden else "TAILRACE_CONFIG",
        help="Settings file. Default: tailrace.toml, if it exists. TAILRACE_<SECTION>_<KEY> variables override it.",
        callback=_change(lambda value: {"config": value}),
        expose_value=False,
        hidden=is_hidden,
    )
    yield click.Option(
        ["--log-level"],
        type=click.Choice(list(_LEVELS)),
        help="What to log. Default: info.",
        callback=_change(lambda value: {"log_level": _LEVELS[value]}),
        expose_value=False,
        hidden=is_hidden,
    )
    yield click.Option(
        ["--log-format"],
        type=click.Choice(["text", "json"]),
        help="Log lines as text or as one JSON object each. Default: text.",
        callback=_change(lambda value: {"log_format": value}),
        expose_value=False,
        hidden=is_hidden,
    )


def _change(fields: Callable[[Any], dict[str, Any]]) -> Callable[[click.Context, click.Parameter, Any], None]:
    def change(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:  # noqa: ARG001
        if value is not None:
            ctx.obj = replace(ctx.obj, **fields(value))
            if ctx.obj.log_format != "text":
                ctx.obj.start_logging()  # the error that ends a command has this format, also if it logs nothing else

    return change
