"""Every sink that keeps rows equals the database's scan, although nobody knows which rows existed."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.capture.slatedb.database_writer import MERGE_OPERATOR, DatabaseWriter, RandomWrites
from tests.capture.slatedb.test_capture import Scene, directory, scene  # noqa: F401 (fixtures)
from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.destinations import Destination
from tests.contract.test_sinks import destination  # noqa: F401 (a fixture)

SINKS = [
    *("mirror", "staged", "history"),
    *("mysql", "mysql history", "lake", "opensearch", "valkey hash", "valkey json"),
]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("destination", "has_merges"),
    [
        *((sink, False) for sink in SINKS),
        # A version of a history belongs to a change, and so has its operand.
        *((sink, True) for sink in SINKS if "history" not in sink),
    ],
    indirect=["destination"],
)
def test_sinks_equal_the_scan(  # type: ignore[no-untyped-def]
    scene: Scene,  # noqa: F811
    directory,  # noqa: F811
    destination: Destination,  # noqa: F811
    has_merges: bool,
) -> None:
    if has_merges:
        scene = scene.with_source(merge_operator=MERGE_OPERATOR)
    driver = DeliveryDriver(destination, scene.settings.store)
    writes = RandomWrites(21, has_ttl=False, has_merges=has_merges)
    with DatabaseWriter(directory) as writer:
        writes.run(writer, 50)
        for _ in range(4):
            scene.capture()
            scene.deliver(driver)
            others = (None, None) if has_merges else (None,)  # expiry, operand
            rows = {(_text(key), _text(value), *others): 1 for key, value in writer.scan().items()}
            destination.assert_shaped("slatedb", {"users": Counter(rows)})
            writes.run(writer, 50)


def _text(value: bytes) -> bytes:
    return b"\\x" + value.hex().encode()
