"""Output of the commands: log lines on stderr, a live line on a terminal, formatted sizes and durations."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.console import Console
from rich.logging import RichHandler

from tailrace.errors import TailraceError
from tailrace.log.terminal import printable, printable_lines


def log_to_stderr(level: int = logging.INFO, log_format: str = "text") -> None:
    """Log lines with a timestamp. On a terminal, they do not disturb a live display.

    Args:
        level: The least level that is logged.
        log_format: `text`, or `json` for one object per line.
    """
    handler: logging.Handler
    if log_format == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
    elif sys.stderr.isatty():
        handler = RichHandler(console=console(), show_path=False, markup=False, rich_tracebacks=False)
        handler.setFormatter(TextFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)-7s %(message)s"))
    # The HTTP server's own log has errors, in the same format, but not that somebody sent what is not HTTP.
    for name, least in (("tailrace", level), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(least)
        logger.propagate = False


def show_error(error: TailraceError) -> None:
    """Print why a command failed, and the hint: as a log line if log lines are JSON, which only machines read."""
    if _logs_json():
        logging.getLogger("tailrace").error("%s", error, extra={"hint": error.hint})
        return
    click.echo(printable_lines(f"error: {error}"), err=True)
    if error.hint:
        click.echo(printable_lines(f"hint: {error.hint}"), err=True)


class TextFormatter(logging.Formatter):
    """One line for each record, whatever names it holds, and the traceback of an exception."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        return printable_lines(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, a hint if there is one, and an exception's traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if hint := getattr(record, "hint", ""):
            fields["hint"] = hint
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def with_process(name: str, line: str) -> str:
    """Return a JSON log line of a child process, with its name; other output becomes a message."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        fields = {"time": datetime.now(UTC).isoformat(), "level": "info", "message": line}
    return json.dumps({**fields, "process": name}, ensure_ascii=False)


def is_live() -> bool:
    """Whether there is a terminal for a live line beside log lines."""
    return sys.stderr.isatty() and not _logs_json()


def _logs_json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger("tailrace").handlers)


_consoles: list[Console] = []
_WIDE: Final = 200


def console() -> Console:
    """Return the console that log lines and live lines share, so that they do not overwrite each other."""
    if not _consoles:
        _consoles.append(Console(stderr=True, highlight=False))
    return _consoles[0]


def report_console() -> Console:
    """Return a console for tables on stdout. Without a terminal the width is unknown, so nothing is truncated."""
    return Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDE)


@contextlib.contextmanager
def live_line() -> Iterator[Callable[[str], None]]:
    """Show a live line on the terminal until the context exits. The result updates its text."""
    with console().status("connecting") as status:
        yield status.update


def size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    seconds = max(seconds, 0.0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def ago(at: datetime | None) -> str:
    return "-" if at is None else f"{duration(time.time() - at.timestamp())} ago"
