"""Makes `tests/slatedb/data` again: `python -m tests.slatedb.make_data`. It needs PyPI.

Each folder is the WAL that one version of SlateDB wrote with one codec. Versions before 0.11 write format version 1 in
the order of keys, and their binding has no codecs. Versions before 0.14 write fences that are not empty.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = Path(__file__).parent / "data"
WRITERS = {
    "0.10.0": ("none",),
    "0.11.1": ("snappy",),
    "0.12.1": ("zlib",),
    "0.13.1": ("lz4",),
    "0.14.1": ("zstd",),
    "0.15.0": ("snappy",),
    "0.16.0": ("zlib",),
    "0.17.0": ("none", "lz4"),
}


def main() -> None:
    shutil.rmtree(DATA, ignore_errors=True)
    for version, codecs in WRITERS.items():
        with tempfile.TemporaryDirectory() as packages:
            install = ["pip", "install", "--quiet", "--no-deps", "--target", packages, f"slatedb=={version}"]
            subprocess.run([sys.executable, "-m", *install], check=True)
            for codec in codecs:
                _write(packages, DATA / f"{version}-{codec}", codec)


def _write(packages: str, target: Path, codec: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        script = Path(__file__).with_name("fixed_write.py")
        environment = os.environ | {"PYTHONPATH": packages}
        subprocess.run([sys.executable, script, directory, codec], env=environment, check=True)
        shutil.copytree(Path(directory) / "db" / "wal", target / "wal")


if __name__ == "__main__":
    main()
