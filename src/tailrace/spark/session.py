"""The Spark session: tuned for short local ticks, or attached to a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = Path(__file__).with_name("log4j2.properties")

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG.as_uri()}",
}


def session(
    name: str = "tailrace", master: str | None = None, *, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on `master`, or on this machine's processors where there is none."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master or "local[*]")
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
