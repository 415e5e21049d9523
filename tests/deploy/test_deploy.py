"""What is in `deploy/`: it is valid for its own linters, and agrees with what Tailrace serves and accepts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.postgres import Database
from tests.ops.test_http import HEALTHY, FakeService

from tailrace import settings
from tailrace.log.reader import LogReader
from tailrace.ops import prometheus
from tailrace.ops.http import routes
from tailrace.ops.status import ArchiveStatus
from tailrace.sinks import from_settings
from tailrace.store import Store

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = Path(sys.executable).parent
INSTRUCTION = re.compile(r"^(FROM|COPY|RUN|USER|ARG) +((?:\\\n|.)+)$", re.MULTILINE)


def run(*command: str | Path, **options: Any) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=options.pop("cwd", ROOT),
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return f"{done.stdout}{done.stderr}"


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian's package {package})")
    return found


def served_metrics() -> set[str]:
    """The names of all metrics, from a status in which every value is known."""
    overview = replace(HEALTHY, archive=ArchiveStatus("streaming"))
    return set(re.findall(r"^# TYPE (\w+)", prometheus.render(overview), re.MULTILINE))


def expressions(board: Any) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def test_alerts_and_board_use_metrics_that_exist() -> None:
    served = served_metrics()
    assert len(served) > 30
    alerts = (DEPLOY / "prometheus/alerts.yml").read_text()
    board = (DEPLOY / "grafana/tailrace.json").read_text()
    for text in (alerts, board):
        used = set(re.findall(r"\btailrace_\w+", text))
        assert used
        assert used <= served


def test_alerts_fire_when_they_should() -> None:
    promtool = tool("promtool", "prometheus")
    run(promtool, "check", "rules", DEPLOY / "prometheus/alerts.yml")
    assert "SUCCESS" in run(promtool, "test", "rules", DEPLOY / "prometheus/alerts_test.yml")


def test_expressions_of_the_board_are_valid(tmp_path: Path) -> None:
    promtool = tool("promtool", "prometheus")
    found = [
        text.replace("$__rate_interval", "1m")
        for text in expressions(json.loads((DEPLOY / "grafana/tailrace.json").read_text()))
    ]
    assert len(found) > 10
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(found)]
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    run(promtool, "check", "rules", tmp_path / "board.yml")


def test_manifests_are_valid_and_fit_together() -> None:
    folder = DEPLOY / "kubernetes"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == sorted(
        path.name for path in folder.glob("*.yaml") if path.name != "kustomization.yaml"
    )
    run(TOOLS / "kubernetes-validate", "--strict", *(folder / name for name in kustomization["resources"]))
    paths = {route.path for route in routes(FakeService().service())}
    for name in kustomization["resources"]:
        for resource in yaml.safe_load_all((folder / name).read_text()):
            if resource["kind"] != "Deployment":
                continue
            pod = resource["spec"]["template"]
            assert resource["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
            (container,) = pod["spec"]["containers"]
            probed = {
                probe["httpGet"]["path"]
                for probe in container.values()
                if isinstance(probe, dict) and "httpGet" in probe
            }
            assert probed <= paths
            assert pod["spec"]["securityContext"]["runAsUser"] == image_user()


def test_the_settings_of_the_manifests_are_accepted() -> None:
    secrets = {"PGPASSWORD": "x", "TAILRACE_HTTP_TOKEN": "x", "TAILRACE_QUERY_USERS_ANALYST": "x"}
    found = settings.load(DEPLOY / "kubernetes/tailrace.toml", secrets)
    assert found.http.token
    assert found.query.users == {"analyst": "x"}
    assert [sink.name for sink in from_settings(found, secrets)] == ["lake"]


def image_user() -> int:
    (user,) = [text for name, text in instructions() if name == "USER"]
    return int(user)


def instructions() -> list[tuple[str, str]]:
    return INSTRUCTION.findall((DEPLOY / "docker/Dockerfile").read_text())


def test_the_dockerfile_has_no_faults() -> None:
    assert run(TOOLS / "hadolint", DEPLOY / "docker/Dockerfile") == ""
    assert image_user() != 0


def test_the_commands_of_the_image_install_what_captures(tmp_path: Path, database: Database) -> None:
    """The build's own commands, in an empty folder: no engine for images is needed."""
    build = instructions()[: [name for name, _ in instructions()].index("FROM", 1)]
    context, image = tmp_path / "context", tmp_path / "opt/tailrace"
    context.mkdir()
    for *sources, target in (text.split() for name, text in build if name == "COPY"):
        for source in sources:
            place = context / target / source if target == "./" else context / target
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(ROOT / source, place)
    bare = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")} | {"EXTRAS": ""}
    (command,) = [text for name, text in build if name == "RUN"]
    run("sh", "-c", command.replace("/opt/tailrace", str(image)), cwd=context, env=bare)

    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    store = f"file://{tmp_path}/log"
    environment = bare | {"TAILRACE_SOURCE_URL": database.url, "TAILRACE_STORE_URL": store}
    tailrace = image / "bin/tailrace"
    run(tailrace, "capture", "--until-lsn", "current", env=environment, cwd=tmp_path)
    database.execute("INSERT INTO t VALUES (2)")
    run(tailrace, "capture", "--until-lsn", "current", env=environment, cwd=tmp_path)
    captured = [c for c in LogReader(Store.open(store)).changes() if c.operation == "INSERT"]
    assert [change.after for change in captured] == [{"id": 2}]
    deliver = subprocess.run(
        [tailrace, "deliver", "--once"], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert deliver.returncode != 0
    assert "Traceback" not in deliver.stderr


def test_the_systemd_unit_is_valid(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "systemd")
    unit = (DEPLOY / "systemd/tailrace.service").read_text()
    assert "KillMode=mixed" in unit, "Java must outlive the step"
    (tmp_path / "tailrace.service").write_text(unit.replace("/opt/tailrace/bin/tailrace", str(TOOLS / "tailrace")))
    run(analyze, "verify", "--recursive-errors=no", tmp_path / "tailrace.service")
