"""A receiver that answers 410 pauses the sink, over restarts, until an operator resumes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from tests.contract.webhook_receiver import Answer, HttpReceiver
from tests.sinks.webhook_scene import Scene

from tailrace import settings, sinks
from tailrace.cli import main
from tailrace.delivery import control, status
from tailrace.delivery.pipeline import Pipeline
from tailrace.embedded.process import wait_until
from tailrace.spark import engine
from tailrace.spark.engine import Engine

REASON = "answered 410: it wants no more changes"


def _run(directory: Path, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["--config", str(directory / "tailrace.toml"), *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@contextmanager
def _delivering(scene: Scene, spark: SparkSession) -> Iterator[tuple[Engine, Pipeline]]:
    raw = {"name": "hook", **scene.server.settings(batch=4, connections=2)}
    given = settings.Settings(store=settings.StoreSettings(scene.store.url), sinks=(raw,))
    running = Engine(given, sinks.from_settings(given, {}), spark=spark)
    running.start()
    try:
        yield running, running.sinks["hook"]
    finally:
        running.stop()


def test_gone_pauses_and_resume_continues(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_STATUS_S", 0.2)
    with HttpReceiver() as server:
        scene = Scene(server, tmp_path)
        (tmp_path / "tailrace.toml").write_text(
            f'[store]\nurl = "{scene.store.url}"\n[[sink]]\nname = "hook"\ntype = "webhook"\nurl = "{server.url}"\n'
        )
        fifth = str(scene.position(20))
        server.react = lambda received: Answer(410 if fifth in {c["msg_id"] for c in received.changes} else 200)
        with _delivering(scene, spark) as (running, pipeline):
            assert not running.wait(running.end(), 120), "a wait for the end must not last while it is paused"
            assert pipeline.status().state == "paused"
            assert not pipeline.has_failed
            assert REASON in str(pipeline.error)
            asked = len(server.requests)
            assert wait_until(lambda: (status.load(scene.store, "hook") or pipeline.status()).state == "paused", 30)
        assert control.load(scene.store, "hook").is_paused
        assert REASON in _run(tmp_path, "status")
        server.react = lambda _: Answer()
        with _delivering(scene, spark) as (running, pipeline):
            # Another process is paused, too, for the same reason.
            assert wait_until(lambda: pipeline.is_paused_by_destination, 30)
            assert not running.wait(running.end(), 60)
            assert REASON in (pipeline.status().last_error or "")
            assert len(server.requests) == asked
            assert "sink hook is resumed" in _run(tmp_path, "sink", "resume", "hook")
            assert wait_until(lambda: not pipeline.is_paused_by_destination, 30)
            assert running.wait(running.end(), 120), pipeline.status()
            assert pipeline.status().last_error is None
        accepted = [change["msg_id"] for received in server.accepted for change in received.changes]
        assert sorted(accepted) == sorted(str(change.position) for change in scene.changes)
