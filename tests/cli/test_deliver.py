"""`tailrace deliver` as scripts and operators use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.capturing import tailrace

from tailrace.cli import deliver
from tailrace.delivery import control
from tailrace.store import Store

_SINK = """
[store]
url = "{store}"
[[sink]]
type = "postgres"
name = "replica"
url = "postgresql://nobody@127.0.0.1:1/nothing"
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    config = tmp_path / "tailrace.toml"
    config.write_text(_SINK.format(store=(tmp_path / "store").as_uri()))
    return os.environ | {"TAILRACE_CONFIG": str(config)}


def _run(env: dict[str, str], command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sink", "replika"], ["no sink 'replika'", "did you mean replica?"]),
        (["--rewind", "snapshot"], ["--rewind needs exactly one --sink"]),
        (["--reload", "public.t"], ["--reload needs exactly one --sink"]),
        (["--reload", "t", "--sink", "replica"], ["'t' is not a pattern of table names"]),
        (["--pause", "other"], ["no sink 'other'"]),
        (["--once"], ["sink replica is paused", "--resume replica"]),
    ],
)
def test_errors_say_what_to_do(arguments: list[str], words: list[str], env: dict[str, str], tmp_path: Path) -> None:
    control.pause(Store.open(str(tmp_path / "store")), "replica")
    done = _run(env, tailrace("deliver", *arguments))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize("command", ["deliver", "run"])
def test_the_error_without_a_sink_has_an_example(command: str, tmp_path: Path) -> None:
    given = {"TAILRACE_STORE_URL": (tmp_path / "store").as_uri(), "TAILRACE_SOURCE_URL": "postgresql://h/d"}
    done = _run(os.environ | given, tailrace(command))
    assert done.returncode == 2
    assert "[[sink]]" in done.stderr


def test_control_requests_work_without_spark(env: dict[str, str], tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    without = "import sys; sys.modules['pyspark'] = None; from tailrace.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", without, "deliver"]
    assert _run(env, [*command, "--pause", "replica"]).returncode == 0
    assert control.load(store, "replica").is_paused
    assert _run(env, [*command, "--resume", "replica"]).returncode == 0
    assert not control.load(store, "replica").is_paused
    assert _run(env, [*command, "--sink", "replica", "--reload", "public.a", "--reload", "public.b"]).returncode == 0
    assert control.load(store, "replica").reload == ("public.a", "public.b")
    delivering = _run(env, [*command, "--once"])
    assert delivering.returncode == 1
    assert "pip install 'tailrace[spark]'" in delivering.stderr


def test_a_sink_that_has_not_started_yet_can_be_paused_and_resumed(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    engine = cast(Any, SimpleNamespace(sinks={}))
    deliver._control(engine, store, "pause", "replica")
    assert control.load(store, "replica").is_paused
    deliver._control(engine, store, "resume", "replica")
    assert not control.load(store, "replica").is_paused
