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
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from tests.fixtures.postgres import Database
from tests.ops.test_http import HEALTHY, SINK, TIME, FakeService

from tailrace import settings
from tailrace.capture.postgres.uncaptured import UncapturedTable
from tailrace.change import Lsn
from tailrace.log.reader import LogReader
from tailrace.ops import prometheus
from tailrace.ops.http import routes
from tailrace.ops.status import ArchiveStatus, CaptureStatus, RecoveryStatus
from tailrace.sinks import from_settings
from tailrace.store import Store
from tailrace.verify.record import VerificationRecord

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


def served_metrics() -> dict[str, set[str]]:
    """The names of all metrics, each with its labels, from a status in which every value is known."""
    lsn, tables = Lsn(7), (UncapturedTable(1, "public", "t", "", ""),)
    recovery = RecoveryStatus("slot", 1, lsn, 1, TIME, lsn, True, 1, "b", "full", TIME, TIME, "equal", lsn, 1, 1, 1.0)
    loading = replace(SINK, latency_seconds=1.0, seal_latency_seconds=1.0, load_rows=1, load_total_rows=2)
    overview = replace(
        HEALTHY,
        capture=replace(HEALTHY.capture or CaptureStatus("streaming"), uncaptured=tables),
        sinks=[replace(loading, load_seconds_left=1.0, last_batch_seconds=1.0)],
        archive=ArchiveStatus("streaming"),
        recovery=recovery,
        verified=[VerificationRecord("lake", TIME, lsn, 1, 2, 3, 4, 5.0)],
    )
    served: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(\w+)(\{.*\})? ", prometheus.render(overview), re.MULTILINE):
        served.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return served


def expressions(board: Any) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
            yield re.sub(r"\{\{(\w+)\}\}", r"by (\1)", target["legendFormat"])
    for variable in board["templating"]["list"][1:]:
        yield variable["query"]["query"]


def test_alerts_and_board_use_metrics_and_labels_that_exist() -> None:
    served = served_metrics()
    assert len(served) > 60
    alerts = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    board = json.loads((DEPLOY / "grafana/tailrace.json").read_text())
    used = [alert["expr"] for alert in alerts if alert["alert"] != "TailraceDown"]
    for text in (*used, *expressions(board)):
        for name, labels in re.findall(r"\b(tailrace_\w+)(\{[^}]*\})?", text):
            assert name in served, text
            assert set(re.findall(r"(\w+)=", labels)) <= served[name] | {"job", "instance"}, text
        for labels in re.findall(r"\b(?:by|on) *\(([^)]*)\)", text):
            assert set(re.split(r", *", labels)) <= {"instance", "sink", "state", "operation"}, text
    hinted = {label for alert in alerts for label in re.findall(r"\$labels\.(\w+)", str(alert["annotations"]))}
    assert hinted <= {"sink", "instance"}


def test_every_alert_is_tested() -> None:
    alerts = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    *_, wrong = yaml.safe_load((DEPLOY / "prometheus/alerts_test.yml").read_text())["tests"]
    (fires,) = wrong["promql_expr_test"]
    fired = {re.sub(r'.*"(\w+)".*', r"\1", sample["labels"]) for sample in fires["exp_samples"]}
    assert fired == {alert["alert"] for alert in alerts}


def test_the_board_is_what_grafana_reads() -> None:
    """Read and written by Grafana's own schema, nothing is missing: a field that it does not know would be."""
    plugins.register_default_plugins()
    board = json.loads((DEPLOY / "grafana/tailrace.json").read_text())
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert list(_lost(board, known)) == []
    board["panels"][0]["fieldConfig"]["defaults"]["units"] = "s"
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert list(_lost(board, known)) == ["/panels/0/fieldConfig/defaults/units"]


def _lost(given: Any, known: Any, path: str = "") -> Iterator[str]:
    """The places of what is given and not known."""
    match given:
        case dict() if isinstance(known, dict):
            for name, value in given.items():
                yield from _lost(value, known[name], f"{path}/{name}") if name in known else [f"{path}/{name}"]
        case list() if isinstance(known, list) and len(given) == len(known):
            for number, pair in enumerate(zip(given, known, strict=True)):
                yield from _lost(*pair, f"{path}/{number}")
        case _ if given != known:
            yield path


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((DEPLOY / "grafana/tailrace.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_alerts_fire_when_they_should() -> None:
    promtool = tool("promtool", "prometheus")
    run(promtool, "check", "rules", DEPLOY / "prometheus/alerts.yml")
    assert "SUCCESS" in run(promtool, "test", "rules", DEPLOY / "prometheus/alerts_test.yml")


def test_expressions_of_the_board_are_valid(tmp_path: Path) -> None:
    promtool = tool("promtool", "prometheus")
    found = [
        text.replace("$__rate_interval", "1m")
        for panel in json.loads((DEPLOY / "grafana/tailrace.json").read_text())["panels"]
        for text in (target["expr"] for target in panel["targets"])
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
