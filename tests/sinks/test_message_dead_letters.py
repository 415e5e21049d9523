"""Changes whose messages are too large become dead letters, and are published once when they are replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from tests.contract.delivery_driver import Crash, DeliveryDriver, crash_after_staging, crashing
from tests.contract.webhook_receiver import HttpReceiver
from tests.log.stream import SOURCE, Server, write
from tests.pgoutput import build
from tests.sinks.limited_destination import (
    UNLIMITED,
    LimitedDestination,
    LimitedEntries,
    LimitedReceiver,
    LimitedStream,
    LimitedTopic,
)
from tests.stepping import DrivenStepper

from tailrace import settings, sinks
from tailrace.change import Lsn, Operation
from tailrace.cli import main
from tailrace.delivery import pipeline
from tailrace.delivery.dead_letters import DeadLetters
from tailrace.embedded.process import wait_until
from tailrace.errors import PoisonError
from tailrace.log import source_record
from tailrace.sinks.valkey import command
from tailrace.spark.engine import Engine
from tailrace.store import Store

_LIMIT = 1500


class ServerWithLargeRows(Server):
    """Some rows make messages above the limit."""

    def _change(self) -> tuple[bytes, list[tuple[Operation, dict[str, Any]]]]:
        relation = self.relations[100]
        body = b"x" * self.rng.choice([10, 10, 2 * _LIMIT])
        row = (b"%d" % self.rng.randint(0, 99), body, *[b"1.5"] * (len(relation.columns) - 2))
        return build.insert(row, oid=100), [(Operation.INSERT, {"relation": relation, "new": row})]


@pytest.fixture
def webhook_server() -> Iterator[HttpReceiver]:
    with HttpReceiver() as server:
        yield server


@pytest.fixture(params=["nats", "kafka", "webhook", "valkey"])
def limited(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LimitedDestination:
    monkeypatch.setattr(command, "MAX_VALUE_BYTES", command.MAX_VALUE_BYTES)  # restored, if the test lowers it
    kinds = {"nats": LimitedStream, "kafka": LimitedTopic, "webhook": LimitedReceiver, "valkey": LimitedEntries}
    destination: LimitedDestination = kinds[request.param](request.getfixturevalue(f"{request.param}_server"))
    destination.set_limit(_LIMIT)
    return destination


@pytest.fixture
def delivering(limited: LimitedDestination, tmp_path: Path) -> DeliveryDriver:
    store = Store.open((tmp_path / "store").as_uri())
    write(store, ServerWithLargeRows(1).work(40), most=8)
    source_record.save(store, SOURCE, Lsn(0))
    common = {"start": "earliest", "on_poison": "dead_letter"}
    driver = DeliveryDriver(limited.place, settings.StoreSettings(store.url), **common)
    raw = "\n".join(
        f"{name} = {json.dumps(value)}"
        for name, value in {"name": "tested", **limited.place.settings(), **common}.items()
    )
    (tmp_path / "tailrace.toml").write_text(f'[store]\nurl = "{store.url}"\n[[sink]]\n{raw}')
    return driver


def _run(tmp_path: Path, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["--config", str(tmp_path / "tailrace.toml"), "deadletter", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def _replay(stepper: DrivenStepper) -> None:
    """Deliver what was requested, as a pipeline does."""
    stepper.look_for_loads()
    while (planned := stepper.next_step()) is not None and planned.step.replays:
        stepper.begin(planned)
        try:
            stepper.commit(planned, stepper.run(planned.tasks, stepper.sink.parallel))
        except PoisonError as error:
            stepper.add_dead_letters(error)


def test_dead_letters_are_listed_shown_and_replayed(
    limited: LimitedDestination, delivering: DeliveryDriver, tmp_path: Path
) -> None:
    with delivering.stepper() as one:
        one.deliver(one.log_end())
        letters = DeadLetters(delivering.reader, "tested")
        letters.load()
        count = one.dead_letters
        before = limited.positions()
        assert count == len(letters.positions) > 1
        assert before == sorted(before)
        assert not letters.positions & set(before)

        listed = _run(tmp_path, "list", "tested").splitlines()
        assert len(listed) == count + 1
        assert limited.refusal.format(limit=_LIMIT) in listed[1]
        first = min(letters.positions)
        shown = _run(tmp_path, "show", "tested", str(first))
        assert '"after": {' in shown or '"before": {' in shown
        assert "reason: " in shown

        # Still too large: it stays a dead letter.
        _run(tmp_path, "replay", "tested", str(first))
        _replay(one)
        assert one.dead_letters == count
        assert limited.positions() == before
        assert "requested" not in _run(tmp_path, "list")

        limited.set_limit(UNLIMITED)
        _run(tmp_path, "replay", "tested", "--all")
        assert _run(tmp_path, "list").count("requested") == count
        _replay(one)
        assert one.dead_letters == 0
        assert _run(tmp_path, "list") == "there are no dead letters\n"
        published = limited.positions()
        assert published == [*before, *sorted(letters.positions)]
        ids = [id for _, id in limited.received()]
        assert len(set(ids)) == len(ids)
    # A later start knows how far the sink is, although the last messages have older positions.
    with delivering.stepper() as one:
        one.deliver(one.log_end())
        one.sink.maintain()
    assert limited.positions() == published


def test_a_replay_that_crashes_is_published_once(
    limited: LimitedDestination, delivering: DeliveryDriver, tmp_path: Path
) -> None:
    with delivering.stepper() as one:
        one.deliver(one.log_end())
        before = limited.positions()
        limited.set_limit(UNLIMITED)
        _run(tmp_path, "replay", "tested", "--all")
        one.run = crash_after_staging(one.run)
        with pytest.raises(Crash):
            _replay(one)
    assert len(limited.positions()) > len(before)
    limited.forget_duplicates()
    with delivering.stepper() as one:
        _replay(one)
        assert one.dead_letters == 0
    published = limited.positions()
    assert len(set(published)) == len(published)


@pytest.mark.parametrize("limited", ["kafka", "valkey"], indirect=True)
def test_a_replay_that_crashes_at_any_time(
    limited: LimitedDestination, delivering: DeliveryDriver, tmp_path: Path
) -> None:
    """Also between two transactions that have dead letters."""
    with delivering.stepper() as one:
        one.deliver(one.log_end())
        count = one.dead_letters
        before = limited.positions()
    limited.set_limit(UNLIMITED)
    _run(tmp_path, "replay", "tested", "--all")
    crashes = 0
    while True:
        with delivering.stepper() as one:
            try:
                with crashing(1 + 3 * crashes):
                    _replay(one)
                break
            except Crash:
                crashes += 1
    assert crashes > 3
    assert one.dead_letters == 0
    published = limited.positions()
    assert published[: len(before)] == before
    assert len(set(published)) == len(published) == len(before) + count


@pytest.mark.parametrize("limited", ["nats", "kafka", "webhook"], indirect=True)
def test_a_running_sink_replays_on_request(
    limited: LimitedDestination,
    delivering: DeliveryDriver,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command and the sink have only the store in common."""
    monkeypatch.setattr(pipeline, "_MAINTAIN_S", 0.2)
    given = delivering._settings()
    engine = Engine(given, sinks.from_settings(given, {}), spark=spark)
    engine.start()
    try:
        assert engine.wait(engine.end(), 180), engine.sinks["tested"].status()
        count = engine.sinks["tested"].status().dead_letters
        before = limited.positions()
        assert count > 1
        limited.set_limit(UNLIMITED)
        _run(tmp_path, "replay", "tested", "--all")
        assert wait_until(lambda: engine.sinks["tested"].status().dead_letters == 0, 60), engine.sinks[
            "tested"
        ].status()
    finally:
        engine.stop()
    published = limited.positions()
    assert published[: len(before)] == before
    assert len(set(published)) == len(published) == len(before) + count


@pytest.mark.parametrize("limited", ["nats"], indirect=True)
def test_positions_without_a_dead_letter_are_refused(delivering: DeliveryDriver, tmp_path: Path) -> None:
    for arguments, words in (
        (["show", "tested", "0/1:2"], "sink tested has no dead letter at 0/1:2"),
        (["replay", "tested", "0/1:2"], "sink tested has no dead letter at 0/1:2"),
        (["replay", "tested"], "name the positions to replay, or use --all"),
        (["replay", "other", "--all"], "there is no sink 'other'"),
    ):
        result = CliRunner().invoke(main, ["--config", str(tmp_path / "tailrace.toml"), "deadletter", *arguments])
        assert result.exit_code in (1, 2)
        assert words in result.output
