"""Receivers that fail, hang, reject or ask to wait: nothing is lost, and only what failed is sent again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from tests.contract.webhook_receiver import Answer, Drip, Hang, HttpReceiver, Reaction, Received, Reset
from tests.sinks.webhook_scene import Scene

from tailrace.errors import PoisonError, SinkError, SinkPaused, SinkRefused, TailraceError
from tailrace.sinks.webhook import circuit, dispatcher
from tailrace.sinks.webhook.answer import Verdict, judge


@pytest.fixture
def server() -> Iterator[HttpReceiver]:
    with HttpReceiver() as server:
        yield server


@pytest.fixture
def scene(server: HttpReceiver, tmp_path: Path) -> Scene:
    return Scene(server, tmp_path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure is reported."""
    monkeypatch.setattr(dispatcher, "_PATIENCE_S", 0.0)


def _has_row(received: Received, row: int) -> bool:
    return any(change["data"]["id"] == row for change in received.changes)


def _times(count: int, reaction: Reaction, is_affected: Callable[[Received], bool]) -> Callable[[Received], Reaction]:
    """React so to the first few affected requests, and accept the others."""
    left = count

    def react(received: Received) -> Reaction:
        nonlocal left
        if left and is_affected(received):
            left -= 1
            return reaction
        return Answer()

    return react


@pytest.mark.parametrize("reaction", [Answer(500), Answer(503), Answer(408), Reset()], ids=str)
def test_a_failing_row_is_retried_while_others_go_on(scene: Scene, reaction: Reaction) -> None:
    scene.server.react = _times(2, reaction, lambda received: _has_row(received, 3))
    scene.deliver(connections=2)
    scene.assert_all_accepted()
    rows = [received.json["data"]["id"] for received in scene.server.accepted]
    assert rows.index(3) > 9, "other rows waited for it"
    tries = [received.id for received in scene.server.requests if _has_row(received, 3)]
    assert tries[0] == tries[1] == tries[2] != tries[3], "the id differs when a request is repeated"


@pytest.mark.parametrize("reaction", [Drip(500), Hang()], ids=str)
def test_a_row_whose_answer_never_ends_is_retried(scene: Scene, reaction: Reaction) -> None:
    """On a busy machine other answers may be late, too: those requests are repeated with the same id."""
    scene.server.react = _times(1, reaction, lambda received: _has_row(received, 3))
    scene.deliver(timeout_s=1, connections=2)
    scene.assert_all_accepted(again=True)
    tries = [received.id for received in scene.server.requests if _has_row(received, 3)]
    assert tries[0] == tries[1]


@pytest.mark.parametrize("reaction", [Answer(204), Answer(202, {"connection": "close"}, b"x" * 200_000)])
def test_any_2xx_is_delivered_whatever_follows(scene: Scene, reaction: Reaction) -> None:
    scene.server.react = _times(2, reaction, lambda _: True)
    scene.deliver()
    assert len(scene.server.requests) == len(scene.changes)


def test_a_2xx_whose_body_never_ends_is_delivered(scene: Scene) -> None:
    scene.server.react = _times(1, Drip(200), lambda _: True)
    scene.deliver(timeout_s=2)
    first = scene.server.requests[0].id
    assert [received.id for received in scene.server.requests].count(first) == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("batch", [1, 4])
def test_what_was_delivered_is_not_sent_again(scene: Scene, batch: int) -> None:
    """Also not by another process: the attempt that failed left a record."""
    scene.server.react = lambda received: Answer(503 if _has_row(received, 3) else 200)
    with pytest.raises(SinkError, match=r"answered 503: .*changes from .* on are not delivered"):
        scene.deliver(batch=batch)
    sent = len(scene.server.requests)
    scene.server.react = lambda _: Answer()
    scene.deliver(batch=batch)
    scene.assert_all_accepted()
    if batch == 1:
        assert {received.json["data"]["id"] for received in scene.server.requests[sent:]} == {3}
    assert scene.store.get("cursors/tested/attempts.json") is None


