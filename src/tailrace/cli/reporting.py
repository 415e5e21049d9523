"""How commands speak: log lines on stderr, a live line on a terminal, sizes and durations for people."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.logging import RichHandler


def log_to_stderr(level: int = logging.INFO) -> None:
    """Plain lines with a time; on a terminal they do not break a live display."""
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


_shared: list[Console] = []


def console() -> Console:
    """One for logs and live lines, so that they know of each other."""
    if not _shared:
        _shared.append(Console(stderr=True, highlight=False))
    return _shared[0]


@contextlib.contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
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
