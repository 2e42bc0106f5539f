"""What is shipped for running the service: it parses, names real options and metrics, and pins what it uses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from tablekeeper import Table
from tablekeeper.cli.serve import serve_commands
from tablekeeper.runtime import SYSTEM_RUNTIME
from tests.support.served import running_service

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
YAMLS = sorted(path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*.y*ml"))
METRIC = re.compile(r"tablekeeper_\w+")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEPLOY / "grafana" / "tablekeeper.json").read_text())
    return loaded


def images() -> Iterator[str]:
    yield from re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    for name in YAMLS:
        yield from re.findall(r"^\s*image: (\S+)", (DEPLOY / name).read_text(), re.MULTILINE)


def serve_options() -> set[str]:
    command = get_command(serve_commands)
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("name", YAMLS)
def test_a_yaml_file_parses_into_something(name: str) -> None:
    assert all(isinstance(each, dict) and each for each in documents(name))


def test_images_are_pinned() -> None:
    found = list(images())
    assert len(found) >= 6
    assert [image for image in found if ":" not in image or image.endswith(":latest")] == []


def test_the_compose_file_refers_to_what_it_defines_and_to_files_that_exist() -> None:
    (compose,) = documents("compose.yaml")
    services = compose["services"]
    assert set(services) == {"service", "database", "prometheus", "grafana"}
    for service in services.values():
        assert service.get("network_mode", "service:database").removeprefix("service:") in services
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            is_there = (DEPLOY / source).exists() if source.startswith("./") else source in compose["volumes"]
            assert is_there or source.startswith("${"), source


def test_the_kubernetes_objects_select_the_pods_of_the_deployment() -> None:
    objects = {each["kind"]: each for each in documents("kubernetes/tablekeeper.yaml")}
    pod = objects["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert objects["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    (container,) = pod["spec"]["containers"]
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert {argument.partition("=")[0] for argument in container["args"]} <= serve_options()


@pytest.mark.parametrize("name", ["Dockerfile", "tablekeeper.service", "compose.yaml"])
def test_options_are_those_of_the_command(name: str) -> None:
    lines = [
        line for line in (DEPLOY / name).read_text().splitlines() if re.match(r"ENTRYPOINT|ExecStart|\s+command", line)
    ]
    (line,) = lines
    used = set(re.findall(r"--[a-z][a-z-]*", line))
    assert used
    assert used <= serve_options()


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd checks its units itself, where there is one"
)
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "tablekeeper.service").read_text()
    program = "/usr/local/tablekeeper/bin/tablekeeper"
    assert program in text
    unit = tmp_path / "tablekeeper.service"
    # The program is not installed here; everything else is as it is.
    unit.write_text(text.replace(program, shutil.which("true") or "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert "tablekeeper.service" not in checked.stderr, checked.stderr


def test_the_dashboard_asks_for_metrics_that_a_service_exports_after_some_work(
    tmp_path: Path, lake: Path, table: Table
) -> None:
    clock = SYSTEM_RUNTIME.clock
    with running_service(tmp_path / "service", allow=lake) as served:
        client = served.client()
        named = {"db_name": "db", "table_name": "trips", "base_path": str(lake / "trips")}
        client.post("/v1/tables", {**named, "policy": {"services": []}})
        client.post("/v1/tables/db/trips/run/compaction")
        until_s = clock.monotonic_s() + 120
        while 'tablekeeper_attempts_total{action="compaction",outcome="completed"} 1.0' not in client.get("/metrics"):
            assert clock.monotonic_s() < until_s, client.get("/metrics")
            clock.sleep(0.2)
        text = client.get("/metrics")
    assert 'tablekeeper_schedule_delay_seconds_count{action="compaction"} 1.0' in text
    assert 'tablekeeper_submission_seconds_count{engine="arrow"} 1.0' in text
    # A gauge without a value at the moment is declared all the same.
    names = set(re.findall(r"^(?:# TYPE )?(tablekeeper_\w+)", text, re.MULTILINE))
    wanted = {
        name
        for panel in dashboard()["panels"]
        for target in panel["targets"]
        for name in METRIC.findall(target["expr"])
    }
    assert len(wanted) >= 10
    assert wanted - names == set()


def test_the_panels_do_not_lie_on_each_other_and_have_numbers_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
