"""The examples work: the trail contains who made each change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.audit.trail_follower import trailing
from tests.fixtures.postgres import Database

_EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "scheme"), [("audit_psycopg", "postgresql"), ("audit_sqlalchemy", "postgresql+psycopg")]
)
def test_example(name: str, scheme: str, database: Database, destination: Database, tmp_path: Path) -> None:
    with trailing(database, destination, tmp_path) as audited:
        url = database.url.replace("postgresql", scheme, 1)
        subprocess.run([sys.executable, _EXAMPLES / f"{name}.py", url], check=True, timeout=60)
        found = [(row["operation"], row["after"]["body"], row["context"]) for row in audited.rows("notes")]
    assert found == [
        ("INSERT", "draft", {"user": "ann", "request_id": "r-1"}),
        ("UPDATE", "final", {"user": "bob", "request_id": "r-2"}),
    ]
