"""Between the supervisor and a command it runs: one socket, a JSON object a line each way.

The command tells its figures every second, and at the end the error it ended with. The supervisor may tell it something
to do. When the supervisor is gone, however it went, the socket closes, and the command ends well: no capture is left
behind that would keep the next one from the slot.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tailrace.errors import TailraceError

VARIABLE: Final = "TAILRACE_CHANNEL_FD"

_TELL_SECONDS = 1.0


def is_supervised(environ: Mapping[str, str]) -> bool:
    return VARIABLE in environ


@contextlib.contextmanager
def told_to_supervisor(
    environ: Mapping[str, str],
    figures: Callable[[], dict[str, Any]],
    stop: Callable[[], None],
    heed: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Iterator[None]:
    """While the context lasts; nothing where nobody supervises."""
    if not is_supervised(environ):
        yield
        return
    descriptor = int(environ[VARIABLE])
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as line:
        line.settimeout(None)
        ended = threading.Event()

        def tell(what: dict[str, Any]) -> None:
            with contextlib.suppress(OSError):  # it is gone, as the other thread will notice
                line.sendall(json.dumps(what).encode() + b"\n")

        def keep_telling() -> None:
            while not ended.is_set():
                tell(figures())
                ended.wait(_TELL_SECONDS)

        def listen() -> None:
            for what in objects(line):
                heed(what)
            if not ended.is_set():
                stop()

        teller = threading.Thread(target=keep_telling, name="figures", daemon=True)
        listener = threading.Thread(target=listen, name="supervisor", daemon=True)
        teller.start()
        listener.start()
        try:
            yield
        except TailraceError as error:
            ended.set()
            teller.join()
            tell({"error": described(error)})
            raise
        else:
            ended.set()
            teller.join()
            tell(figures())  # as they are at the end
        finally:
            ended.set()
            teller.join()
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            listener.join()


def described(error: TailraceError) -> dict[str, Any]:
    return {"kind": type(error).__name__, "message": str(error), "hint": error.hint, "retry": error.retry}


def objects(line: socket.socket) -> Iterator[dict[str, Any]]:
    """What comes over the socket, until its other end is gone."""
    with line.makefile("rb") as lines, contextlib.suppress(OSError):
        for text in lines:
            if text.endswith(b"\n"):  # else its writer was killed in the middle
                yield json.loads(text)