def test_one_connection_keeps_everything_in_order(scene: Scene) -> None:
    scene.server.react = _times(3, Answer(500), lambda received: _has_row(received, 3))
    scene.deliver(connections=1)
    expected = [str(change.position) for change in scene.changes]
    assert [received.id for received in scene.server.accepted] == expected


@pytest.mark.parametrize("is_date", [False, True])
def test_the_receiver_is_left_alone_as_long_as_it_asks(scene: Scene, is_date: bool) -> None:
    wait = formatdate(time.time() + 1000, usegmt=True) if is_date else "1000"
    scene.server.react = lambda _: Answer(429, {"Retry-After": wait})
    with pytest.raises(SinkError, match="answered 429"):
        scene.deliver(connections=1)
    assert len(scene.server.requests) == 1
    for _ in range(3):
        with pytest.raises(SinkError, match=r"nothing is sent for \d+ s"):
            scene.deliver()
    assert len(scene.server.requests) == 1
    record = json.loads(scene.store.get("cursors/tested/attempts.json") or b"")
    assert 900 < record["not_before"] - time.time() <= 1000
    assert record["tries"] == {}, "the change is not to blame"
    scene.store.replace("cursors/tested/attempts.json", json.dumps({**record, "not_before": time.time()}).encode())
    scene.server.react = lambda _: Answer()
    scene.deliver()
    scene.assert_all_accepted()


