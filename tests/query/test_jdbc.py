"""pgjdbc, the driver of most BI tools; skipped without a JDK or if the driver cannot be downloaded."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.query.conftest import QueryStack

_JAR = "postgresql-42.7.8.jar"
_URL = f"https://repo1.maven.org/maven2/org/postgresql/postgresql/42.7.8/{_JAR}"
_JAVA = shutil.which("javac") and shutil.which("java")


@pytest.fixture(scope="module")
def jar() -> Path:
    path = Path(tempfile.gettempdir()) / "tailrace-jars" / _JAR
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        draft = path.with_suffix(".part")
        try:
            with urllib.request.urlopen(_URL, timeout=20) as answer:
                draft.write_bytes(answer.read())
        except OSError as error:
            pytest.skip(f"cannot download pgjdbc: {error}")
        draft.rename(path)
    return path


@pytest.mark.soak
@pytest.mark.skipif(_JAVA is None, reason="no JDK on this machine")
@pytest.mark.parametrize("mode", ["extended", "simple"])
def test_jdbc_metadata_statements_and_cursors(stack: QueryStack, jar: Path, mode: str) -> None:
    lines = _run(jar, f"127.0.0.1:{stack.server.port}/shop", mode)
    database = conninfo_to_dict(stack.database.url)
    user, port = str(database["user"]), database["port"]
    expected = _run(jar, f"127.0.0.1:{port}/{stack.database.name}", mode, user)
    start = next(n for n, line in enumerate(expected) if line.startswith("keywords "))
    assert lines[start : len(expected)] == expected[start:]
    row = "395.95 2025-01-02T12:05:26.250Z note 5"
    assert lines[:start] + lines[len(expected) :] == [
        "table customers who buys", "table empty null", "table items null", "table kinds null", "table orders null",
        "column order_id int8", "column line int4", "column price numeric", "column weight float4",
        "key order_id 1", "key line 2",
        row, row, "count 3", "fetched 20000", "42P01",
    ]  # fmt: skip


def _run(jar: Path, address: str, mode: str, *user: str) -> list[str]:
    """The program's output. With a user, it reads only metadata: as of the source."""
    program = Path(__file__).with_name("Jdbc.java")
    url = f"jdbc:postgresql://{address}"
    command = [str(_JAVA), "-XX:TieredStopAtLevel=1", "-cp", str(jar), str(program), url, mode, *user]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()
