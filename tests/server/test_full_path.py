"""The real service as its users have it: started by its command, told of tables and commits over HTTP, left alone."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tablekeeper.runtime import SYSTEM_RUNTIME
from tests.support.table_builder import TableBuilder, rows_of, trips

TIMEOUT_S = 200.0
POLICY = {
    "services": ["compaction", "clustering", "clean"],
    "compact_after_commits": 3,
    "cluster_after_commits": 6,
    "clean_after_commits": 8,
    "keep_commits": 1,
    "order_by": ["fare"],
}


class Running:
    """A service that listens, with the lake that it may touch."""

    def __init__(self, lake: Path, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "serve.log"
        command = f"-m tablekeeper serve --allow {lake} --engine arrow --port {port} --work-dir {folder / 'service'}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, *command.split()], stdout=log, stderr=log)
        await_that(self._answers, self.log)

    def log(self) -> str:
        return self._log.read_text()

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(self.url + path, data=data, headers=headers), timeout=30) as answer:
            return json.loads(answer.read())

    def completed(self) -> list[str]:
        return [each["action"] for each in self.call("/v1/operations?status=completed")["operations"]]

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log()
        try:
            self.call("/healthz")
        except URLError:
            return False
        return True


def await_that(is_so: Callable[[], bool], told: Callable[[], object]) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + TIMEOUT_S
    while not is_so():
        assert clock.monotonic_s() < until_s, told()
        clock.sleep(0.2)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "lake").mkdir()
    started = Running(tmp_path / "lake", tmp_path)
    yield started
    started.process.terminate()
    assert started.process.wait(TIMEOUT_S) == 0, started.log()


def test_a_table_is_compacted_clustered_and_cleaned_while_it_is_written_to(running: Running, tmp_path: Path) -> None:
    place = tmp_path / "lake" / "trips"
    table = TableBuilder().create(str(place), table_type="mor")
    running.call("/v1/tables", {"db_name": "db", "table_name": "trips", "base_path": str(place), "policy": POLICY})
    for ts in range(12):
        table.upsert(trips(("a", "sf", ts, float(ts)), (f"k{ts}", "la", ts, 1.0)), retries=20)
        running.call("/v1/hoodie/callback", {"commitTime": "", "tableName": "trips", "basePath": str(place)})
    await_that(lambda: {"compaction", "clustering", "clean"} <= set(running.completed()), running.log)
    await_that(lambda: not running.call("/v1/operations?status=running")["operations"], running.log)
    assert rows_of(table.read(), "id", "fare") == sorted([("a", 11.0), *((f"k{ts}", 1.0) for ts in range(12))])
    assert [each for each in table.plans() if each.is_held] == []
