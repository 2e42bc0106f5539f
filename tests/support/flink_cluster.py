"""A real standalone cluster of Flink on free loopback ports, from an environment with `apache-flink`.

`FLINK_PYTHON` names the interpreter of that environment; by default it is the one of `make flink` in this checkout.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from tablekeeper.runtime import SYSTEM_RUNTIME
from tests.support.ports import free_port

__all__ = ["FlinkCluster", "FlinkJob", "flink_cluster", "flink_python"]

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class FlinkJob:
    """A job as the cluster knows it; `state` is RUNNING, FINISHED, CANCELED, FAILED, ..."""

    job_id: str
    name: str
    state: str


@dataclass
class FlinkCluster:
    """A running cluster. `address` is the job manager as programs name it."""

    folder: Path
    home: Path
    python: Path
    address: str
    environment: dict[str, str]
    process: subprocess.Popen[bytes]

    def jobs(self) -> list[FlinkJob]:
        """All jobs of this cluster, the oldest first."""
        told = sorted(self._status("jobs/overview")["jobs"], key=lambda each: int(each["start-time"]))
        return [FlinkJob(each["jid"], each["name"], each["state"]) for each in told]

    def task_managers(self) -> int:
        return int(self._status("overview")["taskmanagers"])

    def _status(self, what: str) -> Any:
        with urlopen(f"http://{self.address}/{what}", timeout=30) as answer:
            return json.load(answer)


def flink_python() -> Path:
    """The interpreter that has Flink; one that is missing is an error that says how to get it."""
    python = Path(os.environ.get("FLINK_PYTHON") or _ROOT / ".venv-flink/bin/python")
    if not python.is_file():
        raise FileNotFoundError(f"{python} is missing: run `make flink`, or set FLINK_PYTHON")
    return python


@contextmanager
def flink_cluster(folder: Path, *, slots: int = 2) -> Iterator[FlinkCluster]:
    """One job manager and one task manager with so many slots."""
    python = flink_python()
    home = Path(next((python.parents[1] / "lib").glob("python3*"))) / "site-packages" / "pyflink"
    conf, log = folder / "conf", folder / "log"
    conf.mkdir(parents=True)
    log.mkdir()
    for file in (home / "conf").iterdir():
        (conf / file.name).write_bytes(file.read_bytes())
    port = free_port()
    _configure(conf / "config.yaml", port=port, slots=slots, scratch=folder / "tmp")
    roots = [str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "FLINK_HOME": str(home),
        "FLINK_CONF_DIR": str(conf),
        "FLINK_LOG_DIR": str(log),
        "FLINK_PID_DIR": str(folder),
        # Python workers of the task manager find the project also where it is not installed.
        "PYTHONPATH": os.pathsep.join(root for root in roots if root),
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
    }
    managers = [
        _start(home / "bin" / "jobmanager.sh", log / "jobmanager.out", environment),
        _start(home / "bin" / "taskmanager.sh", log / "taskmanager.out", environment),
    ]
    cluster = FlinkCluster(folder, home, python, f"127.0.0.1:{port}", environment, managers[0])
    try:
        _await_task_manager(cluster, managers, log)
        yield cluster
    finally:
        for manager in reversed(managers):
            manager.terminate()
        for manager in managers:
            try:
                manager.wait(timeout=30)
            except subprocess.TimeoutExpired:
                manager.kill()
                manager.wait()


def _configure(file: Path, *, port: int, slots: int, scratch: Path) -> None:
    """Own ports and folders over the file that Flink ships, whose Java options are needed."""
    scratch.mkdir()
    java = re.search(r"^\s+all: (--add-.*)$", file.read_text(), re.MULTILINE)
    assert java is not None
    settings = {
        "env.java.opts.all": java.group(1),
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": free_port(),
        "jobmanager.bind-host": "127.0.0.1",
        "jobmanager.memory.process.size": "1000m",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.memory.process.size": "1400m",
        "taskmanager.memory.managed.size": "200m",
        "taskmanager.numberOfTaskSlots": slots,
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": port,
        "io.tmp.dirs": scratch,
    }
    file.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))


def _start(program: Path, log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(program), "start-foreground"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )


def _await_task_manager(cluster: FlinkCluster, managers: list[subprocess.Popen[bytes]], log: Path) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + _TIMEOUT_S
    while True:
        with suppress(URLError, ConnectionError, TimeoutError):
            if cluster.task_managers() > 0:
                return
        told = "\n".join(file.read_text()[-3000:] for file in sorted(log.iterdir()))
        assert all(manager.poll() is None for manager in managers), told
        assert clock.monotonic_s() < until_s, told
        clock.sleep(0.2)
