"""The example receiver, which verifies signatures with an independent library, has every change once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.webhook_receiver import OTHER_SECRET, SECRET, HttpReceiver
from tests.sinks.webhook_example import ExampleReceiver
from tests.sinks.webhook_scene import Scene

from tailrace.errors import SinkRefused


def test_the_example_stores_each_change_once(tmp_path: Path) -> None:
    """Two sinks send the same changes: in batches, compressed, and one by one. Then the process is restarted."""
    with HttpReceiver() as server, ExampleReceiver(tmp_path) as example:
        scene = Scene(server, tmp_path)
        more = {"url": example.url, "path": "/"}
        with pytest.raises(SinkRefused, match="answered 401"):
            scene.deliver(**more, secret=OTHER_SECRET)
        assert not example.changes()
        scene.deliver(**more, batch=7, gzip=True)
        example.assert_matches(scene.changes)
        example.kill9()
        example.start()
        # A receiver that changes its secret accepts either of them.
        scene.deliver(**more, name="other", secret=f"{OTHER_SECRET} {SECRET}")
        example.assert_matches(scene.changes)
        assert len(example.requests()) >= len(scene.changes), "the second sink sent nothing"
        scene.deliver(**more, name="events", envelope="cloudevents", batch=7)
        scene.deliver(**more, name="sequin", envelope="sequin", batch=7)
        example.assert_matches(scene.changes)