@pytest.mark.usefixtures("impatient")
def test_failures_in_a_row_open_the_circuit(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then one request at a time finds out whether the receiver is back."""
    monkeypatch.setattr(circuit, "_FIRST_S", 60.0)  # the pause lasts longer than the test
    scene.server.react = lambda _: Answer(502)
    for _ in range(4):
        with pytest.raises(SinkError):
            scene.deliver(connections=4)
    sent = len(scene.server.requests)
    assert 5 <= sent <= 8
    record = json.loads(scene.store.get("cursors/tested/attempts.json") or b"")
    assert record["failures"] == sent
    assert record["not_before"] > time.time() - 60
    scene.store.replace("cursors/tested/attempts.json", json.dumps({**record, "not_before": 0}).encode())
    with pytest.raises(SinkError):
        scene.deliver(connections=4)
    assert len(scene.server.requests) == sent + 1, "several requests were sent to a receiver that was down"
    scene.store.replace("cursors/tested/attempts.json", json.dumps({**record, "not_before": 0}).encode())
    scene.server.react = lambda _: Answer()
    scene.deliver(connections=4)
    scene.assert_all_accepted()


@pytest.mark.parametrize("batch", [1, 16, 100])
@pytest.mark.parametrize("connections", [1, 4])
def test_rejected_changes_are_found_in_their_batch(scene: Scene, batch: int, connections: int) -> None:
    """Only these become dead letters; all others are delivered once, in order."""
    rejected = {scene.position(number) for number in (7, 8, 40)}

    def react(received: Received) -> Reaction:
        ids = {change["msg_id"] for change in received.changes}
        return Answer(422 if ids & {str(position) for position in rejected} else 200)

    scene.server.react = react
    with pytest.raises(PoisonError, match=r"http://localhost:\d+ rejected with 422: ") as caught:
        scene.deliver(batch=batch, connections=connections)
    assert set(caught.value.positions) <= {str(position) for position in rejected}
    scene.deliver(batch=batch, connections=connections, on_poison="dead_letter")
    assert scene.dead_letters() == rejected
    scene.assert_all_accepted(without=rejected)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("reaction", [Answer(500), Reset()], ids=str)
def test_a_change_that_fails_too_often_counts_as_rejected(scene: Scene, reaction: Reaction) -> None:
    """The tries of successive processes are added up."""
    culprit = str(scene.position(17))
    scene.server.react = lambda r: reaction if culprit in {c["msg_id"] for c in r.changes} else Answer()
    more: dict[str, Any] = {"attempts": 3, "batch": 8}
    attempts, error = 0, TailraceError("")
    while not isinstance(error, PoisonError):
        with pytest.raises(TailraceError) as caught:
            scene.deliver(**more, on_poison="stop")
        attempts, error = attempts + 1, caught.value
        assert attempts < 50, "it is tried forever"
        _end_pauses(scene)
    assert attempts > 1
    assert error.positions == (culprit,)
    assert "failed 3 times" in str(error)
    sent = len(scene.server.requests)
    with pytest.raises(SinkError):
        scene.deliver(**more, on_poison="stop")  # after an operator resumed the sink, it is tried again
    assert len(scene.server.requests) > sent
    for _ in range(50):
        _end_pauses(scene)
        with suppress(SinkError):
            scene.deliver(**more, on_poison="dead_letter")
            break
    assert scene.dead_letters() == {scene.position(17)}
    scene.assert_all_accepted(without={scene.position(17)})


def _end_pauses(scene: Scene) -> None:
    """Let the time pass that the receiver is left alone."""
    key = "cursors/tested/attempts.json"
    record = json.loads(scene.store.get(key) or b"")
    scene.store.replace(key, json.dumps({**record, "not_before": 0}).encode())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(401), "Check the credentials"),
        (Answer(403), "Check the credentials"),
        (Answer(404), "Check url, path and methods"),
        (Answer(302, {"Location": "/elsewhere"}), "Redirects are not followed"),
        (Answer(308, {"Location": "/elsewhere"}), "Redirects are not followed"),
    ],
    ids=str,
)
def test_a_receiver_that_accepts_nothing_stops_the_sink(scene: Scene, answer: Answer, words: str) -> None:
    scene.server.react = lambda _: answer
    with pytest.raises(
        SinkRefused, match=f"answered {answer.status} to the request with {scene.position(0)}"
    ) as caught:
        scene.deliver(connections=1, on_poison="dead_letter")
    assert words in caught.value.hint
    assert scene.dead_letters() == set()
    assert {received.path for received in scene.server.requests} == {"/hook/tables/public/t100"}
    scene.server.react = lambda _: Answer()
    scene.deliver()
    scene.assert_all_accepted()


def test_a_row_without_a_resource_is_rejected_alone(scene: Scene) -> None:
    """404 is about the row if the path depends on it."""
    scene.server.react = lambda received: Answer(404 if received.path == "/hook/rows/3" else 200)
    scene.deliver(path="/rows/{id}", on_poison="dead_letter")
    missing = {c.position for number, c in enumerate(scene.changes) if number % 10 == 3}
    assert scene.dead_letters() == missing


def test_a_row_that_is_deleted_again_is_delivered() -> None:
    """A DELETE whose answer was lost finds nothing the second time. The same answers to another request differ."""
    for status in (404, 410):
        assert judge(status, {}, "DELETE", by_row=True).verdict is Verdict.DELIVERED
        assert judge(status, {}, "DELETE").verdict is not Verdict.DELIVERED
        assert judge(status, {}, "PUT", by_row=True).verdict is not Verdict.DELIVERED


def test_interim_answers_are_not_taken_for_the_answer(scene: Scene) -> None:
    scene.server.interim = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    scene.server.react = _times(3, Answer(500), lambda _: True)
    scene.deliver()
    scene.assert_all_accepted()
    assert len(scene.server.requests) == len(scene.changes) + 3


def test_a_receiver_that_is_gone_pauses_the_sink(scene: Scene) -> None:
    scene.server.react = lambda _: Answer(410)
    with pytest.raises(SinkPaused, match="answered 410: it wants no more changes"):
        scene.deliver(connections=1)
    assert len(scene.server.requests) == 1


def test_idle_connections_that_the_receiver_closed(scene: Scene) -> None:
    """The next request opens another one, and nothing counts as failed."""
    scene.server.react = lambda _: Answer(200, {"connection": "close"})
    scene.deliver(connections=1)
    scene.assert_all_accepted()
    assert len(scene.server.requests) == len(scene.changes)
    assert len(scene.server.connections) >= len(scene.changes)


def test_proxies_of_the_environment_are_not_used(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    scene.deliver()
    scene.assert_all_accepted()
