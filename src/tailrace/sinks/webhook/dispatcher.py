"""Sends the requests of one batch of messages: several at a time, in order where order counts, again where that helps.

A request that fails is sent again after a growing pause, while requests that need not wait for it go on. When only
failing requests are left, the dispatcher soon ends: delivery then shows the error, and tries again by its own schedule.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, Protocol

from tailrace.errors import PoisonError, SinkError, SinkPaused, SinkRefused, TailraceError
from tailrace.http.client import NoAnswer
from tailrace.retry import delay
from tailrace.sinks.webhook import request_plan
from tailrace.sinks.webhook.answer import Judgement, Verdict
from tailrace.sinks.webhook.attempt_record import AttemptRecord
from tailrace.sinks.webhook.request_content import RequestContent, RequestMaker
from tailrace.sinks.webhook.request_plan import MessageOrder, PlannedRequest, RequestLimits

_FIRST_S: Final = 0.2
_LONGEST_S: Final = 30.0
_PATIENCE_S: Final = 5.0
"""How long failing requests are retried before the error is reported."""

_REJECTED_HINT: Final = 'Correct the receiver, or set on_poison = "dead_letter", which sets such changes aside.'


class RequestSender(Protocol):
    """Sends requests. Each thread has its own."""

    def send(self, content: RequestContent) -> tuple[int, Judgement]:
        """Return the status and what it means. Raises NoAnswer, another SinkError if nothing was sent, or a
        SinkRefused."""

    def close(self) -> None: ...


@dataclass
class _Sending:
    """A request that is not delivered yet."""

    plan: PlannedRequest
    blockers: int
    tries: int = 0
    """How often it failed for reasons of its own, also in earlier attempts."""
    failures: int = 0
    """How often it failed now, for whatever reason."""
    dependents: list[int] = field(default_factory=list)
    error: TailraceError | None = None


class Dispatcher:
    """Used once: `run` returns when everything is delivered, or raises."""

    def __init__(
        self,
        receiver: str,
        maker: RequestMaker,
        order: MessageOrder,
        limits: RequestLimits,
        attempts: int,
        record: AttemptRecord,
    ) -> None:
        """Plan the requests.

        Args:
            receiver: Its name in errors.
            maker: Makes the requests' contents.
            order: What has to stay in order.
            limits: Of a request.
            attempts: After so many failures a change counts as rejected.
            record: What earlier attempts left. Updated.
        """
        self._receiver = receiver
        self._maker = maker
        self._order = order
        self._limits = limits
        self._attempts = attempts
        self._record = record
        self._changed = threading.Condition()
        self._requests: list[_Sending] = []
        self._ready: list[int] = []
        self._delayed: list[tuple[float, int]] = []
        self._in_flight = 0
        self._failing_since: float | None = None
        self._has_ended = False
        self._fatal: BaseException | None = None
        self._rejected: dict[str, list[int]] = {}
        """The messages that the receiver will never accept, by reason."""
        for planned in request_plan.plan(order, limits):
            self._add(planned)

    def _add(self, planned: PlannedRequest) -> int:
        number = len(self._requests)
        known = self._record.tries
        tries = max(known.get(self._maker.ids[row], 0) for row in planned.rows) if known else 0
        self._requests.append(_Sending(planned, len(planned.after), tries))
        for earlier in planned.after:
            self._requests[earlier].dependents.append(number)
        if not planned.after:
            heapq.heappush(self._ready, number)
        return number

    def run(self, senders: Sequence[RequestSender], threads: Executor) -> None:
        """Deliver everything, with one thread for each sender; this one is the first of them."""
        helpers = [threads.submit(self._work, sender) for sender in senders[1 : len(self._requests)]]
        try:
            self._work(senders[0])
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()
            for helper in helpers:
                helper.result()
        self._raise_if_incomplete()

    def _raise_if_incomplete(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self._rejected:
            raise self._poison()
        failing = [sending for sending in self._requests if sending.error is not None]
        if failing:
            error = failing[0].error
            assert error is not None
            left = sum(len(sending.plan.rows) for sending in failing)
            first = self._maker.position(failing[0].plan.rows[0])
            raise SinkError(f"{error}: {left:,} changes from {first} on are not delivered", error.hint)
        wait_s = self._record.circuit.wait_s(time.time())
        if self._ready or self._delayed:
            raise SinkError(
                f"{self._receiver}: nothing is sent for {wait_s:.0f} s, after {self._record.circuit.failures} failures",
                "Retrying.",
            )

    def _poison(self) -> PoisonError:
        reason, rows = next(iter(self._rejected.items()))
        rows.sort()
        positions = tuple(dict.fromkeys(self._maker.position(row) for row in rows))
        # The others may be innocent. And if an operator resumes the sink, this one starts anew.
        self._record.tries.clear()
        what = positions[0] if len(positions) == 1 else f"{len(positions):,} changes from {positions[0]} on"
        return PoisonError(f"{self._receiver} {reason}: {what}", _REJECTED_HINT, positions)

    # In the threads.

    def _work(self, sender: RequestSender) -> None:
        try:
            while (number := self._next()) is not None:
                self._attempt(sender, number)
        except BaseException as error:
            with self._changed:
                self._fatal = self._fatal or error
                self._has_ended = True
                self._changed.notify_all()

    def _attempt(self, sender: RequestSender, number: int) -> None:
        rows = self._requests[number].plan.rows
        status, judgement = 0, Judgement(Verdict.UNAVAILABLE)
        error: SinkError | None = None
        try:
            status, judgement = sender.send(self._maker.make(rows))
        except NoAnswer as failure:
            error, judgement = failure, Judgement(Verdict.FAILED)
        except SinkError as failure:
            error = failure
        with self._changed:
            self._in_flight -= 1
            self._record_result(number, status, judgement, error)
            self._changed.notify_all()

    def _next(self) -> int | None:
        """Wait for a request that may be sent. None: there will be none."""
        with self._changed:
            while not self._has_ended:
                now = time.time()
                while self._delayed and self._delayed[0][0] <= now:
                    heapq.heappush(self._ready, heapq.heappop(self._delayed)[1])
                circuit = self._record.circuit
                wait_s = circuit.wait_s(now)
                is_free = not wait_s and not (circuit.is_half_open and self._in_flight)
                if self._ready and is_free:
                    self._in_flight += 1
                    return heapq.heappop(self._ready)
                if not self._ready and self._delayed:
                    wait_s = max(wait_s, self._delayed[0][0] - now)
                if not self._in_flight and (not (self._ready or self._delayed) or self._is_hopeless(now, wait_s)):
                    self._has_ended = True
                    self._changed.notify_all()
                    return None
                self._changed.wait(wait_s or None)
            return None

    def _is_hopeless(self, now: float, wait_s: float) -> bool:
        """Whether to leave the rest to the next attempt."""
        since = self._failing_since
        return wait_s > _PATIENCE_S or (since is not None and now - since > _PATIENCE_S)

    def _record_result(self, number: int, status: int, judgement: Judgement, error: SinkError | None) -> None:
        sending, record, now = self._requests[number], self._record, time.time()
        ids = [self._maker.ids[row] for row in sending.plan.rows]
        sending.error = None
        if judgement.verdict is Verdict.DELIVERED:
            record.circuit.record_success()
            record.delivered.update(ids)
            if record.tries or record.most:
                for id in ids:
                    record.tries.pop(id, None)
                    record.most.pop(id, None)
            self._failing_since = None
            self._release(sending)
            return
        position = self._maker.position(sending.plan.rows[0])
        answered = f"{self._receiver} answered {status}"
        match judgement.verdict:
            case Verdict.REJECTED:
                record.circuit.record_success()
                self._give_up(number, f"rejected with {status}")
                return
            case Verdict.DENIED:
                self._end(SinkRefused(f"{answered} to the request with {position}", _denied_hint(status)))
                return
            case Verdict.GONE:
                self._end(
                    SinkPaused(
                        f"{answered}: it wants no more changes",
                        "Once it does, continue with `tailrace sink resume`.",
                    )
                )
                return
            case Verdict.FAILED:
                sending.tries += 1
        sending.failures += 1
        sending.error = error or SinkError(answered, "Retrying. See the receiver's log.")
        record.circuit.record_failure(now, judgement.wait_s)
        if sending.tries:
            record.tries.update(dict.fromkeys(ids, sending.tries))
        self._failing_since = self._failing_since or now
        if sending.tries >= self._attempts:
            self._give_up(number, f"failed {self._attempts} times" + (f", last with {status}" if status else ""))
        else:
            heapq.heappush(self._delayed, (now + delay(sending.failures - 1, _FIRST_S, _LONGEST_S), number))

    def _release(self, sending: _Sending) -> None:
        for dependent in sending.dependents:
            self._requests[dependent].blockers -= 1
            if not self._requests[dependent].blockers:
                heapq.heappush(self._ready, dependent)

    def _give_up(self, number: int, reason: str) -> None:
        """Set a change aside. Of several, only one may be the reason: send the halves."""
        sending = self._requests[number]
        sending.error = None
        if len(sending.plan.rows) == 1:
            self._rejected.setdefault(reason, []).extend(sending.plan.rows)
            return
        first, second = request_plan.halves(self._order, sending.plan, self._limits)
        for half in (first, second):
            ids = [self._maker.ids[row] for row in half.rows]
            self._record.most.update(dict.fromkeys(ids, len(ids)))
            if sending.tries:
                # It has failed often enough: one more failure shows which half is faulty.
                self._record.tries.update(dict.fromkeys(ids, self._attempts - 1))
        numbers = [self._add(first)]
        second.after = {numbers[0]} if second.after else set()
        numbers.append(self._add(second))
        for added in numbers:
            self._requests[added].dependents += sending.dependents
        for dependent in sending.dependents:
            self._requests[dependent].blockers += 1  # two instead of one

    def _end(self, error: TailraceError) -> None:
        self._fatal = self._fatal or error
        self._has_ended = True


def _denied_hint(status: int) -> str:
    match status:
        case 401 | 403 | 407:
            return "Check the credentials in the sink's settings, then `tailrace sink resume`."
        case 404 | 405:
            return "Check url, path and methods in the sink's settings, then `tailrace sink resume`."
    return "Redirects are not followed: set url to the final address, then `tailrace sink resume`."
