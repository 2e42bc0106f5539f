"""A real standalone cluster of Spark on free loopback ports: one master and workers under the names of this machine.

The workers call their hosts `127.0.0.1` and `localhost`, because Spark puts no speculative copy of a task on the host
of the original. A worker can be frozen with everything that it started, and killed. `applications` is what the master
says of programs that ran or run on it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from tablekeeper.runtime import SYSTEM_RUNTIME
from tests.support.ports import free_port

__all__ = ["HOSTS", "SparkApplication", "SparkCluster", "SparkWorker", "spark_cluster"]

HOSTS = ("127.0.0.1", "localhost")
_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 120.0
_DEPLOY = "org.apache.spark.deploy"


@dataclass(frozen=True)
class SparkApplication:
    """A program as the master knows it; `state` is RUNNING, FINISHED, FAILED, KILLED, ..."""

    application_id: str
    name: str
    state: str


@dataclass
class SparkWorker:
    """A worker, its executors and their Python processes: all of one session of the operating system."""

    host: str
    process: subprocess.Popen[bytes]

    def freeze(self) -> None:
        """Let it go on existing without ever answering."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        # Python workers have a process group of their own, but the session of the worker.
        for pid in _of_session(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@dataclass
class SparkCluster:
    """A running cluster. `url` is the master as programs name it."""

    folder: Path
    url: str
    status_url: str
    environment: Mapping[str, str]
    workers: list[SparkWorker] = field(default_factory=list)

    def add_worker(self, host: str, *, cores: int = 1, memory: str = "1g") -> SparkWorker:
        """Start one more worker, and wait until the master counts on it."""
        number = len(self.workers)
        arguments = ["--host", host, "--cores", str(cores), "--memory", memory]
        arguments += ["--work-dir", str(self.folder / f"worker-{number}"), "--webui-port", "0", self.url]
        process = _start(self.folder / f"worker-{number}.log", self.environment, f"{_DEPLOY}.worker.Worker", *arguments)
        worker = SparkWorker(host, process)
        self.workers.append(worker)
        _await(lambda: len(self._alive()) > number, worker.process, self.folder / f"worker-{number}.log")
        return worker

    def applications(self) -> list[SparkApplication]:
        """All programs of this cluster, the oldest first."""
        status = self._status()
        told = sorted([*status["completedapps"], *status["activeapps"]], key=lambda each: str(each["id"]))
        return [SparkApplication(each["id"], each["name"], each["state"]) for each in told]

    def _alive(self) -> list[str]:
        return [each["id"] for each in self._status()["workers"] if each["state"] == "ALIVE"]

    def _status(self) -> Any:
        with urlopen(f"{self.status_url}/json/", timeout=30) as answer:
            return json.load(answer)


@contextmanager
def spark_cluster(folder: Path, *, cores: int = 1, memory: str = "1g") -> Iterator[SparkCluster]:
    """One master and a worker on each of `HOSTS`, with so many cores and so much memory each."""
    folder.mkdir(parents=True, exist_ok=True)
    roots = [str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(root for root in roots if root),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Daemons of tests live for minutes and do little.
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_NO_DAEMONIZE": "1",
    }
    port, status_port = free_port(), free_port()
    log = folder / "master.log"
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(status_port)]
    master = _start(log, environment, f"{_DEPLOY}.master.Master", *arguments)
    cluster = SparkCluster(folder, f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{status_port}", environment)
    try:
        _await(lambda: cluster._status()["status"] == "ALIVE", master, log)
        for host in HOSTS:
            cluster.add_worker(host, cores=cores, memory=memory)
        yield cluster
    finally:
        for worker in cluster.workers:
            worker.kill()
        master.kill()
        master.wait()


def _start(log: Path, environment: Mapping[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    package = find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    program = Path(package.origin).parent / "bin" / "spark-class"
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=dict(environment),
            start_new_session=True,
        )


def _await(is_so: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    clock = SYSTEM_RUNTIME.clock
    until_s = clock.monotonic_s() + _TIMEOUT_S
    while True:
        with suppress(URLError, ConnectionError, TimeoutError):
            if is_so():
                return
        assert process.poll() is None, log.read_text()
        assert clock.monotonic_s() < until_s, log.read_text()
        clock.sleep(0.1)


def _of_session(session: int) -> list[int]:
    """The processes of this session; its first one by its own number."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(FileNotFoundError, ProcessLookupError):
            # The name in brackets may hold anything; the session is the fourth word behind it.
            if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                found.append(int(entry.name))
    return found
