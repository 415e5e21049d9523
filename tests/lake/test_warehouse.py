"""Locations in a warehouse, and those outside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import SinkDiverged, SinkError
from tailrace.lake.options import IcebergOptions
from tailrace.lake.warehouse import Warehouse


def test_a_table_outside_the_warehouse_stops_the_sink(tmp_path: Path) -> None:
    """A retry cannot move the table back, so the error must not be one that delivery retries."""
    warehouse = Warehouse(IcebergOptions(warehouse=(tmp_path / "lake").as_uri()))
    for access in (
        lambda location: warehouse.put(location, b""),
        warehouse.get,
        lambda location: warehouse.get_range(location, 0, 1),
        warehouse.open,
    ):
        with pytest.raises(SinkDiverged, match="is not in the warehouse") as raised:
            access(f"{tmp_path}/elsewhere/public/orders/a.parquet")
        assert not raised.value.retry
        assert "sink rewind … snapshot" in raised.value.hint


def test_a_missing_file_is_retried(tmp_path: Path) -> None:
    warehouse = Warehouse(IcebergOptions(warehouse=(tmp_path / "lake").as_uri()))
    with pytest.raises(SinkError, match="is missing") as raised:
        warehouse.get(f"{tmp_path}/lake/public/orders/a.parquet")
    assert raised.value.retry
