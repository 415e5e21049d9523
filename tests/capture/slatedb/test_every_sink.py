"""Every sink that keeps rows equals the database's scan, although nobody knows which rows existed."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.capture.slatedb.database_writer import DatabaseWriter, RandomWrites
from tests.capture.slatedb.test_capture import Scene, directory, scene  # noqa: F401 (fixtures)
from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.destinations import Destination
from tests.contract.test_sinks import destination  # noqa: F401 (a fixture)

SINKS = [
    *("mirror", "staged", "history"),
    *("mysql", "mysql history", "lake", "opensearch", "valkey hash", "valkey json"),
]


@pytest.mark.soak
@pytest.mark.parametrize("destination", SINKS, indirect=True)
def test_sinks_equal_the_scan(scene: Scene, directory, destination: Destination) -> None:  # type: ignore[no-untyped-def] # noqa: F811
    driver = DeliveryDriver(destination, scene.settings.store)
    writes = RandomWrites(21, has_ttl=False)
    with DatabaseWriter(directory) as writer:
        writes.run(writer, 50)
        for _ in range(4):
            scene.capture()
            scene.deliver(driver)
            rows = {(_text(key), _text(value), None): 1 for key, value in writer.scan().items()}
            destination.assert_shaped("slatedb", {"users": Counter(rows)})
            writes.run(writer, 50)


def _text(value: bytes) -> bytes:
    return b"\\x" + value.hex().encode()
