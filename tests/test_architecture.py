"""Imports follow the layers, and capture stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tailrace"

LAYERS: list[set[str]] = [
    {"errors"},
    {"background", "maven", "owned_directory", "quantity", "rate", "retry", "stored_json", "text"},
    {"change", "column_name", "finding", "images", "log_rows", "types", "settings"},
    {"store", "pgoutput", "postgres", "slatedb", "http"},
    {"log"},
    {"state"},
    {"capture", "delivery"},
    {"lake", "sinks"},
    {"spark", "ops", "query", "audit", "recovery", "verify"},
    {"bridge"},
    {"embedded"},
    {"cli"},
]
"""Bottom up: a package imports only from its own layer and those before it."""


def _package(module: str) -> str:
    return module.split(".")[1]


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def _imports(path: Path) -> set[str]:
    found = set()
    for node in _nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tailrace."):
            found.add(_package(node.module))
        elif isinstance(node, ast.ImportFrom) and node.module == "tailrace":
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(_package(alias.name) for alias in node.names if alias.name.startswith("tailrace."))
    return found


MODULES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.stem not in ("__init__", "__main__"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    relative = path.relative_to(SOURCE)
    own = relative.parts[0].removesuffix(".py")
    layer = next(i for i, names in enumerate(LAYERS) if own in names)
    allowed = set().union(*LAYERS[: layer + 1])
    assert _imports(path) <= allowed


SINKS = sorted(p.parent for p in (SOURCE / "sinks").glob("*/sink.py"))


@pytest.mark.parametrize("sink", SINKS, ids=lambda p: p.name)
def test_sinks_do_not_import_each_other(sink: Path) -> None:
    others = {f"tailrace.sinks.{other.name}" for other in SINKS if other != sink}
    found = {
        node.module
        for path in sink.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    assert not [module for module in found for other in others if f"{module}.".startswith(f"{other}.")]


PROTOCOL = {"tailrace.pgoutput.message", "tailrace.pgoutput.framing", "tailrace.pgoutput.decoder"}
PROTOCOL_READERS = (
    *("pgoutput/", "log/", "capture/postgres/", "recovery/log_moment.py"),
    "capture/slatedb/bootstrap.py",  # a snapshot's rows pass through the same messages as the stream's
    "sinks/database/postgresql/table_query.py",  # reads COPY
)


def test_only_the_log_and_capture_parse_pgoutput() -> None:
    """All others get rows and columns, whatever the source."""
    readers = {
        str(path.relative_to(SOURCE))
        for path in MODULES
        for node in _nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        if name in PROTOCOL
    }
    assert [reader for reader in sorted(readers) if not reader.startswith(PROTOCOL_READERS)] == []
    assert all(any(reader.startswith(known) for reader in readers) for known in PROTOCOL_READERS)


def test_capture_imports_nothing_heavy() -> None:
    code = "import sys, tailrace.cli.capture; print({'pyspark', 'numba', 'duckdb', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"set()\n"


def test_import_of_the_package_is_light() -> None:
    """`from tailrace import WalReader` loads the compiler only when it reads."""
    code = (
        "import sys, tailrace; assert not {'pyarrow', 'numpy', 'obstore'} & set(sys.modules);"
        "tailrace.WalReader; sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_only_kernels_import_numba() -> None:
    users = {p.name for p in MODULES if "import numba" in p.read_text() or "from numba" in p.read_text()}
    assert users == {"kernel.py"}
