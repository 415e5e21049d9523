"""The delivery engine: every sink a streaming query of its own, on one Spark session."""

from tailrace.spark.delivery.delivery import Delivery
from tailrace.spark.delivery.engine import Engine

__all__ = ["Delivery", "Engine"]
