"""The example's settings with another database, log and PostgreSQL: the mirror equals the scan."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.capture.slatedb.database_writer import DatabaseWriter
from tests.capture.slatedb.test_capture import Scene, directory, scene  # noqa: F401 (fixtures)
from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.destinations import Mirror
from tests.fixtures.postgres import Database

from tailrace import settings

_EXAMPLE = Path(__file__).parents[3] / "examples" / "slatedb_to_postgres.toml"
_WHEN = datetime(2026, 2, 3, 4, 5, 6, 70000, UTC)


def test_the_example_mirrors_a_database(scene: Scene, directory: Path, database: Database) -> None:  # noqa: F811
    example = settings.load(_EXAMPLE, environ={})
    assert example.slatedb is not None
    own = scene.with_source(value=example.slatedb.value, name=example.slatedb.name)
    (sink,) = example.sinks
    driver = DeliveryDriver(Mirror(database), own.settings.store, **dict(sink) | {"url": database.url})

    def assert_mirrored(scan: dict[bytes, bytes]) -> None:
        own.capture()
        own.deliver(driver)
        with database.connect() as connection:
            rows = connection.execute("SELECT key, value, name, email, created_at FROM slatedb.users").fetchall()
        assert {bytes(key): (bytes(value), *columns) for key, value, *columns in rows} == {
            key: (value, *_columns(value)) for key, value in scan.items()
        }

    with DatabaseWriter(directory) as writer:
        writer.put(b"table", _value("Ada"))
        writer.put(b"gone", _value("Bo\u00e9"))
        writer.flush_table()
        assert_mirrored(writer.scan())
        writer.delete(b"gone")
        writer.put(b"wal", _value("Cy"))
        writer.flush()
        assert_mirrored(writer.scan())


def _value(name: str) -> bytes:
    return json.dumps({"name": name, "email": f"{name}@example.org", "created_at": _WHEN.isoformat()}).encode()


def _columns(value: bytes) -> tuple[Any, ...]:
    fields = json.loads(value)
    return fields["name"], fields["email"], datetime.fromisoformat(fields["created_at"])
