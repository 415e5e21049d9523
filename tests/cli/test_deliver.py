"""`tailrace deliver` as scripts and operators use it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.capturing import tailrace

from tailrace.cli import deliver
from tailrace.delivery import control, status
from tailrace.delivery.status import SinkStatus
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
        (["deliver", "--sink", "replika"], ["no sink 'replika'", "did you mean replica?"]),
        (["deliver", "--once"], ["sink replica is paused", "sink resume replica"]),
        (["sink", "pause", "other"], ["no sink 'other'"]),
        (["sink", "reload", "replica", "t"], ["'t' is not a pattern of table names"]),
        (["sink", "rewind", "replica", "yesterday"], ["'yesterday'", "an ISO time"]),
        (["sink", "forget", "replica"], ["sink replica is configured"]),
        (["sink", "forget", "other"], ["the store knows no sink 'other'"]),
        (["sink", "paus", "replica"], ["No such command 'paus'", "Did you mean 'pause'?"]),
        (["stauts"], ["No such command 'stauts'", "Did you mean 'status'?"]),
    ],
)
def test_errors_say_what_to_do(arguments: list[str], words: list[str], env: dict[str, str], tmp_path: Path) -> None:
    control.pause(Store.open(str(tmp_path / "store")), "replica")
    done = _run(env, tailrace(*arguments))
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
    command = [sys.executable, "-c", without]
    assert _run(env, [*command, "sink", "pause", "replica"]).returncode == 0
    assert control.load(store, "replica").is_paused
    assert _run(env, [*command, "sink", "resume", "replica"]).returncode == 0
    assert not control.load(store, "replica").is_paused
    assert _run(env, [*command, "sink", "reload", "replica", "public.a", "public.b"]).returncode == 0
    assert control.load(store, "replica").reload == ("public.a", "public.b")
    without_snapshot = _run(env, [*command, "sink", "rewind", "replica", "snapshot"])
    assert without_snapshot.returncode == 1
    assert "take one with `tailrace snapshot`" in without_snapshot.stderr
    delivering = _run(env, [*command, "deliver", "--once"])
    assert delivering.returncode == 1
    assert "pip install 'tailrace[spark]'" in delivering.stderr


def test_a_sink_that_was_removed_is_listed_until_it_is_forgotten(env: dict[str, str], tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    control.pause(store, "replica")
    removed = SinkStatus.initial("removed", "files", "running")
    status.save(store, removed)
    listed = _run(env, tailrace("sink", "list"))
    assert [line.split()[:3] for line in listed.stdout.splitlines()[1:3]] == [
        ["replica", "postgres", "new"],
        ["removed", "files", "running"],
    ]
    assert "replica is paused: when it is started, it waits for `tailrace sink resume replica`" in listed.stdout
    assert "`tailrace sink forget removed` removes it" in listed.stdout
    refused = _run(env, tailrace("sink", "forget", "removed"))
    assert refused.returncode == 1
    assert "some process delivers to it" in refused.stderr
    status.save(store, replace(removed, state="stopped"))
    assert _run(env, tailrace("sink", "forget", "removed")).returncode == 0
    assert [info.key for info in store.list("cursors")] == ["cursors/replica/control.json"]


def test_a_sink_that_has_not_started_yet_can_be_paused_and_resumed(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    engine = cast(Any, SimpleNamespace(sinks={}))
    deliver._control(engine, store, "pause", "replica")
    assert control.load(store, "replica").is_paused
    deliver._control(engine, store, "resume", "replica")
    assert not control.load(store, "replica").is_paused
