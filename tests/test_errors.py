"""Every error can be pickled, because errors cross process boundaries in Spark."""

from __future__ import annotations

import pickle

import pytest

from tailrace import errors
from tailrace.errors import TailraceError

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, TailraceError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_pickles_with_message_and_hint(kind: type[TailraceError]) -> None:
    error = kind("the message", "the hint")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.message, again.hint, again.retry) == (
        "the message",
        "the message",
        "the hint",
        kind.retry,
    )


def test_only_temporary_errors_are_retried() -> None:
    assert {c.__name__ for c in CLASSES if c.retry} == {"SourceError", "StoreError", "SinkError"}


def test_the_docstring_lists_every_class() -> None:
    documented = {line.split()[1] for line in (errors.__doc__ or "").splitlines() if line.strip()[:1] in ("├", "└")}
    assert documented == {c.__name__ for c in CLASSES} - {"TailraceError"}


def test_a_message_with_its_hint_are_sentences() -> None:
    assert TailraceError("the store refused it.", "check the key").with_hint == "the store refused it. Check the key"
    assert TailraceError("no").with_hint == "no"
