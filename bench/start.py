"""Start: from the command line to the first change at a destination, and to the last of a backlog.

Each command runs as a process of its own, as a user starts it. Processor time is that of the process and all its
children, without the PostgreSQL servers and the query server.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import psycopg

from bench import ready_log
from bench.report import Report
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import free_port
from tailrace.spark import class_archive

_WAITING = 200_000
_ROUNDS = 3
_PATIENCE_S = 300.0
# Polling more often would take a noticeable part of a processor.
_POLL_S = 0.05

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, note text, amount numeric(12, 2), at timestamptz DEFAULT now())"
_LOAD = f"INSERT INTO t SELECT i, 'note ' || i, i / 7.0 FROM generate_series(1, {_WAITING}) AS i"


def run(report: Report) -> None:
    report.title("Start")
    archive = class_archive.find()
    if archive is not None and archive.is_wanted:
        archive.create()  # a machine's first start is slower, and makes it in the background
    with Postgres(max_wal_size="4GB") as source, Postgres(max_wal_size="4GB") as destination:
        _first_change(report, source, destination)
        _backlog(report, source, destination)


def _first_change(report: Report, source: Postgres, destination: Postgres) -> None:
    report.section("from the command to the first change at the destination")
    for command in ("run", "audit"):
        seconds, processor = _median(partial(_one, command, source, destination))
        report.line(f"tailrace {command}", f"{seconds:.1f} s", "want ≤ 6", ok=seconds <= 6)
        report.line("processor until then", f"{processor:.1f} s")


def _one(command: str, source: Postgres, destination: Postgres, number: int) -> tuple[float, float]:
    """A change that was committed just before a command started which captures it. Slot and log are there already."""
    name = f"{command}_{number}"
    destination.create_database(name)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory:
        log = ready_log.make(source, name, (Path(directory) / "store").as_uri(), [_TABLE], [])
        with log.connect() as connection:
            connection.execute("INSERT INTO t VALUES (1, 'first')")
        query = {"run": "SELECT count(*) FROM t", "audit": """SELECT count(*) FROM changes WHERE "table" = 't'"""}
        environment = {"run": _settings(source, destination, name, log.store_url), "audit": _bemi(source, destination)}
        environment["audit"] |= {"DB_NAME": name, "DEST_DB_NAME": name, "TAILRACE_STORE_URL": log.store_url}
        with _running([command], directory, environment[command]) as used:
            began = time.monotonic()
            with destination.connect(name) as connection:
                _wait(lambda: _count(connection, query[command]) >= 1)
            found = time.monotonic() - began, used()
        log.drop_slots()
    return found


def _backlog(report: Report, source: Postgres, destination: Postgres) -> None:
    report.section(f"from `tailrace deliver` to the last of {_WAITING:,} waiting changes")
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory:
        log = ready_log.make(source, "backlog", (Path(directory) / "store").as_uri(), [_TABLE], [_LOAD])
        for sink in ("postgres", "audit", "iceberg"):
            most = 12 if sink == "iceberg" else None
            seconds, processor = _median(partial(_drain, sink, destination, log, Path(directory)))
            want = f"want ≤ {most}, by a query" if most else ""
            report.line(sink, f"{seconds:.1f} s", want, ok=seconds <= most if most else None)
            report.line("processor until then", f"{processor:.1f} s")
        log.drop_slots()


def _drain(
    sink: str, destination: Postgres, log: ready_log.ReadyLog, directory: Path, number: int
) -> tuple[float, float]:
    name = f"backlog_{sink}_{number}"
    destination.create_database(name)
    lake = (directory / name).as_uri()
    own = f'warehouse = "{lake}"' if sink == "iceberg" else f'url = "{destination.url_of(name)}"'
    work = directory / f"{name}-work"
    work.mkdir()
    (work / "tailrace.toml").write_text(
        f'[source]\nurl = "{log.server.url_of(log.database)}"\n[store]\nurl = "{log.store_url}"\n'
        f'[[sink]]\nname = "sink"\ntype = "{sink}"\n{own}\n'
    )
    with ExitStack() as stack:
        if sink == "iceberg":
            port = free_port()
            stack.enter_context(_running(["query", "--port", str(port)], work, {}))
            _wait(lambda: _answers(port))
            connection = stack.enter_context(
                psycopg.connect(f"host=127.0.0.1 port={port} user=bench dbname={log.database}", autocommit=True)
            )
            query = "SELECT count(*) FROM t"
        else:
            connection = stack.enter_context(destination.connect(name))
            query = f"SELECT count(*) FROM {'t' if sink == 'postgres' else 'changes'}"
        used = stack.enter_context(_running(["deliver"], work, {}))
        began = time.monotonic()
        _wait(lambda: _count(connection, query) >= _WAITING)
        return time.monotonic() - began, used()


def _settings(source: Postgres, destination: Postgres, name: str, store: str) -> dict[str, str]:
    written = f'[[sink]]\nname = "replica"\ntype = "postgres"\nurl = "{destination.url_of(name)}"\n[http]\nport = 0\n'
    return {"TAILRACE_SOURCE_URL": source.url_of(name), "TAILRACE_STORE_URL": store, "_FILE": written}


def _bemi(source: Postgres, destination: Postgres) -> dict[str, str]:
    found: dict[str, str] = {}
    for prefix, server in (("DB_", source), ("DEST_DB_", destination)):
        given = psycopg.conninfo.conninfo_to_dict(server.url)
        found |= {f"{prefix}{key.upper()}": str(given[key]) for key in ("host", "port", "user")}
    return found


def _median(measure: Callable[[int], tuple[float, float]]) -> tuple[float, float]:
    """Median seconds, and the processor seconds of that round."""
    return statistics.median_low([measure(number) for number in range(_ROUNDS)])


@contextmanager
def _running(arguments: list[str], directory: Path | str, environment: dict[str, str]) -> Iterator[Callable[[], float]]:
    """Yields a function that returns the processor seconds used so far."""
    environment = dict(environment)
    if written := environment.pop("_FILE", None):
        (Path(directory) / "tailrace.toml").write_text(written)
    with (Path(directory) / f"{arguments[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", *arguments],
            cwd=directory,
            stdout=log,
            stderr=log,
            env=os.environ | environment,
        )
    try:
        yield lambda: _processor_seconds(process.pid)
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)


def _processor_seconds(pid: int) -> float:
    total = 0.0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        try:
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
        except psutil.NoSuchProcess:
            continue
    return total


def _wait(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "nothing arrives"
        time.sleep(_POLL_S)


def _count(connection: psycopg.Connection[tuple[int]], query: str) -> int:
    try:
        row = connection.execute(query.encode()).fetchone()
    except psycopg.errors.UndefinedTable:
        return 0
    return row[0] if row else 0


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
