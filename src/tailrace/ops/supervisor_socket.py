"""The socket between the supervisor and a command it runs: one JSON object per line in each direction.

The command reports its status every second and, when it fails, the error it ended with. The supervisor sends control
requests. When the supervisor exits, however that happens, the socket closes and the command stops cleanly. So no
orphaned capture process holds the slot.
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

FD_VARIABLE: Final = "TAILRACE_CHANNEL_FD"

_REPORT_SECONDS = 1.0


def is_supervised(environ: Mapping[str, str]) -> bool:
    return FD_VARIABLE in environ


@contextlib.contextmanager
def report_to_supervisor(
    environ: Mapping[str, str],
    status: Callable[[], dict[str, Any]],
    stop: Callable[[], None],
    handle: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Iterator[None]:
    """Report to the supervisor until the context exits. Without a supervisor, do nothing.

    An error is reported too, and ends the process: the supervisor prints it.

    `status` returns the object to report, `stop` is called when the supervisor exits, and `handle` receives the
    supervisor's requests.
    """
    if not is_supervised(environ):
        yield
        return
    descriptor = int(environ[FD_VARIABLE])
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as connection:
        connection.settimeout(None)
        ended = threading.Event()

        def send(message: dict[str, Any]) -> None:
            with contextlib.suppress(OSError):  # the supervisor has exited; the listener notices
                connection.sendall(json.dumps(message).encode() + b"\n")

        def report() -> None:
            while not ended.is_set():
                send(status())
                ended.wait(_REPORT_SECONDS)

        def listen() -> None:
            for message in read_messages(connection):
                handle(message)
            if not ended.is_set():
                stop()

        reporter = threading.Thread(target=report, name="status reports", daemon=True)
        listener = threading.Thread(target=listen, name="supervisor", daemon=True)
        reporter.start()
        listener.start()
        try:
            yield
        except TailraceError as error:
            ended.set()
            reporter.join()
            send({"error": error_to_json(error)})
            raise SystemExit(1) from None
        else:
            ended.set()
            reporter.join()
            send(status())  # the final status
        finally:
            ended.set()
            reporter.join()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            listener.join()


def error_to_json(error: TailraceError) -> dict[str, Any]:
    return {"kind": type(error).__name__, "message": str(error), "hint": error.hint, "retry": error.retry}


def read_messages(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield messages until the other end closes the socket."""
    with connection.makefile("rb") as lines, contextlib.suppress(OSError):
        for line in lines:
            if line.endswith(b"\n"):  # otherwise the writer was killed while writing it
                yield json.loads(line)
