"""Invalidation of caches in Valkey: the keys of rows before and after each change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract.valkey_rows import connect
from tests.fixtures.postgres import Database
from tests.sinks.valkey_scene import ValkeyScene

from tailrace.embedded.process import wait_until
from tailrace.embedded.valkey import ValkeyServer
from tailrace.errors import ConfigError, PoisonError

_SETTINGS: dict[str, Any] = {"mode": "invalidate"}


@pytest.fixture
def scene(database: Database, valkey_server: ValkeyServer, tmp_path: Path) -> ValkeyScene:
    made = ValkeyScene(database, valkey_server, tmp_path)
    made.capture(
        "CREATE TABLE users (id int PRIMARY KEY, email text, n int)",
        "ALTER TABLE users REPLICA IDENTITY FULL",
        "CREATE TABLE plain (id int PRIMARY KEY, email text)",
        "INSERT INTO users VALUES (1, 'one@x', 1), (2, 'two@x', 2), (3, NULL, 3)",
        "INSERT INTO plain VALUES (1, 'one@x')",
        snapshot=None,
    )
    return made


def _fill(scene: ValkeyScene, *keys: str) -> None:
    scene.client.mset(dict.fromkeys(keys, "cached"))


def _left(scene: ValkeyScene) -> set[Any]:
    return {*scene.client.keys("*")}


def test_old_and_new_keys_are_deleted(scene: ValkeyScene) -> None:
    settings = {**_SETTINGS, "key": "user:{email}", "tables": ["public.users"]}
    with scene.stepper(**settings):
        pass  # it starts at the end of the log
    keys = ["user:one@x", "user:new@x", "user:two@x", "user:five@x", "user:other"]
    _fill(scene, *keys)
    scene.capture("UPDATE users SET email = 'new@x' WHERE id = 1", "INSERT INTO users VALUES (5, 'five@x', 5)")
    scene.deliver(**settings)
    assert _left(scene) == {b"user:two@x", b"user:other"}
    scene.capture("DELETE FROM users WHERE id = 2", "UPDATE users SET n = 0 WHERE id = 3")
    scene.deliver(**settings)
    assert _left(scene) == {b"user:other"}
    _fill(scene, "user:any", "userx:any")
    scene.capture("TRUNCATE users")
    scene.deliver(**settings)
    assert _left(scene) == {b"userx:any"}
    assert not scene.client.keys("tailrace:*")


def test_keys_are_published_once_a_batch(scene: ValkeyScene) -> None:
    settings = {**_SETTINGS, "channel": "changed", "tables": ["public.plain"]}
    with scene.stepper(**settings):
        pass
    listener = connect(scene.server).pubsub()  # type: ignore[no-untyped-call]
    listener.subscribe("changed")
    assert wait_until(lambda: listener.get_message(timeout=0.1) is not None, 10)
    scene.capture("UPDATE plain SET email = 'b'", "UPDATE plain SET id = 2, email = 'a:b'", "TRUNCATE plain")
    scene.deliver(**settings)
    found: list[Any] = []

    def has_all() -> bool:
        message = listener.get_message(timeout=0.1)
        found.extend([message["data"]] if message else [])
        return len(found) == 3

    assert wait_until(has_all, 10), found
    assert sorted(found) == [b"public:plain:*", b"public:plain:1", b"public:plain:2"]
    listener.close()


def test_old_values_must_be_known(scene: ValkeyScene) -> None:
    settings = {**_SETTINGS, "key": "user:{email}", "tables": ["public.plain"]}
    with scene.stepper(**settings):
        pass
    scene.capture("UPDATE plain SET email = 'b'")
    with pytest.raises(PoisonError, match="did not send a value of column email") as caught:
        scene.deliver(**settings)
    assert "REPLICA IDENTITY FULL" in caught.value.hint
    assert len(caught.value.positions) == 1
    with pytest.raises(ConfigError, match="has no column absent"):
        scene.deliver(**{**settings, "key": "{absent}", "start": "earliest", "name": "another"})
