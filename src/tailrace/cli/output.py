"""Output of the commands: log lines on stderr, a live line on a terminal, formatted sizes and durations."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.logging import RichHandler


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log plain lines with a timestamp. On a terminal, they do not disturb a live display."""
    handler: logging.Handler
    if sys.stderr.isatty():
        handler = RichHandler(console=console(), show_path=False, markup=False, rich_tracebacks=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    logger = logging.getLogger("tailrace")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


_consoles: list[Console] = []


def console() -> Console:
    """Return the console that log lines and live lines share, so that they do not overwrite each other."""
    if not _consoles:
        _consoles.append(Console(stderr=True, highlight=False))
    return _consoles[0]


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
