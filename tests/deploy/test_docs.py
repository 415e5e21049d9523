"""The documentation as a site: every link and anchor leads somewhere, and every page is in the navigation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import tailrace
import tailrace.spark

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("mkdocs"), "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "site/reference/index.html").read_text()
    public = [f"{module.__name__}.{name}" for module in (tailrace, tailrace.spark) for name in module.__all__]
    for name in (*public, "tailrace.delivery.contract.BaseSink", "tailrace.errors.TailraceError"):
        assert f'id="{name}' in reference, f"{name} is in the reference, made from its docstring"


def test_links_of_the_files_beside_the_site() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        links = [link for link in LINK.findall((ROOT / name).read_text()) if "://" not in link]
        for link in links:
            assert (ROOT / link).exists(), f"{name}: {link}"


def test_pages_that_the_code_names_exist() -> None:
    pages = {
        page for path in (ROOT / "src").rglob("*.py") for page in re.findall(r"docs/[a-z/-]+\.md", path.read_text())
    }
    assert pages, "messages name pages of the documentation"
    assert [page for page in sorted(pages) if not (ROOT / page).exists()] == []


def test_the_newest_release_notes_are_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(
        r"^## (\S+) \((unreleased|\d{4}-\d{2}-\d{2})\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert newest is not None
    assert newest[1] == version
