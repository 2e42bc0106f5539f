"""Attempts at tasks that end when Spark has long gone on without them, for every operation and service.

Such an attempt sleeps at its first file until the operation is over: it lost its race against a copy, or Spark gave up
its machine. What it does then must not show: neither in the rows of a read that goes by commits, nor to readers like
Java's, who take every file of a completed instant.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tablekeeper.runtime import SYSTEM_RUNTIME
from tests.support.moto_server import MotoServer, moto_server
from tests.support.spark_cluster import SparkCluster, SparkWorker
from tests.support.straggler_life import OPERATIONS, Plan

WITHOUT_TASKS = {"delete_partitions"}
GIVES_UP = {
    "spark.network.timeout": "12s",
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeoutInterval": "2s",
}
TIMEOUT_S = 500.0

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
    output, errors = life.communicate(timeout=TIMEOUT_S)
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


def test_a_machine_that_spark_gave_up_adds_nothing_when_it_goes_on(
    cluster: SparkCluster, tmp_path: Path, folder: Path
) -> None:
    life = start(
        cluster, Plan(cluster.url, str(folder), str(tmp_path / "t"), spark=GIVES_UP, operations=["bulk_insert"])
    )
    frozen = machine_of(cluster, await_sleeper(life, folder))
    frozen.freeze()
    try:
        (told,) = told_by(life)
    finally:
        frozen.thaw()
    assert told == {"operation": "bulk_insert", "late": ["FencedError"], "strays": [], "has_its_rows": True}


def await_sleeper(life: subprocess.Popen[str], folder: Path) -> int:
    """The process of the attempt that sleeps."""
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while True:
        for path in folder.glob("asleep-*"):
            return int(path.name.partition("-")[2])
        assert life.poll() is None, life.communicate()
        assert clock.monotonic_s() < until_s
        clock.sleep(0.1)


def machine_of(cluster: SparkCluster, pid: int) -> SparkWorker:
    return next(worker for worker in cluster.workers if worker.process.pid == os.getsid(pid))
