"""What commands print when nobody reads it, or nothing happens."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.capturing import capture_to_end, environment, tailrace
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress

from tailrace.cli import output, status_line, stop_signal
from tailrace.cli.status_line import StatusLine


def test_output_that_nobody_reads_ends_quietly(database: Database, file_address: StoreAddress) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    env = environment(database, *file_address)
    capture_to_end(env)
    database.execute("INSERT INTO t SELECT generate_series(1, 20000)")
    capture_to_end(env)
    command = tailrace("log", "cat")
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


@pytest.fixture
def loggers() -> Iterator[None]:
    """What the test does to the loggers is undone."""
    changed = [logging.getLogger(name) for name in ("tailrace", "uvicorn")]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in changed]
    yield
    for logger, state in zip(changed, before, strict=True):
        logger.handlers[:], logger.level, logger.propagate = state


@pytest.mark.usefixtures("loggers")
def test_a_name_can_neither_forge_a_log_line_nor_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.log_to_stderr()
    name = "public.x\n2026-11-18 20:00:00,000 ERROR   all is lost\x1b[2J\x9b1m"
    logging.getLogger("tailrace").warning("left out: %s", name)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("public.x\\n2026-11-18 20:00:00,000 ERROR   all is lost\\x1b[2J\\x9b1m")


@pytest.mark.usefixtures("loggers")
def test_what_the_http_server_logs_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    output.log_to_stderr(log_format="json")
    log = logging.getLogger("uvicorn.error")
    log.warning("Invalid HTTP request received.")  # anybody can send that, as often as he likes
    log.error("Exception in ASGI application")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "Exception in ASGI application"


def test_check_and_errors_escape_the_names_of_a_database(database: Database, file_address: StoreAddress) -> None:
    database.execute('CREATE TABLE "a\x1b[2J\nerror: forged" (n int); CREATE PUBLICATION tailrace FOR ALL TABLES')
    for arguments in (("check",), ("--config", "gone\x1b[2J.toml", "check")):
        done = subprocess.run(
            tailrace(*arguments), env=environment(database, *file_address), capture_output=True, text=True, check=False
        )
        printed = done.stdout + done.stderr
        assert "\\x1b[2J" in printed
        assert "\x1b" not in printed
        assert "\nerror: forged" not in printed


def test_a_log_file_gets_no_lines_while_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status_line, "_PLAIN_SECONDS", 0.001)
    stopping = threading.Event()
    events = [0, 0, 0, 1, 1, 2, 2, 2]
    asked: list[int] = []

    def lines() -> Sequence[StatusLine]:
        event = events[min(len(asked), len(events) - 1)]
        asked.append(event)
        if len(asked) > len(events):
            stopping.set()
        return [StatusLine(f"line {len(asked)}", event)]

    with caplog.at_level(logging.INFO, "test"):
        status_line.show_until(stopping, lines, "test")
    assert [record.getMessage() for record in caplog.records] == ["line 4", "line 6"]


def test_signals_shortly_after_one_another_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[int, Callable[[int, None], None]] = {}
    monkeypatch.setattr("tailrace.cli.stop_signal.signal.signal", handlers.__setitem__)
    now = [100.0]
    monkeypatch.setattr("tailrace.cli.stop_signal.time.monotonic", lambda: now[0])
    stops: list[threading.Event] = [threading.Event() for _ in range(2)]
    count: list[int] = []

    def stop() -> None:
        count.append(1)
        stops[len(count) - 1].set()

    stop_signal.on_stop(stop)
    (handle,) = set(handlers.values())
    for _ in range(3):
        handle(15, None)
    assert stops[0].wait(10)
    now[0] += 2
    handle(15, None)
    assert stops[1].wait(10)
    assert len(count) == 2
