"""Attempts at tasks that end when Spark has long gone on without them, for every operation and service.

Spark speculates, and the attempt that lost its race sleeps at its first file until the operation is over. What it does
then must not show: neither in the rows of a read that goes by commits, nor to readers like Java's, who take every file
of a completed instant.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.moto_server import MotoServer, moto_server
from tests.support.spark_cluster import SparkCluster
from tests.support.straggler_life import OPERATIONS, Plan

WITHOUT_TASKS = {"delete_partitions"}
PATIENCE_S = 500.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server() -> Iterator[MotoServer]:
    with moto_server() as running:
        running.create_bucket("lake")
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "stragglers"
    made.mkdir()
    return made


def start(cluster: SparkCluster, plan: Plan) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.straggler_life", plan.encode()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(cluster.environment),
        text=True,
    )


def told_by(life: subprocess.Popen[str]) -> list[dict[str, Any]]:
    output, errors = life.communicate(timeout=PATIENCE_S)
    assert life.returncode == 0, output + errors[-3000:]
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("place", ["local", "s3"])
def test_attempts_that_lost_their_race_never_show(
    cluster: SparkCluster, server: MotoServer, tmp_path: Path, folder: Path, place: str
) -> None:
    if place == "local":
        plan = Plan(cluster.url, str(folder), str(tmp_path / "t"))
    else:
        plan = Plan(cluster.url, str(folder), "s3://lake/t", storage_options=server.options, first_after=True)
    told = told_by(start(cluster, plan))
    assert [each["operation"] for each in told] == list(OPERATIONS)
    for each in told:
        name = each["operation"]
        assert each["late"] == ([] if name in WITHOUT_TASKS else ["FencedError"]), name
        assert each["strays"] == [], name
        assert each["has_its_rows"], name
